"""Weights are proved to have arrived by an engine that loads them from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config import EngineConfig, FleetConfig, RunConfig, WeightsConfig
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.fleet.reference import ReferenceEngine
from agentrl.train.record import provenance
from agentrl.train.record.provenance import Published
from agentrl.train.record.verify import verify
from tests.rollout.engines.conftest import model
from tests.rollout.engines.verified import check_stale_tensor, train

__all__ = ["model"]


@pytest.mark.slow
def test_a_stale_tensor_that_the_probe_does_not_see_ends_a_run_on_the_local_engine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stale_tensor({"name": "local", "device": "cpu"}, folder, tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_run_records_what_its_engines_were_compared_with_also_where_they_are_sent_another_precision(
    folder: Path, tmp_path: Path
) -> None:
    weights = {"prove_every": 1, "dtype": "bfloat16"}
    train({"name": "local", "device": "cpu"}, folder, tmp_path / "run", weights=weights, fleet={"engines": 2})
    published = [found for _, found in provenance.read(tmp_path / "run") if isinstance(found, Published)]
    assert [bool(found.reference) for found in published] == [False, True, True]
    report = verify(tmp_path / "run")
    assert report.passed, list(report.lines())
    (check,) = (check for check in report.checks if check.name == "weights")
    assert check.examined["compared with an engine that loaded a folder"] == 2


@pytest.mark.slow
async def test_the_first_publication_and_every_nth_after_it_are_proved(folder: Path, model: Any) -> None:
    reference = ReferenceEngine(EngineConfig(device="cpu"), FleetConfig(), WeightsConfig(prove_every=2), folder)
    engine = LocalEngine(folder, EngineConfig(device="cpu"))
    try:
        found = [await reference.checksum(model.state_dict().items(), version) for version in (1, 2, 3)]
        assert found == [await engine.checksum(), "", await engine.checksum()]
        changed = {name: tensor + 1 for name, tensor in model.state_dict().items()}
        assert await reference.checksum(changed.items(), 4) == ""
        assert await reference.checksum(changed.items(), 5) not in found
    finally:
        await reference.close()
        await engine.close()


def test_a_record_of_other_weights_than_the_folders_is_a_fault() -> None:
    found = Published(3, 0, "sglang", "dropped", {"engine-0": "ab", "engine-1": "cd"}, reference="ab")
    assert found.undelivered.startswith("engine-1 has the checksum cd after version 3")
    assert not Published(3, 0, "sglang", "dropped", {"engine-0": "ab"}).undelivered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"weights": {"verify": False}}, "weights.verify=false leaves out"),
        ({"engine": {"name": "sglang"}, "fleet": {"colocated": True}}, "fleet.colocated=true has no place for"),
        ({"cluster": {"name": "ray"}}, "cluster=ray has no place for"),
    ],
    ids=str,
)
def test_it_is_refused_where_there_is_no_checksum_or_no_place_for_another_engine(
    settings: dict[str, Any], reason: str
) -> None:
    weights = {"prove_every": 1, **settings.pop("weights", {})}
    with pytest.raises(ValidationError, match=reason):
        RunConfig.model_validate({"env": {"name": "calculator"}, "weights": weights, **settings})
