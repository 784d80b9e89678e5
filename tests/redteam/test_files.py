"""What somebody else's file holds is read, or refused in a sentence with the file's name, and never run."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agentrl.envs.builtin.swe.formats import harbor, terminal_bench
from agentrl.envs.data import columnar, rows
from agentrl.envs.data.rows import read_rows
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models.registry import check
from agentrl.overrides import read_yaml
from agentrl.retrieval.corpus import scan
from agentrl.retrieval.index import read_manifest
from tests.redteam import files
from tests.redteam.attack import Attack, ids
from tests.redteam.files import BOMBS, FOLDERS, MODELS, PICKLES, ROWS, SETTINGS, WHOLE, header, parquet

MODEL_SPACE = {"header": header, "INDEX": files.INDEX}
READERS: Mapping[str, Callable[[Path], object]] = {
    "task.toml": lambda file: harbor.read(file.parent),
    "task.yaml": lambda file: terminal_bench.read(file.parent),
    "corpus.jsonl": scan,
    "manifest.json": lambda file: read_manifest(file.parent),
}


@pytest.mark.parametrize("case", ROWS, ids=ids(ROWS))
def test_no_data_ends_a_command_otherwise_than_by_its_name(case: Attack, tmp_path: Path) -> None:
    name, data = eval(case.payload, {"gzip": gzip, "parquet": parquet})
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=name):
        list(read_rows(tmp_path / name))


@pytest.mark.slow
@pytest.mark.parametrize("case", BOMBS, ids=ids(BOMBS))
def test_no_data_is_unpacked_beyond_its_bounds(case: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gigabytes in a line, from two megabytes, were still being read after four minutes."""
    monkeypatch.setattr(rows, "MOST_ROWS", 1 << 15)  # the others take seconds, and are what is tried
    monkeypatch.setattr(rows, "MOST_TEXT", 1 << 27)
    monkeypatch.setattr(columnar, "MOST_BATCH", 1 << 27)
    bounds = {
        **{name: getattr(rows, name) for name in ("MOST_LINE", "MOST_ROWS", "MOST_TEXT")},
        **{name: getattr(columnar, name) for name in ("MOST_VALUES", "MOST_BYTES", "MOST_BATCH")},
    }
    own = {
        "gzip": gzip,
        **{one.__name__: one for one in (files.long_list, files.long_value, files.shared, files.empty_rows)},
        **{one.__name__: one for one in (files.packed_batch, files.shared_arrow, files.zstd)},
    }
    name, data = eval(case.payload, {**own, **bounds})
    assert len(data) < 1 << 20, "it is no bomb"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=rf"{name}.*(more than|may have|larger than)"):
        list(read_rows(tmp_path / name))


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS, ids=ids(SETTINGS))
def test_no_settings_run_or_multiply(case: Attack, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(eval(case.payload))
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        read_yaml(tmp_path / "config.yaml")
    assert not (tmp_path / "marker").exists(), case.must_not


def test_settings_may_share_what_is_small(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, y: *a}\nc: [*a, *a]\n")
    assert read_yaml(file) == {"a": {"x": 1}, "b": {"x": 1, "y": {"x": 1}}, "c": [{"x": 1}, {"x": 1}]}


def put(folder: Path, content: Mapping[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return folder


def test_the_folder_that_the_models_are_made_of_is_whole(tmp_path: Path) -> None:
    assert check(put(tmp_path, WHOLE)) == tmp_path


@pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
def test_no_model_is_taken_that_is_none(case: Attack, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(put(tmp_path, {**WHOLE, **eval(case.payload, dict(MODEL_SPACE))}))
    assert str(tmp_path) in str(refused.value), case.must_not
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("case", FOLDERS, ids=ids(FOLDERS))
def test_no_task_corpus_or_index_is_taken_that_is_none(case: Attack, tmp_path: Path) -> None:
    content = eval(case.payload)
    (name,) = content
    with pytest.raises((ConfigError, InvalidInput)) as refused:
        READERS[name](put(tmp_path, content) / name)
    assert str(tmp_path) in str(refused.value), case.must_not


def pickled(protocol: int, module: str, name: str, argument: str) -> bytes:
    """A pickle that calls something with a text, in the opcodes of a protocol."""
    words, text = (module.encode(), name.encode()), argument.encode()
    place = b"".join(b"\x8c" + bytes([len(word)]) + word for word in words) + b"\x93"
    if protocol == 2:
        place = b"c" + b"".join(word + b"\n" for word in words)
    return b"\x80" + bytes([protocol]) + place + b"X" + len(text).to_bytes(4, "little") + text + b"\x85R."


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize("case", PICKLES, ids=ids(PICKLES))
def test_no_checkpoint_calls_what_it_names(case: Attack, tmp_path: Path) -> None:
    from agentrl.train.trainers.ranks import restricted

    module, name = case.payload.split()
    for protocol, place in ((4, restricted.METADATA), (2, restricted.METADATA), (2, "numbers.pt")):
        folder = tmp_path / f"{protocol}{place}"
        folder.mkdir()
        (folder / place).write_bytes(pickled(protocol, module, name, "touch marker"))
        before = set(tmp_path.rglob("*"))
        with pytest.raises(InvalidInput, match="refused"):
            restricted.check(folder)
        assert set(tmp_path.rglob("*")) == before, case.must_not
