"""MLflow as a back end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from agentrl.train.trackers.base import TrackedRun, Tracker

PARAMS = 100
"""Parameters that a server takes at once."""
VALUE = 500
"""Characters of a parameter that every server takes."""
STEP = "agentrl.step"
"""The tag with the last step that was logged."""
_OTHER = re.compile(r"[^\w./: -]", re.ASCII)
"""Characters that a name may not have."""


class MLflow(Tracker):
    """`metrics=[mlflow]`: the server of MLFLOW_TRACKING_URI, or a database in RUN/trackers where that is not set.

    `mlflow ui --backend-store-uri sqlite:///RUN/trackers/mlflow.db` shows the latter.
    """

    package = extra = "mlflow"

    def __init__(self, about: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        about.own.mkdir(exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{about.own.resolve()}/mlflow.db"
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(about.project)
        experiment = found.experiment_id if found else self._client.create_experiment(about.project)
        file = about.own / "mlflow-id"
        begins = not file.exists()
        made = self._client.create_run(experiment, run_name=about.name).info.run_id if begins else ""
        self._id = about.remembered(file.name, made)
        if begins:
            params = [Param(_OTHER.sub("_", name), str(value)[:VALUE]) for name, value in about.settings.items()]
            for start in range(0, len(params), PARAMS):
                self._client.log_batch(self._id, params=params[start : start + PARAMS])
        else:
            self._client.update_run(self._id, status="RUNNING")

    def last(self) -> int:
        return int(self._client.get_run(self._id).data.tags.get(STEP, 0))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers, and in the same request which step they are of."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(_OTHER.sub("_", name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics, tags=[RunTag(STEP, str(step))])

    def close(self) -> None:
        self._client.set_terminated(self._id)
