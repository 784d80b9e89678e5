"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrl.rollout.stats import Evaluation
from agentrl.train import lost_tokens
from agentrl.train.run_folder import Metrics


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to: where it lies, how the policy did before and after, each step's metrics.

    `worked`: some session of it had a turn and did not fail, or earned something.
    """

    path: Path
    before: Evaluation | None
    after: Evaluation | None
    metrics: list[Metrics]
    worked: bool = True

    @property
    def tokens(self) -> str:
        """How many of the sampled tokens were trained, and what took the others."""
        return lost_tokens.told(self.metrics)

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint, a Hugging Face folder."""
        return max((self.path / "checkpoints").glob("step-*"))
