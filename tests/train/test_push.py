"""`agentrl models push`: a run's model in a hub's folder, whole, with a card that tells its origin and no secrets."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.registry import check
from agentrl.train.record.push import push, shorten_name
from tests.records.test_records import unpacked

ROW = re.compile(r"^\| `([^`]+)` \| ([0-9a-f]{64}) \|$", re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return unpacked("63b9345", "sync", tmp_path)


def test_a_pushed_model_is_whole_and_its_card_names_origin_settings_and_the_digest_of_each_file(
    run: Path, tmp_path: Path
) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / ".gitattributes").write_text("kept")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "eval/mean": 0.25}\n{"step": 3, "eval/mean": 0.75}\n')
    assert push(run, hub).name == "step-000002"
    assert check(hub) == hub
    card = (hub / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    settings = ("`env` | digits", "`algo` | grpo", "`seed` | 0", "`eval/mean` | 0.25")
    assert [told for told in (*settings, "Step 2 of a run", "began with `base`") if told not in card] == []
    assert str(tmp_path) not in card
    files = {file.name for file in hub.iterdir()} - {"README.md", ".gitattributes"}
    assert dict(ROW.findall(card)) == {name: hashlib.sha256((hub / name).read_bytes()).hexdigest() for name in files}
    assert not files & {"run.json", "manifest.json", "trainer"}
    assert (hub / ".gitattributes").read_text() == "kept"


@pytest.mark.slow
def test_what_can_not_be_pushed_is_refused_and_leaves_the_folder_as_it_is(run: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    with pytest.raises(ConfigError, match=r"no checkpoint of step 7 \(there are: 2\)"):
        push(run, hub, 7)
    with pytest.raises(ConfigError, match="no run there"):
        push(tmp_path, hub)
    (run / "best.json").write_text(json.dumps({"checkpoint": "step-000001", "metric": "eval/mean", "value": 1}))
    with pytest.raises(ConfigError, match="no checkpoint of step 1"):
        push(run, hub)
    with pytest.raises(ConfigError, match="the run's own folder, or in it"):
        push(run, run / "checkpoints" / ".." / "hub", 2)
    push(run, hub, 2)
    before = (hub / "README.md").stat().st_mtime_ns
    with pytest.raises(ConfigError, match="--replace"):
        push(run, hub, 2)
    weights = run / "checkpoints/step-000002/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(InvalidInput, match=r"damaged: model\.safetensors has changed"):
        push(run, hub, 2, replace=True)
    assert (hub / "README.md").stat().st_mtime_ns == before


def test_a_path_is_told_by_its_last_part_and_a_hubs_name_whole() -> None:
    names = ("/home/me/models/own", "runs/a/checkpoints/step-000001", "Qwen/Qwen3-8B", "tiny")
    assert [shorten_name(each) for each in names] == ["own", "step-000001", "Qwen/Qwen3-8B", "tiny"]
