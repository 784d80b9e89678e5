"""The command line as a user meets it: its own process, its words, its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel

from agentrl.cli import main
from agentrl.config import RunConfig
from agentrl.models.tiny import build, render
from agentrl.overrides import fields
from agentrl.rollout.serving import ServeConfig


def agentrl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "env=calclator"], ["'calclator'", "did you mean 'calculator'", "castle"]),
        (["train", "env=calculator", "rolout.n=2"], ["'rolout'", "'rollout'"]),
        (["train", "env=calculator", "env.max_step=2"], ["max_step", "max_steps"]),
        (["train", "env=calculator", "algo=grop"], ["'grop'", "'grpo'"]),
        (["train", "env=calculator", "model=smolm2-135m"], ["smolm2-135m", "smollm2-135m"]),
        (["train", "resume=nowhere"], ["nowhere"]),
        (["train", "-c", "nowhere.yaml"], ["nowhere.yaml"]),
        (["check", "envv=calculator"], ["'envv'", "'env'"]),
        (["models", "get", "smollm"], ["'smollm'", "smollm2-135m"]),
        (["serve", "prot=80", "model=tiny"], ["'prot'", "'port'", "admin_key"]),
        (["serve", "fleet.engine=2"], ["'model' is required", "'fleet.engine'", "'fleet.engines'"]),
        (["bench", "forrest"], ["'forrest'", "'forest'"]),
        (["swe", "generate", "nowhere", "--out", "tasks"], ["package", "'nowhere'", "is no folder"]),
        (["swe", "generate", ".", "--out", "tasks"], ["package", "has no tests", "test_*.py"]),
        (["swe", "generate", ".", "--out", "tasks", "--kind", "typo"], ["--kind", "'typo'", "boundary"]),
        (["swe", "generate", ".", "--out", "tasks", "--count", "0"], ["--count", "1"]),
    ],
)
def test_a_mistake_ends_with_code_2_and_a_sentence(
    words: list[str],
    says: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agentrl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert all(part in said for part in says), said
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_shows_no_traceback(tmp_path: Path) -> None:
    done = agentrl("train", "env=calclator", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'calculator'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "config"), [("train", RunConfig), ("eval", RunConfig), ("serve", ServeConfig)])
def test_help_lists_every_setting_with_what_it_is(command: str, config: type[BaseModel]) -> None:
    text = agentrl(command, "--help").stdout
    assert [name for name, _, _ in fields(config) if name not in text] == []


def test_envs_lists_the_built_in_worlds_and_their_options() -> None:
    text = agentrl("envs").stdout
    assert all(name in text for name in ("calculator", "castle", "gsm8k", "env.max_steps"))


def test_check_says_that_a_good_environment_keeps_its_contract_and_what_a_bad_one_breaks(tmp_path: Path) -> None:
    good = agentrl("check", "env=calculator", "env.max_steps=2")
    assert (good.returncode, "keeps" in good.stdout) == (0, True)
    (tmp_path / "bad.py").write_text(
        "import random, agentrl\n"
        "class Bad(agentrl.Env):\n"
        "    def tasks(self, split='train'): return [{'a': 1}]\n"
        "    def reset(self, task, *, seed=None): return str(random.random())\n"
        "    @agentrl.reward\n"
        "    def r(self, session): return 0.5\n"
    )
    bad = agentrl("check", "env=bad.py:Bad", cwd=tmp_path)
    assert bad.returncode == 1
    assert "determinism" in bad.stdout


@pytest.mark.parametrize(("policy", "mean"), [("expert", "mean 1.000"), ("noop", "mean 0.000")])
def test_scripted_policies_are_evaluated_without_a_model(policy: str, mean: str) -> None:
    done = agentrl("eval", "env=calculator", f"policy={policy}", "eval.tasks=20", "eval.n=2")
    assert mean in done.stdout, done.stderr
    assert "pass@2" in done.stdout
    assert "95% CI" in done.stdout


@pytest.mark.slow
def test_serve_answers_from_a_fleet_until_it_is_terminated(tmp_path: Path) -> None:
    build(tmp_path / "model", [render([{"role": "user", "content": "What is 2 + 2?"}])])
    command = [sys.executable, "-u", "-m", "agentrl.cli", "serve", "model=model", "port=0", "fleet.engines=2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.findall(r"http://\S+?:\d+", server.stdout.readline())[0]
            asked = {"model": "model", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 4}
            session = httpx.post(f"{url}/sessions", json={}, timeout=60).json()
            key = {"Authorization": f"Bearer {session['api_key']}"}
            answer = httpx.post(f"{session['base_url']}/chat/completions", json=asked, headers=key, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 4
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
