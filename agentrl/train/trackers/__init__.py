"""Trackers of a run's metrics besides metrics.jsonl: TensorBoard, W&B, MLflow, Trackio, Prometheus, or one's own.

metrics.jsonl is the run's record and is written by the run itself. What is here only passes it on (`worker`), so that
no tracker can end a run or make it wait.
"""

from __future__ import annotations

from agentrl.registry import Registry, subclass_of
from agentrl.train.trackers.base import Tracker
from agentrl.train.trackers.worker import Trackers

_HERE = "agentrl.train.trackers"


TRACKERS: Registry[type[Tracker]] = Registry(
    "metrics back end",
    "metrics",
    "agentrl.trackers",
    {
        "mlflow": f"{_HERE}.mlflow:MLflow",
        "prometheus": f"{_HERE}.prometheus:Prometheus",
        "tensorboard": f"{_HERE}.tensorboard:TensorBoard",
        "trackio": f"{_HERE}.trackio:Trackio",
        "wandb": f"{_HERE}.wandb:WandB",
    },
    default=subclass_of(Tracker),
)

__all__ = ["TRACKERS", "Tracker", "Trackers"]
