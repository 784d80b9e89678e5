"""Repositories that an image brings: their future is forgotten, what changed is found, and their own tests judge it."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.builtin.swe.patch import as_patch
from agentrl.envs.builtin.swe.prebuilt import directives
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.episode import expert_policy, play
from agentrl.envs.registry import make
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.types import Message, Session, Task
from tests.envs.swe.conftest import BROKEN, FIXED, HIDDEN, VISIBLE, finish_elsewhere, text_file

pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]

IMAGE = "agentrl/test-prebuilt:latest"
DOCKERFILE = """
FROM agentrl/base:latest
USER root
COPY repo /testbed
RUN cd /testbed && git init -q -b main && git config user.email a@b && git config user.name a \\
    && git add -A && git commit -q -m base && git tag v1 \\
    && cp /testbed/fixed.txt slug.py && git commit -q -am "the future solution" && git branch later \\
    && git reset -q --hard v1 && git remote add origin https://example.org/x.git && rm -f fixed.txt.orig
"""


@pytest.fixture(scope="module")
def image(docker: None) -> Iterator[str]:
    """An image in SWE-bench's manner: the repository at /testbed, with a later commit in its git data."""
    body = io.BytesIO()
    files = {"Dockerfile": DOCKERFILE, "repo/slug.py": BROKEN, "repo/tests/test_visible.py": VISIBLE}
    with tarfile.open(fileobj=body, mode="w") as tar:
        for name, text in {**files, "repo/fixed.txt": FIXED}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    body.seek(0)
    api = daemon().api
    for event in api.build(fileobj=body, custom_context=True, tag=IMAGE, rm=True, decode=True):
        assert "error" not in event, event
    yield IMAGE
    api.remove_image(IMAGE, force=True, noprune=True)


def task(**fields: object) -> SweTask:
    """A row of a dataset, about that image."""
    row: dict[str, object] = {
        "id": "demo__slug-1",
        "instruction": "Mend `slug`.",
        "image": IMAGE,
        "workdir": "/testbed",
        "base_commit": "v1",
        "test_patch": as_patch({}, {"tests/test_hidden.py": text_file(HIDDEN)}).decode(),
        "fail_to_pass": ["tests/test_hidden.py::test_spaces", "tests/test_hidden.py::test_refuses"],
        "pass_to_pass": ["tests/test_hidden.py::TestCount::test_empty"],
        "solution": as_patch({"slug.py": text_file(BROKEN)}, {"slug.py": text_file(FIXED)}).decode(),
    }
    return SweTask.build(row | fields)


def work(command: str, problem: SweTask, **options: Any) -> Session:
    """An episode in which the agent runs one command."""

    def policy(env: Swe, messages: list[Message]) -> Message:
        return env.call("bash", command=command) if len(messages) == 1 else env.call("submit")

    return asyncio.run(play(Swe(**options), problem.as_task(), policy))  # type: ignore[arg-type]


def test_the_reference_solution_is_worth_everything_and_another_file_nothing(image: str) -> None:
    session = asyncio.run(play(Swe(), task().as_task(), expert_policy))
    assert session.reward == 1.0, session.info
    assert work("echo x > y", task()).reward == 0.0


def test_an_episode_is_finished_in_another_container_of_the_image(image: str) -> None:
    reward, forked, said = asyncio.run(finish_elsewhere(task()))
    assert (reward, forked) == (1.0, 0.0)
    assert "kept" in said


def test_later_commits_tags_branches_and_remotes_are_gone(image: str) -> None:
    look = (
        "git log --all --format=%s; git tag; git branch -a | wc -l; git remote;"
        " git fsck --unreachable --no-reflogs | wc -l"
    )
    said = work(look, task()).messages[2].text
    assert "future" not in said
    assert said.split()[0] == "base"
    assert said.split()[-1] == "0"


def test_new_deleted_renamed_linked_and_binary_files_are_carried_over(image: str) -> None:
    command = (
        "mkdir pkg && printf %s '" + FIXED.replace("'", "'\\''") + "' > pkg/impl.py && git rm -q slug.py"
        " && echo 'from pkg.impl import *' > slug.py && ln -s slug.py link.py && head -c 999 /dev/urandom > b.bin"
    )
    assert work(command, task()).reward == 1.0


def test_edited_tests_are_put_back(image: str) -> None:
    cheat = "echo 'def test_spaces(): pass' > tests/test_hidden.py; echo 'raise SystemExit' > conftest.py"
    assert work(cheat, task()).reward == 0.0


def test_a_reward_that_a_task_writes_counts_as_in_harbor(image: str) -> None:
    script = "cd /testbed; grep -q ValueError slug.py; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    fields = {"log_format": "reward", "tests": {"test.sh": script}, "test_patch": "", "fail_to_pass": []}
    problem = task(**fields, pass_to_pass=[])
    assert work("cp fixed.txt slug.py", problem).reward == 1.0
    assert work("true", problem).reward == 0.0
    assert work("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo x > x", problem).reward == 0.0


def test_the_numbers_of_a_tasks_reward_json_are_kept_and_a_part_counts_where_parts_do(image: str) -> None:
    script = """cd /testbed; [ -e x ] && echo '{"reward": 0.25, "style": 3, "ok": true}' > /logs/verifier/reward.json
    [ -e y ] && echo '{"style": 1}' > /logs/verifier/reward.json && echo 0.5 > /logs/verifier/reward.txt
    [ -e z ] && echo '{"reward": NaN}' > /logs/verifier/reward.json; true"""
    fields = {"log_format": "reward", "tests": {"test.sh": script}, "test_patch": "", "fail_to_pass": []}
    problem = task(**fields, pass_to_pass=[])
    part = work("echo > x", problem, partial=True)
    assert (part.reward, part.info["swe"]["rewards"]) == (0.25, {"reward": 0.25, "style": 3.0})
    assert work("echo > y", problem, partial=True).reward == 0.5
    assert work("echo > z", problem, partial=True).reward == 0.0


def test_tests_that_write_a_reward_find_what_was_done_anywhere_in_the_agents_sandbox(image: str) -> None:
    """In a new container, files elsewhere, branches and commits of Terminal-Bench's tasks were lost."""
    script = """[ "$(cat /srv/config)" = on ] && [ "$(git rev-parse --abbrev-ref HEAD)" = topic ]
echo $((1 - $?)) > /logs/verifier/reward.txt"""
    fields = {"log_format": "reward", "tests": {"test.sh": script}, "test_patch": "", "fail_to_pass": []}
    done = "echo on > /srv/config; git checkout -q -b topic"
    assert work(done, task(**fields), fresh_tests=False).reward == 1.0
    assert work("echo on > /srv/config", task(**fields), fresh_tests=False).reward == 0.0
    assert work(done, task(**fields)).reward == 0.0


def test_a_repository_of_a_task_that_writes_a_reward_keeps_its_branches_and_lost_commits(image: str) -> None:
    script = "git rev-parse -q --verify later && [ -e seen ]; echo $((1 - $?)) > /logs/verifier/reward.txt"
    fields = {"log_format": "reward", "tests": {"test.sh": script}, "test_patch": "", "fail_to_pass": []}
    session = work(
        "git for-each-ref --format='%(refname:short)' | grep -x later > seen || rm seen",
        task(**fields),
        fresh_tests=False,
    )
    assert session.reward == 1.0, session.nodes[-1].message.text


def test_djangos_runner_is_given_modules() -> None:
    patch = as_patch({}, {"tests/model_forms/tests.py": text_file("x = 1\n")}).decode()
    assert directives(task(log_format="django", test_patch=patch)) == ["model_forms.tests"]
    assert directives(task()) == ["tests/test_hidden.py"]


def test_a_data_sets_rows_are_played_as_they_come(image: str, tmp_path: Path) -> None:
    base = task()
    row = {
        "instance_id": "demo__slug-1",
        "repo": "demo/slug",
        "version": "1",
        "base_commit": "v1",
        "problem_statement": base.instruction,
        "patch": base.solution,
        "test_patch": base.test_patch,
        "FAIL_TO_PASS": json.dumps(base.fail_to_pass),
        "PASS_TO_PASS": json.dumps(base.pass_to_pass),
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    env = make("swe", path=str(rows), image=IMAGE, test_command="python3 -m pytest -rA")
    (found,) = env.tasks("train")
    assert isinstance(found, Task)
    assert asyncio.run(play(env, found, expert_policy)).reward == 1.0
