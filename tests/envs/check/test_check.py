"""`check_env` finds violations of the contract, says how to fix them, and reports nothing else."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from rich.console import Console

import agentrl
from agentrl.checks import check_environment
from agentrl.envs.base import Env
from agentrl.envs.check import CheckProgress, Finding, Measured, Note, Scores, check_env
from agentrl.envs.check.monitor import LoopClock
from agentrl.envs.check.table import RULES
from agentrl.envs.data.samples import sample
from agentrl.errors import ConfigError, InvalidInput, UnknownName
from agentrl.tools.tool import Tool
from tests.envs.check.broken_envs import Basket, Till
from tests.envs.check.hanging_envs import HANGING
from tests.envs.check.honest_envs import HONEST

SOON = (1.0, 10.0, 60.0)
"""Seconds after which a call counts as hanging here; longer where a busy machine is late with one that ends."""
QUICK: dict[str, Any] = {"tasks": 1, "scored": 6, "seconds": 60.0, "hostile": 1}
HANGS = """
import sys, time, agentrl

class Hanging(agentrl.Env):
    def tasks(self, split="train"):
        print("it hangs", file=sys.stderr, flush=True)
        time.sleep(1000)
"""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "check.md"


def said(env: Callable[..., Env], **settings: Any) -> str:
    return "\n".join(map(str, check_env(env, **settings)))


@pytest.mark.slow
def test_a_correct_environment_has_no_findings():
    assert check_env(Basket, **QUICK) == []
    assert agentrl.check_env(Till()) == []


@pytest.mark.slow
async def test_it_can_be_called_from_a_running_event_loop():
    assert check_env(Till, **QUICK) == []
    with pytest.raises(UnknownName):
        check_env("no such")


def test_the_command_forks_before_its_display_has_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork copies locks that a thread holds, and nobody releases them there: a check hung."""
    before, while_forked = set(threading.enumerate()), list[threading.Thread]()

    def check(*_: Any, report: Callable[[object], None], **__: Any) -> list[Finding]:
        while_forked.extend(threading.enumerate())
        report(CheckProgress("make", "an instance can be made"))
        return []

    monkeypatch.setattr("agentrl.envs.check.check_env", check)
    assert check_environment("castle", {}, Console(file=StringIO()))
    assert while_forked
    assert before.issuperset(while_forked)


@pytest.mark.slow
def test_a_built_in_environment_has_no_findings():
    assert check_env("castle", scored=12, seconds=60.0) == []


@pytest.mark.parametrize("env", HONEST, ids=lambda env: env.__name__)
@pytest.mark.slow
def test_nothing_is_found_in_unusual_environments_that_keep_the_contract(env: type[Env]):
    assert said(env, **QUICK) == ""


class Stocked(Till):
    """Is made with its options alone, also in another process."""

    def __init__(self, items: int, seed: int) -> None:
        if (items, seed) != (3, 4):
            raise ValueError(f"made with {items} and {seed}")


@pytest.mark.slow
def test_options_reach_the_constructor():
    assert check_env(Stocked, **QUICK, items=3, options={"seed": 4}) == []
    with pytest.raises(ConfigError, match="made with 3 and 5"):
        check_env(Stocked, **QUICK, items=3, options={"seed": 5})
    with pytest.raises(ConfigError, match=r"env\.lock = 1"):
        check_env("castle", lock=1)
    with pytest.raises(InvalidInput, match="tasks = 0"):
        check_env("castle", tasks=0)


@pytest.mark.slow
def test_a_config_error_of_a_class_that_only_the_checked_file_has_is_raised_as_a_config_error(tmp_path: Path):
    """It was pickled by a name that the supervising process could not import."""
    file = tmp_path / "own.py"
    error = "import agentrl\nclass Own(agentrl.errors.ConfigError): ...\n"
    file.write_text(f"{error}class E(agentrl.Env):\n    def __init__(self): raise Own('size = 3: must be even')\n")
    with pytest.raises(ConfigError, match="size = 3: must be even"):
        check_env(str(file))


@pytest.mark.slow
def test_what_an_environment_prints_and_options_that_are_no_json_make_no_other_process_differ(tmp_path: Path):
    """The decoder's and the encoder's errors were reported as findings about the environment's tasks."""
    (tmp_path / "loud.py").write_text(
        "import atexit\nfrom tests.envs.check.broken_envs import Till\natexit.register(print, 'goodbye')\n"
        "class Loud(Till):\n    def __init__(self, path=None):\n        super().__init__()\n"
    )
    assert check_env(f"{tmp_path / 'loud.py'}:Loud", **QUICK, path=tmp_path) == []
    assert check_env(f"{tmp_path / 'loud.py'}:Loud", **QUICK) == []


@pytest.mark.parametrize(("env", "words"), HANGING, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.slow
def test_a_call_that_hangs_or_ends_the_process_is_reported_with_its_line(env: type[Env], words: str):
    assert any(re.search(words, said(env, limit=limit)) for limit in SOON)


@pytest.mark.slow
def test_all_processes_that_a_checked_environment_started_are_killed(tmp_path: Path):
    """A grandchild in a process session of its own, too: a hanging environment's server was never ended."""
    note = tmp_path / "pid"

    class Serving(Till):
        def reset(self, task: Any, *, seed: int | None = None) -> Any:
            note.write_text(str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid))
            time.sleep(1000)

    assert any("hang: Serving.reset" in said(Serving, limit=limit) and note.exists() for limit in SOON)
    deadline = time.monotonic() + 30
    while running(int(note.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(int(note.read_text()))


@pytest.mark.slow
def test_where_a_check_is_killed_nothing_of_it_keeps_its_output_open(tmp_path: Path) -> None:
    """The process in which the environment hung went on for good, and so did whoever read the output to its end."""
    (tmp_path / "hanging.py").write_text(HANGS)
    command = [sys.executable, "-m", "agentrl", "check", f"env={tmp_path / 'hanging.py'}:Hanging"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any("it hangs" in line for line in iter(process.stdout.readline, ""))
        process.kill()
        process.communicate(timeout=120)


@pytest.mark.slow
def test_an_environment_in_a_folder_of_any_name_is_compared_with_another_process(tmp_path: Path) -> None:
    """Another locale could not name the path, which was told as the environment's dependence on it."""
    file, events = tmp_path / "été mappe" / "oracle.py", list[object]()
    file.parent.mkdir()
    file.write_text((PAGE.parents[1] / "README.md").read_text().partition("```python\n")[2].partition("```")[0])
    assert check_env(f"{file}:Oracle", report=events.append, **QUICK) == []
    assert any("another locale was not tried" in str(event) for event in events if isinstance(event, Note))


def running(pid: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.slow
def test_the_checking_process_is_not_changed():
    class Changing(Till):
        def reset(self, task: Any, *, seed: int | None = None) -> Any:
            os.chdir("/")
            os.environ["TILL_ITEM"] = "tea"
            return super().reset(task)

    here = Path.cwd()
    check_env(Changing, **QUICK)
    assert Path.cwd() == here
    assert "TILL_ITEM" not in os.environ


@pytest.mark.slow
def test_progress_is_reported_while_a_check_runs():
    class Waiting(Till):
        def reset(self, task: Any, *, seed: int | None = None) -> Any:
            time.sleep(1000)

    for limit in SOON:
        events: list[Finding | Measured | Note | CheckProgress | Scores] = []
        check_env(Waiting, limit=limit, report=events.append)
        doing = [event for event in events if isinstance(event, CheckProgress) and "Waiting.reset" in event.doing]
        if doing:
            break
    assert doing
    assert doing[-1].seconds > 0
    assert [event.rule for event in events if isinstance(event, Finding)] == ["hang"]


@pytest.mark.slow
def test_what_report_raises_ends_the_check_and_its_process():
    def report(event: object) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        check_env(Till, report=report)
    assert [each for each in multiprocessing.active_children() if each.name == "agentrl-check"] == []


@pytest.mark.slow
def test_a_turn_and_an_instance_are_measured():
    events: list[Finding | Measured | Note | CheckProgress | Scores] = []

    class Large(Till):
        def __init__(self) -> None:
            self.table = bytearray(2**20)

    check_env(Large, **QUICK, report=events.append)
    (measured,) = [event for event in events if isinstance(event, Measured)]
    assert measured.turn_ms > 0
    assert 2**20 < measured.instance_bytes < 2**21


@pytest.mark.slow
def test_one_bug_is_reported_once():
    def fails(self: Env, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("colour")

    assert said(type("Broken", (Till,), {"reset": fails})).count("Broken.reset raised") == 1


@pytest.mark.slow
def test_where_no_episode_can_be_played_the_rules_about_episodes_are_not_said_to_hold():
    """Without Docker, env=terminal failed one rule and was said to keep forty, "episodes end" among them."""

    def fails(self: Env, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("colour")

    held: list[str] = []
    found = check_env(
        type("Broken", (Till,), {"reset": fails}),
        report=lambda event: held.append(event.rule) if isinstance(event, CheckProgress) and event.done else None,
    )
    assert [finding.rule for finding in found] == ["failures", "failures"]
    assert re.search(r"no episode could be played; the check ended here, \d\d of \d\d rules", found[-1].message)
    assert "endings" not in held


@pytest.mark.slow
def test_a_busy_machine_makes_no_call_look_slow():
    """The time in which a thread ran or slept counts; the time in which it waited for a core does not."""
    clock = LoopClock()
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(4 * cores)]
    try:
        time.sleep(0.3)
        moment, wall, ran = clock.now(), time.perf_counter(), time.thread_time()
        while time.thread_time() - ran < 0.2:
            pass
        held, wall = clock.since(moment), time.perf_counter() - wall
        assert held < wall
        moment = clock.now()
        time.sleep(0.1)
        slept = clock.since(moment)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert 0.1 < held < 0.2 + (wall - 0.2) / 2 + 0.05  # the kernel's two counts differ a little between cores
    if clock.sees_sleep:
        assert slept > 0.05


def test_the_page_lists_every_rule_and_what_it_proves():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {rule.name: rule.proves for rule in RULES}


class Kind(Enum):
    A = "a"


class Branch(BaseModel):
    kind: Kind
    size: Annotated[int, Field(gt=3)]
    ratio: Annotated[float, Field(le=-1)]
    children: list[Branch] = []


def use(
    branch: Branch,
    pair: tuple[int, str],
    choice: Literal["x", "y"],
    flag: bool,
    few: Annotated[list[int], Field(min_length=2)],
    maybe: str | None,
    table: dict[str, int],
    anything: Any,
    count: Annotated[int, Field(ge=5)] = 7,
) -> None:
    """Use."""


@pytest.mark.slow
def test_samples_fit_the_schemas_that_python_types_make():
    tool = Tool.of(use)
    checked = tool.check(sample(tool.parameters))
    assert checked["branch"].size > 3
    assert len(checked["few"]) == 2
    assert "count" not in checked
