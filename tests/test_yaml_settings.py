"""Settings mean what they look like, on the command line, in a file, and from a script."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.config import RunConfig, yaml_settings
from agentrl.envs.data.dataset import Dataset
from agentrl.envs.registry import make
from agentrl.errors import AgentRLError, ConfigError
from agentrl.overrides import fields, merge_settings, parse_words, read_yaml, spread, validate
from agentrl.types import Task

MEANT: dict[str, Any] = {
    "1e-5": 1e-5,
    "1E5": 1e5,
    "-2.5e+3": -2500.0,
    ".5": 0.5,
    "1_000": 1000,
    "0x1F": 31,
    "0": 0,
    "-7": -7,
    "010": "010",
    "00": "00",
    "1:30": "1:30",
    "12:30:45": "12:30:45",
    "2024-01-01": "2024-01-01",
    "2024-01-01 10:00:00": "2024-01-01 10:00:00",
    "yes": "yes",
    "No": "No",
    "on": "on",
    "off": "off",
    "y": "y",
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "12e4567": "12e4567",
    "1.2.3": "1.2.3",
    "=": "=",
    ".inf": float("inf"),
    "a sentence: with a colon: or two": "a sentence: with a colon: or two",
}


@pytest.mark.parametrize("text", ["task #3", "#3", "&now", "!bang", "|", "line\nline", "'quoted' # not", "[1] # x"])
def test_a_text_on_the_command_line_is_all_of_it(text: str) -> None:
    """YAML takes what follows " #" for a comment, joins lines, and reads an anchor and a block as nothing."""
    assert parse_words([f"env.x={text}"])["env"]["x"] == text


def test_a_list_of_patterns_needs_no_quotes_on_the_command_line() -> None:
    """YAML takes `*.q_proj` for an alias: `lora.targets=[*.q_proj,*.v_proj]`, as the guide has it, was refused."""
    assert parse_words(["lora.targets=[*.q_proj, *norm*, head]"])["lora"]["targets"] == ["*.q_proj", "*norm*", "head"]
    assert parse_words(["env.x=*.jsonl"])["env"]["x"] == "*.jsonl"


@pytest.mark.parametrize("text", MEANT)
def test_a_setting_is_what_it_looks_like(text: str, tmp_path: Path) -> None:
    """YAML 1.1 has 010 for 8, 1:30 for 90, no for false, 2024-01-01 for a date, and 1e-5 for text."""
    found = parse_words([f"env.x={text}"])["env"]["x"]
    assert (found, type(found)) == (MEANT[text], type(MEANT[text]))
    if "colon" not in text:
        (tmp_path / "a.yaml").write_text(f"env.x: {text}\nenv.y: [{text}]\n")
        assert read_yaml(tmp_path / "a.yaml") == {"env": {"x": MEANT[text], "y": [MEANT[text]]}}


@given(st.integers(-(10**18), 10**18) | st.floats(allow_nan=False) | st.booleans())
def test_what_python_writes_of_a_number_is_read_as_that_number(value: Any) -> None:
    text = repr(value) if value not in (float("inf"), float("-inf")) else f"{value:+}".replace("inf", ".inf")
    assert parse_words([f"x={text}"]) == {"x": value}


@pytest.mark.slow
@given(st.recursive(st.text() | st.floats(allow_nan=False) | st.integers() | st.booleans() | st.none(), st.lists))
def test_what_a_run_keeps_of_its_settings_is_read_as_it_was_by_any_reader(value: Any) -> None:
    text = yaml_settings.write({"x": value, "order": 1, "a": 2})
    assert yaml_settings.read(text) == yaml.safe_load(text) == {"x": value, "order": 1, "a": 2}
    for word in MEANT:
        assert yaml_settings.read(yaml_settings.write({"x": word})) == {"x": word}


def build(*words: str) -> RunConfig:
    return validate(merge_settings(["env=calculator", *words]), RunConfig)


def test_settings_that_are_numbers_or_switches_take_the_words_for_them() -> None:
    assert build("seed=010").seed == 10
    assert build("dry_run=yes").dry_run is True
    assert build("dry_run=off").dry_run is False
    assert build("algo.lr=1e-5").algo.lr == build("algo.lr=0.00001").algo.lr == 1e-5


@pytest.mark.parametrize(
    "word",
    [
        *("steps=2024-01-01", "rollout.timeout=1:30", "steps=", "steps=null", "algo.lr=nan", "seed=1.5", "run_dir=5"),
        *("steps=true", "algo.lr=false", "rollout.max_turns=true", "engine.max_batch=true"),
    ],
)
def test_what_a_setting_can_not_be_is_refused_with_its_name(word: str) -> None:
    with pytest.raises(ConfigError, match=word.partition("=")[0]):
        build(word)


@pytest.mark.slow
def test_no_value_of_a_setting_ends_in_anything_but_a_sentence() -> None:
    for name, _, _ in fields(RunConfig):
        if "NAME" in name or name in ("env", "tools", "rewards", "policies", "agents"):
            continue
        for value in (None, "", [], {}, float("nan"), float("inf"), -1, 10**30, "2024-01-01", ["a", None], {"a": 1}):
            with suppress(AgentRLError):
                validate(spread({"env": "calculator", name: value}), RunConfig)


def test_a_script_may_give_numbers_of_any_library_and_paths() -> None:
    given_ = {
        "env": "calculator",
        "steps": np.int64(3),
        "algo.lr": np.float32(0.5),
        "algo.betas": (np.float64(0.5), Fraction(1, 2)),
        "dry_run": np.bool_(True),
        "seed": torch.tensor(7),
        "run_dir": Path("runs/x"),
        "model": Path("some/folder"),
        "env.size": np.array(4),
    }
    config = validate(spread(given_), RunConfig)
    assert (config.steps, config.algo.lr, config.algo.betas, config.dry_run) == (3, 0.5, (0.5, 0.5), True)
    assert (config.seed, config.run_dir, config.model.name) == (7, "runs/x", "some/folder")
    assert config.env.kwargs == {"size": 4}


class Switched(agentrl.Env):
    """Has options without types."""

    def __init__(self, hints=False, label="no") -> None:  # type: ignore[no-untyped-def]
        self.hints, self.label = hints, label

    def tasks(self, split: str = "train") -> list[dict[str, int]]:
        return [{"n": 1}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "?"


def test_an_option_without_a_type_is_a_switch_where_its_default_is_one() -> None:
    env = make(Switched, **parse_words(["hints=yes", "label=yes"]))
    assert (env.hints, env.label) == (True, "yes")  # type: ignore[attr-defined]
    assert make(Switched, hints="off").hints is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"sure": "yes"}, [0]),
        ({"word": "no"}, [1]),
        ({"year": {"min": "1e3"}}, [0, 1]),
        ({"year": 2001}, [0]),
        ({"in": {"level": 2}}, [1]),
        ({"in": {"level": {"max": 1}}}, [0]),
        ({"code": "010"}, [1]),
    ],
)
def test_conditions_on_rows_mean_what_they_look_like(tmp_path: Path, where: Any, kept: list[int]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"sure": true, "word": "yes", "year": 2001, "in": {"level": 1}, "code": "8"}\n'
        '{"sure": false, "word": "no", "year": 1999, "in": {"level": 2}, "code": "010"}\n'
    )
    data = Dataset(str(file), where=where)
    assert [int(place[-1]) - 1 for place, _ in data.every_row()] == kept
    assert data.left_out["where"] == 2 - len(kept)


@pytest.mark.slow
def test_a_bound_that_is_no_number_is_refused_before_any_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"env\.where\.day={'min': '2024-01-01'}: the bounds must be numbers"):
        list(Dataset(str(tmp_path / "rows.jsonl"), where={"day": {"min": "2024-01-01"}}).every_row())
