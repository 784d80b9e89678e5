"""A run on a real inference server proves what it trained on, by the server's own checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.errors import EngineError
from agentrl.rollout.weights.buckets import Named, Weights
from agentrl.sessions.store.store import Store
from agentrl.train.record import provenance
from agentrl.train.record.provenance import Published
from agentrl.train.record.verify import verify
from agentrl.train.record.verify.step_checks import SEALED
from tests.rollout.engines import servers
from tests.train.test_rerun import WORLD

BOUND = 1e-5
"""On the probe's mean |Δ log-probability| in float32: a vLLM server that kept its output layer was off by 0.006."""
PATIENCE = 600.0
"""Seconds for what is quick where nothing else runs."""
STALE = "model.layers.1.mlp.down_proj.weight"


def train(engine: dict[str, Any], model: Path, run: Path, **settings: Any) -> None:
    """Train two steps, with a small learning rate where a difference is to be found that the probe does not see."""
    world = run.with_suffix(".py")
    world.write_text(WORLD)
    agentrl.train(
        f"{world}:Dense",
        model=str(model),
        engine=engine,
        algo={"name": "reinforce", "lr": settings.pop("lr", 1e-3)},
        rollout={
            **{"groups_per_step": 2, "group_size": 2, "turn_tokens": 16},
            **{"turn_timeout": PATIENCE, "timeout": 2 * PATIENCE},
        },
        fleet={"probe_timeout": PATIENCE, "stall_timeout": PATIENCE, **settings.pop("fleet", {})},
        weights={"start_tokens": 64, **settings.pop("weights", {})},
        eval={"tasks": 1, "n": 1},
        steps=2,
        require_provenance=True,
        run_dir=str(run),
        **settings,
    )


def attached(name: str, url: str) -> dict[str, Any]:
    """The engine's section for a server that runs, and one more that is started beside it."""
    return {"name": name, "url": url, "device": "cpu", "python": servers.forking_python(name), **servers.ATTACHED[name]}


def check_run(name: str, url: str, folder: Path, tmp_path: Path) -> None:
    """Train two steps on a server that runs; verification passes, and finds a swapped token."""
    run = tmp_path / "run"
    train(attached(name, url), folder, run)
    report = verify(run)
    assert report.passed, list(report.lines())
    assert {why for check in report.checks for why in check.unknown} == {SEALED}, list(report.lines())
    published = [found for _, found in provenance.read(run) if isinstance(found, Published)]
    sums = [set(found.checksums.values()) for found in published]
    assert [len(each) for each in sums] == [1, 1, 1]
    assert len(set.union(*sums)) == 3, "each version has a checksum of its own"
    probes = [found.probe for found in published[1:]]
    assert all(probe is not None and probe < BOUND for probe in probes), f"{probes}: a layer has old weights"

    with Store(run / "sessions.db") as store:
        session = next(store.sessions(phase="train"))
        next(node for node in session.nodes if node.sampled).token_ids[-1] ^= 1
        store.save(session, replace=True)
    report = verify(run)
    assert {check.name for check in report.checks if check.faults} >= {"groups", "tokens"}, list(report.lines())


def check_stale_tensor(engine: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first publication is proved to have arrived; of the second, whose probe is within its bound, one is not."""
    monkeypatch.setattr(Weights, "of", with_a_stale_tensor(Weights.of, from_version=2))
    with pytest.raises(EngineError, match=r"after version 2, and an engine that loaded it .*: not all weights arrived"):
        train(engine, folder, tmp_path / "stale", weights={"prove_every": 1}, lr=1e-5)
    published = [found for _, found in provenance.read(tmp_path / "stale") if isinstance(found, Published)]
    assert [found.version for found in published] == [0, 1]
    assert set(published[1].checksums.values()) == {published[1].reference}
    assert published[0].checksums != published[1].checksums


def with_a_stale_tensor(plain: Callable[..., Weights], from_version: int) -> Callable[..., Weights]:
    """What gives a trainer's weights to its engines; from a version on, one tensor is that of the version before."""
    held: dict[int, Any] = {}

    def of(trainer: Any, method: str = "weights") -> Weights:
        def tensors() -> Iterator[Named]:
            for name, tensor in plain(trainer, method):
                if name == STALE:
                    held[trainer.version] = tensor.detach().clone()
                    tensor = held[trainer.version - (trainer.version >= from_version)]
                yield name, tensor

        return Weights(tensors)

    return of
