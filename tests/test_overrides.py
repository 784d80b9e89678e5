from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentrl.common.imports import load
from agentrl.config import RunConfig
from agentrl.config.sections import named_folder
from agentrl.errors import ConfigError
from agentrl.overrides import fields, merge, merge_settings, parse_words, read_yaml, spread, validate


def build(*words: str) -> RunConfig:
    return validate(merge_settings(words), RunConfig)


def complaint(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        build(*words)
    return str(caught.value)


def test_words_become_typed_values_and_env_keys_go_to_the_environment() -> None:
    config = build("env=gsm8k", "env.path=a.jsonl", "algo.lr=1e-6", "algo=rloo", "rollout.group_size=4", "steps=3")
    assert (config.env.name, config.env.kwargs) == ("gsm8k", {"path": "a.jsonl"})
    assert (config.algo.name, config.algo.lr, config.rollout.group_size, config.steps) == ("rloo", 1e-6, 4, 3)


def test_a_setting_is_known_by_its_earlier_name_and_the_log_says_the_new_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agentrl.config.sections._told", set())
    (tmp_path / "run.yaml").write_text("env: x\nrollout: {replay_age: 3}\n")

    config = validate(merge_settings(["rollout.replay=0.5"], tmp_path / "run.yaml"), RunConfig)
    experts = build("env=x", "trainer=megatron", "trainer.moe.replay=forward").trainer

    assert (config.rollout.reuse, config.rollout.reuse_age) == (0.5, 3)
    assert experts.model_dump()["moe"]["routing_replay"] == "forward"
    assert "the setting replay is called reuse now" in caplog.text
    assert "replay" not in config.rollout.model_dump()


def test_a_setting_by_both_of_its_names_is_refused() -> None:
    assert "replay is called reuse now" in complaint("env=x", "rollout.replay=0.5", "rollout.reuse=0.2")


@pytest.mark.parametrize("words", [("engine=local", "engine.max_batch=8"), ("engine.max_batch=8", "engine=local")])
def test_a_sections_name_and_fields_may_come_in_any_order(words: tuple[str, ...]) -> None:
    engine = build("env=x", *words).engine
    assert (engine.name, engine.max_batch) == ("local", 8)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("lr=3", ["'lr'", "3", "algo.lr"]),
        ("rolout.n=3", ["'rolout'", "'rollout'"]),
        ("rollout.group_sise=1", ["'rollout.group_sise'", "'rollout.group_size'", "rollout.groups_per_step"]),
        ("rollout.group_size=zero", ["rollout.group_size='zero'", "integer"]),
        ("rollout.group_size=0", ["rollout.group_size=0", "greater than 0"]),
        ("trainer.dtype=int8", ["trainer.dtype='int8'", "'float32'", "'bfloat16'"]),
        ("rollout=3", ["rollout=3", "rollout.groups_per_step"]),
        ("rollout.tool_timeout=200", ["rollout", "tool_timeout < turn_timeout < timeout", "200"]),
        ("rollout.group_size=1", ["rollout.group_size=1", "grpo", ">=2"]),
        ("rollout.temperature=0", ["rollout.temperature=0"]),
        ("steps", ["'steps'", "key=value"]),
        ("trainer.freeze=[a.*,b.?.*]", ["trainer.freeze='[a.*,b.?.*]'", "list of values", '["layers.?", "head.*"]']),
    ],
)
def test_a_wrong_setting_is_answered_with_the_key_the_value_and_what_is_allowed(word: str, says: list[str]) -> None:
    text = complaint("env=x", word)
    assert all(part in text for part in says), text


def test_the_environment_is_found_by_name() -> None:
    assert "'env'" in complaint("steps=3")
    assert "agentrl envs" in complaint("steps=3")


def test_several_mistakes_are_reported_at_once() -> None:
    text = complaint("env=x", "rollout.group_size=zero", "steps=-1")
    assert "rollout.group_size" in text
    assert "steps" in text


def test_words_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: {name: shop, size: 3}\nalgo.lr: 0.5\nsteps: 7\n")
    config = validate(merge_settings(["steps=9", "env.size=4"], file), RunConfig)
    assert (config.env.name, config.env.kwargs, config.algo.lr, config.steps) == ("shop", {"size": 4}, 0.5, 9)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"- a\n- b\n", "not a list"),
        (b"a: [", "not YAML"),
        (b"just words", "not a str"),
        (b"? [a, b]\n: 1\n", "not YAML"),
        (b"", "empty"),
        (b"# steps: 3\n", "empty, or all of it is comments"),
        (b"\xff\xfea\0:\0", "no text in UTF-8"),
        (b"\x7fELF\0", "not YAML"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_by_name(tmp_path: Path, text: bytes, why: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=rf"bad\.yaml.*{why}"):
        read_yaml(file)


@pytest.mark.parametrize(("file", "why"), [(".", "directory"), ("/proc/self/mem", "error")])
def test_what_can_not_be_read_as_a_file_of_settings_is_refused_by_name(file: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?i){file!r}.*{why}"):
        read_yaml(file)


def test_a_merged_mapping_may_be_overridden_and_merged_again(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("a: &a {lr: 1, n: 2}\nb: {c: &c {<<: *a, lr: 3}}\nd: {<<: *c}\n")
    assert read_yaml(file)["d"] == {"lr": 3, "n": 2}


def test_a_missing_file_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_yaml("nowhere.yaml")


def test_a_saved_configuration_reads_back_as_itself() -> None:
    config = build("env=shop", "env.size=4", "rollout.group_size=3", "algo.betas=[0.8, 0.99]")
    saved = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    assert validate(saved, RunConfig) == config


def test_every_setting_has_a_line_that_says_what_it_is() -> None:
    assert [name for name, _, doc in fields() if not doc] == []


names = st.text("abc", min_size=1, max_size=2)
trees = st.recursive(st.integers(), lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=8)


@pytest.mark.slow
@given(st.dictionaries(names, trees, max_size=3), st.dictionaries(names, trees, max_size=3))
def test_merging_keeps_every_leaf_of_the_higher_tree(low: dict[str, object], high: dict[str, object]) -> None:
    def leaves(tree: object, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
        if not isinstance(tree, dict):
            return {prefix: tree}
        return {k: v for key, below in tree.items() for k, v in leaves(below, (*prefix, key)).items()}

    merged = leaves(merge(low, high))
    for path, value in leaves(high).items():
        assert merged.get(path, merged.get((*path, "name"))) == value


def test_a_tilde_is_the_users_folder_before_and_after_settings_are_validated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run went into a folder named `~`, beside the shell's: bash expands it in words alone, not in a file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "world.py").write_text("import agentrl\nclass World(agentrl.Env): ...\n")

    assert build("env=x", "run_dir=~/run", "lora.adapter=~/a").run_dir == f"{tmp_path}/run"
    assert named_folder({"resume": "~/run"}, "resume") == f"{tmp_path}/run"
    assert load("~/world.py:World", "env").__name__ == "World"


def test_dotted_keys_spread_into_a_tree() -> None:
    assert spread({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert spread({"a.b": 1, "a": {"c": 2}}) == spread({"a": {"c": 2}, "a.b": 1}) == {"a": {"b": 1, "c": 2}}
    with pytest.raises(ConfigError, match=r"'a\.b' is given twice"):  # a section replaced what stood above it
        spread({"a.b": 1, "a": {"b": 2}})


@pytest.mark.slow
def test_a_placeholder_is_text() -> None:
    """YAML takes {folder} for a mapping whose value is missing."""
    assert parse_words(["tools.files.cwd={folder}"]) == {"tools": {"files": {"cwd": "{folder}"}}}
    assert parse_words(["a={b: 1}", "c={}", "d={e: null}"]) == {"a": {"b": 1}, "c": {}, "d": {"e": None}}
