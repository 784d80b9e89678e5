"""Planted secrets: nothing that a run writes, prints or passes on has one, and a resumed run asks for them by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cluster.server import ServerProcess
from agentrl.config import RunConfig
from agentrl.config.secrets import HIDDEN, is_secret, list_hidden, without_secrets
from agentrl.errors import ConfigError, EngineError
from agentrl.overrides import merge_settings, validate
from agentrl.train.driver.setup import complete
from agentrl.train.record.run_folder import RunFolder
from tests.command_line import run_agentrl

PLANTED = "sk-planted-4711"
WORDS = (
    "env=planted.py:Planted",
    f"env.hf_token={PLANTED}",
    f"env.headers={{Authorization: Bearer {PLANTED}}}",
    f"env.url=http://user:{PLANTED}@host/",
    "metrics=[tensorboard,planted.py:Printed]",
)
SMALL = (
    *("warm_start.steps=0", "steps=1", "rollout.groups_per_step=1", "rollout.group_size=2", "rollout.turn_tokens=4"),
    *("eval.tasks=1", "weights.probe_tokens=0", "weights.start_tokens=0", "run_dir=run"),
)
PROGRAM = """
import agentrl
from agentrl.train.trackers import Tracker

class Planted(agentrl.Env):
    max_turns = 1
    def __init__(self, hf_token, headers, url):
        assert "sk-planted" in hf_token and "sk-planted" in headers["Authorization"] and "sk-planted" in url
    def tasks(self, split="train"): return [{"a": 1}, {"a": 2}]
    def reset(self, task, *, seed=None): return "What is it?"
    @agentrl.reward
    def right(self, session): return float(len(session.nodes[-1].token_ids) % 2)

class Printed(Tracker):
    def __init__(self, about): open(about.folder / "printed.txt", "w").write(repr(about))
    def log(self, step, numbers): pass
    def close(self): pass
"""


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
def test_a_run_uses_its_secrets_and_leaves_them_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """config.yaml had engine.api_key as it was given."""
    pytest.importorskip("torch")
    monkeypatch.setenv("PLANTED_API_KEY", PLANTED)
    (tmp_path / "planted.py").write_text(PROGRAM)

    def agentrl(*words: str) -> tuple[Any, str]:
        code, said = run_agentrl(*words), capfd.readouterr()
        return code, said.out + said.err

    told = [agentrl("train", *WORDS, *SMALL), agentrl("report", "run"), agentrl("top", "run")]
    assert [code for code, _ in told] == [0, 0, 0], told
    told.append(agentrl("train", "resume=run", "steps=2"))
    assert told[-1][0] == 2
    assert "env.hf_token=… env.headers.Authorization=… env.url=…" in told[-1][1]
    told.append(agentrl("train", "resume=run", "steps=2", *WORDS[1:4]))
    assert told[-1][0] == 0, told[-1][1]
    told.append(agentrl("train", "resume=run", f"engine.api_key=[{PLANTED}]"))
    assert told[-1][0] == 2
    assert [text for _, text in told if PLANTED in text] == []
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"config.yaml", "starts.jsonl", "sessions.db", "printed.txt", "report.html"} <= {path.name for path in files}
    assert [path for path in files if PLANTED.encode() in path.read_bytes()] == []


def test_a_folders_settings_lack_the_engines_key_and_a_resumption_asks_for_it(tmp_path: Path) -> None:
    words = ["env=calculator", "engine=sglang", "engine.url=http://host:1", f"engine.api_key={PLANTED}"]
    RunFolder.create(tmp_path / "run", validate(merge_settings(words), RunConfig)).close()
    assert PLANTED not in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(
        ConfigError, match=r"engine\.api_key: secrets are not kept .* give them again: engine\.api_key=…"
    ):
        complete(merge_settings([f"resume={tmp_path / 'run'}"]))
    again = complete(merge_settings([f"resume={tmp_path / 'run'}", f"engine.api_key={PLANTED}"]))
    assert getattr(again.engine, "api_key", None) == PLANTED


@pytest.mark.parametrize("word", [f"engine.api_key=[{PLANTED}]", f"api_key={PLANTED}", f"engine.admin_token={PLANTED}"])
def test_an_error_about_a_secret_setting_does_not_quote_it(word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        complete(merge_settings(["env=calculator", "engine=sglang", word]))
    assert word.partition("=")[0].rpartition(".")[2] in str(raised.value)
    assert PLANTED not in str(raised.value)


@pytest.mark.slow
def test_a_server_that_dies_is_quoted_without_its_key(tmp_path: Path) -> None:
    script = "import sys; print('args:', sys.argv); raise SystemExit(3)"
    server = ServerProcess("engine", [sys.executable, "-c", script, "--api-key", PLANTED], log=tmp_path / "log")
    server.wait(60)
    error = server.exit_error()
    server.end()
    assert isinstance(error, EngineError)
    assert "'--api-key', '(hidden)'" in str(error)
    assert PLANTED not in str(error)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("engine.api_key", "x", True),
        ("hf_token", "x", True),
        ("--api-key", "x", True),
        ("X-API-Key", "x", True),
        ("PGPASSWORD", "x", True),
        ("openaiApiKey", "x", True),
        ("Cookie", "x", True),
        ("compass", "x", False),
        ("client.secret", "x", True),
        ("url", "https://user:pass@host", False),
        ("url", "https://host:80/a@b", False),
        ("model.tokenizer", "x", False),
        ("rollout.turn_tokens", "8", False),
        ("token", 5, False),
        ("api_key", "", False),
        ("monkey", "x", False),
    ],
)
def test_a_setting_without_a_type_is_secret_by_its_name(name: str, value: Any, secret: bool) -> None:
    assert is_secret(name, value) is secret


LEAVES = st.one_of(st.none(), st.integers(), st.booleans(), st.text(max_size=5))
NAMES = st.sampled_from(["lr", "api_key", "password", "url", "token"])
BELOW = st.one_of(LEAVES, st.lists(LEAVES, max_size=2), st.dictionaries(NAMES, LEAVES, max_size=3))
TREES = st.dictionaries(NAMES, BELOW, max_size=4)


@pytest.mark.slow
@given(TREES)
def test_hiding_keeps_everything_else_as_it_is_and_names_what_it_hid(tree: dict[str, Any]) -> None:
    safe = without_secrets(tree)
    assert without_secrets(safe) == safe
    if not list(list_hidden(safe)) and HIDDEN not in str(safe):
        assert safe == tree
