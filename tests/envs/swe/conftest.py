"""A small task of our own, and sandboxes that the whole session shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentrl.envs import calls, sandboxes
from agentrl.envs.builtin.swe.changes import File
from agentrl.envs.builtin.swe.env import SPEC, Swe
from agentrl.envs.builtin.swe.generation.find_key import find_stored
from agentrl.envs.builtin.swe.patch import as_patch
from agentrl.envs.builtin.swe.scoring import Exam, ScoringResult, score
from agentrl.envs.builtin.swe.source import source_of
from agentrl.envs.builtin.swe.task import Commit, SweTask
from agentrl.envs.state import EnvState
from agentrl.tools.sandbox.docker.daemon import available
from agentrl.tools.sandbox.docker.images import image_id
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.types import Message, Session
from tests.conftest import need


def text_file(text: str) -> File:
    """A text file."""
    return File(text.encode())


BROKEN = '''\
"""Slugs."""


def slug(text):
    return text.lower()


def count(items):
    total = 0
    for item in items:
        total += 1
    return total


def positive(number):
    return number
'''
FIXED = '''\
"""Slugs."""


def slug(text):
    return "-".join(text.lower().split())


def count(items):
    total = 0
    for item in items:
        total += 1
    return total


def positive(number):
    if number <= 0:
        raise ValueError(f"{number} is not positive")
    return number
'''
VISIBLE = """\
from slug import count, slug


def test_lower():
    assert slug("ABC") == "abc"


def test_count():
    assert count([1, 2, 3]) == 3
"""
HIDDEN = """\
import unittest

import pytest

from slug import count, positive, slug


def test_spaces():
    assert slug("Hello big World") == "hello-big-world"
    assert slug("a  b") == "a-b"


@pytest.mark.parametrize("text, wanted", [("X Y", "x-y"), ("P", "p")])
def test_table(text, wanted):
    assert slug(text) == wanted


def test_refuses():
    with pytest.raises(ValueError):
        positive(-3)


class TestCount(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(count([]), 0)

    def test_one(self):
        self.assertEqual(count(["x"]), 1)
"""
TASK = SweTask(
    id="slug",
    instruction="`slug` must join words with dashes, and `positive` must refuse what is not positive.",
    difficulty="easy",
    commits=(
        Commit(message="Slugs", files={"slug.py": BROKEN, "tests/test_visible.py": VISIBLE, "data.txt": "one\\n"}),
    ),
    tests={"tests/test_hidden.py": HIDDEN},
    visible_tests=("tests/test_visible.py",),
    fail_to_pass=(
        "tests/test_hidden.py::test_spaces",
        "tests/test_hidden.py::test_table[X Y-x-y]",
        "tests/test_hidden.py::test_refuses",
    ),
    pass_to_pass=(
        "tests/test_hidden.py::test_table[P-p]",
        "tests/test_hidden.py::TestCount::test_empty",
        "tests/test_hidden.py::TestCount::test_one",
        "tests/test_visible.py::test_lower",
        "tests/test_visible.py::test_count",
    ),
    timeout=60,
    solution=as_patch({"slug.py": File(BROKEN.encode())}, {"slug.py": File(FIXED.encode())}).decode(),
)

Judge = Callable[[Mapping[str, str | None]], ScoringResult]


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    """Docker with the base image; all sandboxes are removed at the end."""
    need(available(), "a Docker daemon (sandboxes/ci-docker.sh starts one)")
    need(blocking(image_id(SPEC.image)), f"the image {SPEC.image} (sandboxes/make-base.sh makes it)")
    yield
    asyncio.run(sandboxes.close_all())


def judged(files: Mapping[str, str | File | None], seconds: float = TASK.timeout) -> ScoringResult:
    """Score changes of files, given as text or as they are; only their tests get so many seconds, the proof its own."""
    changes = {path: File(file.encode()) if isinstance(file, str) else file for path, file in files.items()}
    exam = replace(Exam.of(TASK), timeout=seconds)

    async def run() -> ScoringResult:
        supplier = sandboxes.supplier("docker")
        await source_of(TASK).prove(supplier)
        key = find_stored(TASK)
        assert key is not None
        return (await supplier.run(SPEC, lambda sandbox: score(exam, key, changes, sandbox)))[0]

    return asyncio.run(run())


async def finish_elsewhere(task: SweTask, **options: Any) -> tuple[float | None, float | None, str]:
    """Half an expert's episode, finished in a restored instance; a fork of that removes the repository.

    Returns:
        The reward of the restored episode, that of the fork, and what the restored episode's shell says.
    """
    first, restored = Swe(**options), Swe(**options)
    said = await calls.reset(first, task.as_task())
    plan = [await calls.expert(first, [*said, *[Message(role="assistant")] * place]) for place in range(20)]
    half = len(task.solution.split("\n@@")) - 1
    work = "mkdir -p deep && cd deep && export WORD=kept && echo new > file"
    for message in [*plan[:half], first.call("bash", command=work)]:
        await calls.step(first, message)
    state = EnvState.from_bytes((await calls.state(first)).to_bytes())
    await calls.close(first)
    await calls.restore(restored, state)
    forked = await calls.fork(restored)
    await calls.step(forked, forked.call("bash", command="cd /; rm -rf $OLDPWD/../slug.py /work/repo/slug.py"))
    look = restored.call("bash", command="cat file deep/file; echo $WORD; cd ..")
    shell = (await calls.step(restored, look)).messages[0].text
    for message in plan[half:]:
        if (await calls.step(restored, message)).terminated:
            break
    rewards = []
    for env in (restored, forked):
        rewards.append((await calls.compute_rewards(env, Session(id="s", task=task.as_task()))).total)
        await calls.close(env)
    return rewards[0], rewards[1], shell
