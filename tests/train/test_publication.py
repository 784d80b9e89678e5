"""A trainer dies at every one of its calls, and what engines have is proven, recorded and saved nevertheless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import agentrl
from agentrl.errors import TrainerError
from agentrl.train.display.console import Display
from agentrl.train.record import provenance
from agentrl.train.record.verify import verify
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.test_recovery import WORLD

CALLS = ("step", "logprobs", "weights", "averaged_weights", "save", "load", "export", "begin")
SETTINGS: dict[str, Any] = {
    **{"warm_start.steps": 1, "warm_start.demos": 2, "warm_start.batch": 2, "eval.tasks": 1, "algo.lr": 1e-3},
    **{"rollout.groups_per_step": 1, "rollout.group_size": 3, "rollout.turn_tokens": 8, "rollout.session_tokens": 400},
    **{"steps": 5, "checkpoint_every": 2, "trainer.max_restarts": 1000, "require_provenance": True},
    **{"weights.prove_every": 1, "weights.probe_tokens": 16, "trainer.average_decay": 0.9, "eval.weights": "averaged"},
    **{"eval.every": 2, "trainer.threads": 1},
}


class Mortal:
    """Trainers of which each call kills one: a call is known by its method, the version, and how many were before it.

    A dead one answers nothing any more; `harm` is done to the weights of each that takes its place.
    """

    def __init__(self, patch: pytest.MonkeyPatch, harm: Callable[[TorchTrainer], object]) -> None:
        self.deaths = list[tuple[str, int, int]]()
        self.dead = set[int]()
        self.harm = harm
        self.counts = dict[int, Counter[tuple[str, int]]]()
        for method in CALLS:
            if (plain := getattr(TorchTrainer, method, None)) is not None:
                patch.setattr(TorchTrainer, method, self._dying(method, plain))

    def _dying(self, method: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def reached(trainer: TorchTrainer) -> None:
            counts = self.counts.setdefault(id(trainer), Counter())
            at = (method, trainer.version, counts[method, trainer.version])
            counts[method, trainer.version] += 1
            if id(trainer) in self.dead:
                raise TrainerError("it is dead")
            if at not in self.deaths:
                self.deaths.append(at)
                self.dead.add(id(trainer))
                kept.append(trainer)  # its id stays its own
                raise TrainerError(f"it died at {at}")

        def stream(trainer: TorchTrainer) -> Iterator[Any]:
            """It dies amid what is sent."""
            items = list(plain(trainer))
            yield from items[: len(items) // 2]
            reached(trainer)
            yield from items[len(items) // 2 :]

        def call(trainer: TorchTrainer, *arguments: Any, **options: Any) -> Any:
            reached(trainer)
            found = plain(trainer, *arguments, **options)
            if method == "load":
                self.harm(trainer)
            return found

        kept = list[TorchTrainer]()
        return stream if method in ("weights", "averaged_weights") else call


def run(folder: Path, world: Path) -> None:
    display = Display(Console(file=StringIO(), width=500))
    agentrl.train(f"{world}:Dense", **SETTINGS, run_dir=str(folder), display=display)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_whose_trainer_dies_at_every_call_is_proven_step_for_step(
    deterministic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not deterministic learns other weights each time, and engines have those of the last."""

    def harm(trainer: TorchTrainer) -> None:
        trainer.deterministic = deterministic
        if not deterministic:
            with torch.no_grad():
                next(trainer.model.parameters()).add_(1e-6 * len(mortal.deaths))

    world = tmp_path / "world.py"
    world.write_text(WORLD)
    mortal = Mortal(monkeypatch, harm)
    run(tmp_path / "run", world)
    reached = {(method, version) for method, version, _ in mortal.deaths}
    assert reached >= {(method, version) for method in ("step", "weights", "logprobs") for version in range(2, 6)}
    assert {method for method, _ in reached} >= {"averaged_weights", "save", "load", "export"}
    report = verify(tmp_path / "run", weights=True)
    assert [fault for check in report.checks for fault in check.faults] == []
    assert not any("publications" in reason for check in report.checks for reason in check.unknown)
    published = [found for _, found in provenance.read(tmp_path / "run") if isinstance(found, provenance.Published)]
    assert [found.version for found in published if found.probe is None or not found.reference] == []
    again = len(published) - len({found.version for found in published})
    assert (again == 0) is deterministic
