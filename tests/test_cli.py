"""The command line as a user meets it: its own process, its words, its exit codes."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel
from setuptools.config.pyprojecttoml import read_configuration  # type: ignore[import-untyped]

from agentrl.config import RunConfig
from agentrl.errors import missing_extra
from agentrl.models.tiny import build, render
from agentrl.overrides import fields
from agentrl.rollout.workers.serve_process import ServeConfig
from agentrl.sessions.store.store import Store
from benchmarks import startup
from tests.command_line import run_agentrl

ENDS = {"completed": 40}


def agentrl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=cwd, check=False)


def test_a_package_whose_loading_was_broken_off_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while torch was loaded ended with "'torch' is not installed"."""
    assert "'json' is there, and was not loaded to its end, as after Ctrl-C" in str(missing_extra("json", "train"))
    monkeypatch.setitem(sys.modules, "json", None)
    for absent in ("json", "no_such_package", "torch.no_such_module"):
        assert f"'{absent}' is not installed; it comes with the extra 'train'" in str(missing_extra(absent, "train"))


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "env=calculator", "trainer.lr=1"], ["'trainer.lr'", "did you mean 'algo.lr'"]),
        (["train", "env=calclator"], ["'calclator'", "did you mean 'calculator'", "castle"]),
        (["train", "env=calculator", "rolout.n=2"], ["'rolout'", "'rollout'"]),
        (["train", "env=calculator", "env.max_step=2"], ["max_step", "max_steps"]),
        (["train", "env=calculator", "algo=grop"], ["'grop'", "'grpo'"]),
        (["train", "env=calculator", "model=smolm2-135m"], ["smolm2-135m", "smollm2-135m"]),
        (["train", "resume=nowhere"], ["nowhere"]),
        (["train", "-c", "nowhere.yaml"], ["nowhere.yaml"]),
        (["eval", "env=calculator", "policy=expert", "eval.split=evall"], ["'evall'", "'eval'", "train, eval, demo"]),
        (["eval", "env=calculator", "policy=noop", "steps=3", "algo.lr=1"], ["steps is for training", "algo.lr"]),
        (["eval", "env=calculator", "rollout.group_size=4"], ["rollout.group_size is for training", "eval.n"]),
        (["eval", "env=calculator", "policy=expert", "model=tiny"], ["model is for models", "policy=expert"]),
        (["eval", "env=calculator", "policy=smollm2-135m", "model=tiny"], ["names a model", "policy=smollm2-135m"]),
        (["eval", "env=calculator", "policy=expret"], ["unknown policy 'expret'", "did you mean 'expert'", "URL"]),
        (["train", "env=calculator", "resume="], ["resume='' is empty", "leave it out"]),
        (["train", "env=calculator", "lora.adapter="], ["lora", "adapter='' is empty"]),
        (["train", "env=calculator", "run_dir=7"], ["run_dir=7", "string", "quoted"]),
        (["reject", "env=calculator", "policy=expert", "out=/proc/none/b.jsonl"], ["out=/proc/none", "can't write"]),
        (["serve-training", "model=tiny", "resume="], ["resume='' is empty"]),
        (["train", "stepz=3"], ["'env' is required", "'stepz'", "did you mean 'steps'"]),
        (["train", "env=calculator", "shaping.scale_rewards=true"], ["'shaping'", "did you mean 'algo.shaping'"]),
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
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run_agentrl(*words)
    said = capsys.readouterr().err
    assert code == 2, said
    assert all(part in said for part in says), said
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_the_packages_and_the_changelogs(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_agentrl("--version")
    root = Path(__file__).parents[1]
    project = read_configuration(root / "pyproject.toml")["project"]
    _, _, newest = (root / "CHANGELOG.md").read_text().partition("\n## ")
    assert code == 0
    first, machine, packages = capsys.readouterr().out.splitlines()
    assert first == f"agentrl {project['version']}" == f"agentrl {newest.split()[0]}"
    assert platform.python_version() in machine
    assert f"torch {metadata.version('torch')}" in packages.split(", ")


WRONG_SETTINGS = ("algo.lrr=1", "env.lrr=1", "model=nothere")


@pytest.mark.slow
def test_help_loads_no_settings_and_no_event_loop_and_a_wrong_word_and_an_evaluation_of_an_expert_no_torch(
    tmp_path: Path,
) -> None:
    """Each takes longer to load than the command takes to answer."""
    words = [("--help", ["0"]), ("trian", ["2"]), ("train env=calculatr", ["2", "agentrl.config"])]
    words += [(f"train env=calculator {wrong}", ["2", "asyncio", "agentrl.config"]) for wrong in WRONG_SETTINGS]
    checked = ["0", "asyncio", "agentrl.config", "agentrl.train.plan.preflight"]
    words += [("eval env=calculator policy=noop eval.tasks=1 run_dir=a", checked)]
    lines = [line for line, _ in words]
    code = (
        "import sys\n"
        "from agentrl.cli import main\n"
        f"for line in {lines}:\n"
        "    sys.argv = ['agentrl', *line.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as ended:\n"
        f"        loaded = [name for name in {[*checked[1:], 'torch']} if name in sys.modules]\n"
        "        print('ended', ended.code or 0, *loaded)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    ended = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == [expected for _, expected in words]


@pytest.mark.slow
def test_what_a_command_costs_is_printed_beside_the_baselines_and_a_wrong_end_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {startup.BASE: startup.COMMANDS[startup.BASE], "import torch": ([sys.executable, "-c", "import json"], 0)}
    monkeypatch.setattr(startup, "COMMANDS", few | {"agentrl trian": ([*startup.AGENTRL, "trian"], 2)})
    startup.commands(1)
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(startup.COMMANDS)
    with pytest.raises(SystemExit, match="ended with 2, not 0"):
        startup.cpu_seconds([*startup.AGENTRL, "trian"], 0)


@pytest.mark.slow
def test_settings_are_read_without_what_starts_processes_or_reads_models() -> None:
    code = (
        "import sys\n"
        "from agentrl.config import RunConfig\n"
        "from agentrl.overrides import validate\n"
        "validate({'env': 'calculator', 'model': 'tiny'}, RunConfig)\n"
        "print(*(name for name in ('agentrl.cluster', 'agentrl.models', 'torch') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_ctrl_c_while_the_command_line_is_loaded_ends_it_without_a_traceback(tmp_path: Path) -> None:
    interrupting = tmp_path / "interrupting.py"
    interrupting.write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'agentrl.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from agentrl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, str(interrupting)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--version"], ["train", "--help"], ["envs", "nothing_of_that_name"]])
def test_a_command_whose_output_nothing_reads_ends_silently_as_sigpipe_ends_one(words: list[str]) -> None:
    """`agentrl envs | head -1` ended with 1, or in a traceback."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "agentrl", *words]
        errors = write if "envs" in words else subprocess.PIPE  # agentrl … 2>&1 | head -1
        ended = subprocess.run(command, stdout=write, stderr=errors, check=False, timeout=120)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr or b"") == (128 + signal.SIGPIPE, b"")


@pytest.mark.slow
def test_a_command_that_can_not_write_its_output_says_so() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "agentrl", "--version"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (1, "error: can't write to standard output: No space left on device\n")


@pytest.mark.slow
def test_a_mistake_shows_no_traceback(tmp_path: Path) -> None:
    done = agentrl("train", "env=calclator", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'calculator'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "config"), [("train", RunConfig), ("eval", RunConfig), ("serve", ServeConfig)])
@pytest.mark.slow
def test_help_lists_every_setting_with_what_it_is(command: str, config: type[BaseModel]) -> None:
    text = agentrl(command, "all", "--help").stdout
    assert [name for name, _, _ in fields(config) if name not in text] == []


@pytest.mark.slow
def test_help_is_short_and_lists_a_section_that_the_line_names() -> None:
    short, section = agentrl("train", "--help").stdout, agentrl("train", "algo", "--help").stdout
    assert len(short.splitlines()) < 150
    assert [name in short for name in ("run_dir", "algo ", "algo.lr")] == [True, True, False]
    assert [name in section for name in ("algo.lr", "run_dir")] == [True, False]
    assert "did you mean 'algo'" in agentrl("train", "algoo", "--help").stderr


@pytest.mark.slow
def test_help_lists_the_settings_of_the_plug_ins_on_the_line_and_plugins_lists_them_all() -> None:
    text = agentrl("train", "trainer=megatron", "rollout.sampler=difficulty", "all", "--help").stdout
    assert "tensor_parallel" in text
    assert "rollout.sampler.candidates" in text
    assert "rollout.sampler=difficulty" in text
    assert "engine=local" in text
    assert "tensor_parallel" not in agentrl("train", "all", "--help").stdout
    text = agentrl("plugins").stdout
    named = (
        "engine=sglang",
        "trainer=megatron",
        "algo=ppo",
        "start_timeout",
        "qwen3_moe",
        "llama-3",
        "rollout.filter=signal",
    )
    assert [name for name in named if name not in text] == []


@pytest.mark.slow
def test_envs_lists_the_built_in_worlds_and_their_options() -> None:
    text = agentrl("envs").stdout
    assert all(name in text for name in ("calculator", "castle", "gsm8k", "env.max_steps"))
    scores = [line.split("scores:")[1].strip(" │") for line in text.splitlines() if "scores:" in line]
    assert "expert 1.00, random 0.00, silent 0.00" in scores
    assert len(scores) >= 10, "every environment that needs nothing is played"


@pytest.mark.slow
def test_envs_of_one_name_shows_what_scripted_agents_get() -> None:
    text = agentrl("envs", "env=text_adventure", "n=2").stdout
    rows = {line.split()[1]: line.split()[3] for line in text.splitlines() if line.count("│") == 6}
    assert (rows["expert"], rows["silent"]) == ("1.000", "0.000")
    assert float(rows["random"]) < 1
    assert "n=TASKS" in agentrl("envs", "env=castle", "n=0").stderr


@pytest.mark.slow
def test_check_says_that_a_good_environment_keeps_its_contract_and_what_a_bad_one_breaks(tmp_path: Path) -> None:
    good = agentrl("check", "env=calculator", "env.max_steps=2", "env.seed=3", "tasks=1", "seed=1", "limit=300")
    assert (good.returncode, "keeps" in good.stdout) == (0, True)
    assert "✓ determinism: the same task and seed give the same episode" in good.stdout
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
    assert "✗ determinism: task 'train-0', entry 0: the same seed gave first" in bad.stdout
    for words, complaint in (
        (["env=calculator", "task=3"], "did you mean 'tasks'?"),
        (["env=calculator", "tasks=few"], "tasks = 'few': must be a whole number"),
        (["renderer=tiny", "limit=3"], "check renderer=… takes no limit"),
    ):
        assert complaint in agentrl("check", *words).stderr


@pytest.mark.parametrize(("policy", "mean"), [("expert", "mean 1.000"), ("noop", "mean 0.000")])
@pytest.mark.slow
def test_scripted_policies_are_evaluated_without_a_model_and_leave_a_folder(
    policy: str, mean: str, tmp_path: Path
) -> None:
    done = agentrl("eval", "env=calculator", f"policy={policy}", "eval.tasks=20", "eval.n=2", cwd=tmp_path)
    assert mean in done.stdout, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("eval-calculator-")
    assert {path.name for path in folder.iterdir()} >= {"config.yaml", "result.json", "sessions.db", "transcripts"}
    result = json.loads((folder / "result.json").read_text())
    assert (result["policy"], result["split"], result["generated"], result["ends"]) == (policy, "eval", 40, ENDS)
    with Store(folder / "sessions.db") as store:
        assert len(store.ids()) == 40
    assert "pass@2" in done.stdout
    assert "95% CI" in done.stdout


@pytest.mark.slow
def test_serve_answers_from_a_fleet_until_it_is_terminated(tmp_path: Path) -> None:
    build(tmp_path / "model", [render([{"role": "user", "content": "What is 2 + 2?"}])])
    command = [sys.executable, "-u", "-m", "agentrl", "serve", "model=model", "port=0", "fleet.engines=2"]
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


@pytest.mark.slow
def test_a_file_that_can_not_be_imported_is_a_finding_of_the_check_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import agentrl\nclass E(agentrl.Env:\n")
    found = agentrl("check", f"env={tmp_path / 'broken.py'}")
    assert found.returncode == 1
    assert "SyntaxError" in found.stdout
    assert "Traceback" not in found.stdout + found.stderr
