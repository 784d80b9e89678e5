"""Terminal-Bench's earlier format: what is read of a task, and how its tests decide."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.builtin.swe.formats import terminal_bench
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.errors import AgentRLError, InvalidInput

pytestmark = pytest.mark.slow

TASK = """\
instruction: |-
  Write hello to hello.txt.
difficulty: easy
tags: [files]
parser_name: pytest
max_agent_timeout_sec: 120.0
max_test_timeout_sec: 40.0
"""
COMPOSE = "services:\n  client:\n    build: .\n"
TESTS = """\
import pathlib

def test_hello():
    assert pathlib.Path("hello.txt").read_text() == "hello"


def test_always():
    pass
"""


def write(folder: Path, **files: str) -> Path:
    given = {
        "task.yaml": TASK,
        "docker-compose.yaml": COMPOSE,
        "Dockerfile": "FROM x\nWORKDIR /srv\nCOPY . .\nWORKDIR /work/here/\n",
        "run-tests.sh": f"#!/bin/bash\n{sys.executable} -m pytest -p no:cacheprovider -rA $TEST_DIR/test_outputs.py\n",
        "tests/test_outputs.py": TESTS,
        "solution.sh": "echo -n hello > hello.txt\n",
    } | {name.replace("__", "/").replace("_yaml", ".yaml"): text for name, text in files.items()}
    for name, text in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_task_is_read_with_its_image_limits_and_tests(tmp_path: Path) -> None:
    task = terminal_bench.read(write(tmp_path / "say.hello"))
    assert (task.id, task.instruction, task.difficulty) == ("say.hello", "Write hello to hello.txt.", "easy")
    assert (task.image, task.workdir, task.log_format) == ("tb__say-hello__client", "/work/here", "reward")
    assert (task.timeout, task.agent_timeout, task.tags) == (40.0, 120.0, ("files",))
    assert set(task.tests) == {"test_outputs.py", "run-tests.sh", "test.sh"}
    assert "hello.txt" in task.solution_script
    assert SweTask.of(task.as_task()) == task
    older = write(tmp_path / "older", task_yaml="descriptions:\n  - key: base\n    description: Do it.\n")
    assert terminal_bench.read(older, "own/{id}:1").image == "own/older:1"
    assert terminal_bench.read(older).instruction == "Do it."


@pytest.mark.parametrize(("said", "reward"), [("hello", "1"), ("bye", "0"), (None, "0")])
def test_all_tests_of_the_summary_decide(tmp_path: Path, said: str | None, reward: str) -> None:
    """The script is run as in the sandbox, with this test's folders in place of the sandbox's."""
    task = terminal_bench.read(write(tmp_path / "hello"))
    places = {"/tests": tmp_path / "tests", "/logs/verifier": tmp_path / "logs", "/work/here": tmp_path / "here"}
    for folder in places.values():
        folder.mkdir()
    script = task.tests["test.sh"]
    for name, folder in places.items():
        script = script.replace(name, str(folder))
    for name, text in {**task.tests, "test.sh": script}.items():
        (tmp_path / "tests" / name).write_text(text)
    if said is not None:
        (tmp_path / "here" / "hello.txt").write_text(said)
    else:
        (tmp_path / "tests" / "run-tests.sh").write_text("exit 0\n")
    subprocess.run(["bash", tmp_path / "tests" / "test.sh"], check=True, timeout=100)
    assert (tmp_path / "logs" / "reward.txt").read_text().strip() == reward


def test_folders_are_known_by_their_files_and_what_is_not_supported_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "one")
    write(tmp_path / "tasks" / "two", **{"docker-compose_yaml": COMPOSE + "  database:\n    image: y\n"})
    write(tmp_path / "tasks" / "three", task_yaml=TASK.replace("pytest", "swebench"))
    for name in ("harbor", "swe"):
        folder = str(tmp_path / "tasks")
        env = agentrl.make(f"harbor:{folder}") if name == "harbor" else agentrl.make("swe", path=folder)
        assert [task.id for task in calls.tasks(env)] == ["one"]
    with pytest.raises(InvalidInput, match="the services client, database: allowed: client alone"):
        terminal_bench.read(tmp_path / "tasks" / "two")
    with pytest.raises(AgentRLError, match="parser_name = 'swebench': allowed: pytest"):
        terminal_bench.read_all(tmp_path / "tasks" / "three")
    with pytest.raises(InvalidInput, match="instruction is missing"):
        terminal_bench.read(write(tmp_path / "four", task_yaml="difficulty: easy"))
