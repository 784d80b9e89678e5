"""`agentrl init`: three questions, or options, make a project that trains."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config import RunConfig
from agentrl.envs.init.project import Project, ProjectKind, write_project
from agentrl.errors import ConfigError
from agentrl.overrides import merge_settings, parse_words
from agentrl.train.driver.setup import complete
from agentrl.train.plan.preflight import check_training
from tests.command_line import run_agentrl
from tests.envs.test_init import TRAIN

SETTINGS = [kind for kind in ProjectKind if kind is not ProjectKind.ENVIRONMENT]


def made(project: Project, folder: Path) -> RunConfig:
    """The configuration of a project that was written."""
    lines = write_project(project, folder)
    assert all(line.startswith("agentrl ") for line in lines[1:])
    return complete(merge_settings([], folder / project.name / "run.yaml"))


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_settings_of_an_example_pass_all_that_is_checked_before_a_run(kind: ProjectKind, tmp_path: Path) -> None:
    check_training(made(Project("first", kind), tmp_path))


def test_a_file_of_ones_own_and_further_settings_are_in_the_settings(tmp_path: Path) -> None:
    (file := tmp_path / "mine.csv").write_text("prompt,target\n" + "".join(f"Who is {n}?,N{n}\n" for n in range(40)))
    words = parse_words(["env.columns.question=prompt", "env.columns.answer=target", "steps=7"])
    config = made(Project("first", ProjectKind.QUESTIONS, str(file), "smollm2-135m", words), tmp_path)
    assert (config.env.kwargs["path"], config.env.kwargs["columns"]["question"]) == (str(file), "prompt")
    assert (config.model.name, config.steps) == ("smollm2-135m", 7)
    with pytest.raises(ConfigError, match=r"name the column: env\.columns"):
        write_project(Project("second", ProjectKind.QUESTIONS, str(file)), tmp_path)
    assert not (tmp_path / "second").exists()
    with pytest.raises(ConfigError, match="is there already"):
        write_project(Project("first", ProjectKind.QUESTIONS), tmp_path)
    with pytest.raises(ConfigError, match="takes no data"):
        write_project(Project("third", ProjectKind.ENVIRONMENT, str(file)), tmp_path)


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.slow
def test_the_project_of_an_agent_trains(tmp_path: Path) -> None:
    for words in (
        ["init", "first", "--kind", "agent"],
        ["train", "-c", "first/run.yaml", "run_dir=run", *TRAIN.split()],
    ):
        assert run_agentrl(*words) == 0
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()


@pytest.mark.slow
def test_in_a_terminal_three_questions_are_asked_and_answered(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "agentrl", "init", "first"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"conversations\n\ntiny\n")
        said = b""
        while part := _read(ours):
            said += part
        assert process.wait(60) == 0, said.decode()
    os.close(ours)
    assert said.count(b"?") >= 3
    assert "algo: sft" in (tmp_path / "first" / "run.yaml").read_text()


def _read(file: int) -> bytes:
    try:
        return os.read(file, 4096)
    except OSError:  # Linux says so once the other side has closed
        return b""
