"""A run's result, and its display."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.sessions.renderers import strip
from agentrl.train.display.console import Display
from agentrl.train.display.next_try import next_try
from agentrl.train.display.pictures import learning_curve
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


def show(config: RunConfig, result: TrainResult, tops: Collection[float], display: Display) -> None:
    """Show and draw what a run came to, and what to try next where its held-out reward did not rise.

    `tops`: mean rewards that can't be surpassed (`lost_tokens.top_scores`).
    """
    before, after, rows = result.before, result.after, result.metrics
    if config.rerun:
        from agentrl.train.record import recording  # brings torch, which a wrong word or an evaluation never needs

        display.say(recording.compare_weights(Path(config.rerun), result.path))
    if config.model.reasoning == "strip":
        display.say(strip.summarize_cost(rows))
    marks = {name: value.mean for name, value in (("before", before), ("after", after)) if value}
    title = f"{config.env.name} · {config.model.name} · {config.algo.name} · seed {config.seed}"
    learning_curve(result.path / "learning_curve.png", rows, title, marks, evaluated=config.eval.label)
    if before is None or after is None:
        return
    settings = (config.steps, config.warm_start.steps, config.rollout.group_size)
    if advice := next_try(result.path, settings, before, after, rows, tops):
        display.say(advice)
    display.say(f"reward{config.eval.label} {before.summary} before training, {after.summary} after it")
