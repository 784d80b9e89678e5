"""A run's result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.train.driver import lost_tokens
from agentrl.train.record.run_folder import Metrics


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A run's result: its folder, the policy's reward before and after, each step's metrics.

    `before`: the evaluation before the first step, also of a resumed run; None where it can't be compared with `after`.
    `worked`: some session of it had a turn and did not fail, or earned something. `kind`: a word for the tokens that it
    learned from.
    """

    path: Path
    before: Evaluation | None
    after: Evaluation | None
    metrics: list[Metrics]
    worked: bool = True
    kind: str = "sampled"

    @property
    def tokens(self) -> str:
        """The share of sampled tokens, or of those that were read, that were trained, and what took the others."""
        return lost_tokens.describe_lost(self.metrics, self.kind)

    @property
    def trained(self) -> bool:
        """True if there is a checkpoint."""
        return any((self.path / "checkpoints").glob("step-*"))

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint, a Hugging Face folder."""
        return max((self.path / "checkpoints").glob("step-*"))
