"""Images of tasks that bring a Dockerfile: built before the first episode, once; a build that fails ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.envs.builtin.swe import building
from agentrl.envs.episode import expert_policy, noop_policy, play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, InvalidInput
from agentrl.tools.sandbox.docker import images
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.types import Task

pytestmark = [pytest.mark.usefixtures("docker"), pytest.mark.slow]

FILES = {
    "task.toml": '[verifier]\nenv = { WANTED = "hello", KEY = "${AGENTRL_TEST_KEY}" }\n',
    "instruction.md": "Write hello.txt.\n",
    "environment/Dockerfile": "FROM agentrl/base:latest\nUSER root\nCOPY seed.txt /app/seed.txt\nWORKDIR /app\n",
    "environment/seed.txt": "seed\n",
    "tests/test.sh": 'cd /app; [ -e seed.txt ] && [ "$KEY" ] && [ "$(cat hello.txt)" = "$WANTED" ]\n'
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "echo hello > hello.txt\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for path, text in FILES.items():
        (tmp_path / "say-hello" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "say-hello" / path).write_text(text)
    image = building.image_of(tmp_path / "say-hello/environment", "say-hello")
    yield tmp_path
    if asyncio.run(images.image_id(image)):
        daemon().api.remove_image(image, force=True)


def the_task(folder: Path) -> Task:
    (task,) = make("swe", path=str(folder), build=True).tasks("train")
    assert isinstance(task, Task)
    return task


def test_a_tasks_dockerfile_is_built_before_its_first_episode_and_only_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = the_task(folder)
    with pytest.raises(InvalidInput, match="AGENTRL_TEST_KEY"):
        asyncio.run(play(make("swe", path=str(folder), build=True), task, expert_policy))
    monkeypatch.setenv("AGENTRL_TEST_KEY", "secret")
    assert asyncio.run(play(make("swe", path=str(folder), build=True), task, expert_policy)).reward == 1.0
    assert asyncio.run(play(make(f"harbor:{folder}", build=True), task, noop_policy)).reward == 0.0
    assert caplog.text.count("building agentrl-tasks/say-hello:") == 1


def test_a_command_that_fails_is_named_with_what_a_build_needs(folder: Path) -> None:
    (folder / "say-hello/environment/Dockerfile").write_text("FROM agentrl/base:latest\nCOPY nowhere /x\n")
    with pytest.raises(ConfigError, match=r"was not built: .*nowhere.*needs the Docker daemon's network"):
        asyncio.run(make("swe", path=str(folder), build=True).prepare([the_task(folder)], 1))  # type: ignore[arg-type]


def test_what_an_image_has_in_tmp_is_there_for_the_agent_and_the_tests(folder: Path) -> None:
    """A link of a published task led to a file in /tmp, over which an empty tree was mounted."""
    dockerfile = folder / "say-hello/environment/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "RUN echo hello > /tmp/word && ln -s /tmp/word /app/word\n")
    (folder / "say-hello/task.toml").write_text('[verifier]\nenv = { WANTED = "hello", KEY = "x" }\n')
    (folder / "say-hello/solution/solve.sh").write_text("cp word hello.txt\n")
    played = asyncio.run(play(make(f"harbor:{folder}", build=True), the_task(folder), expert_policy))
    image = the_task(folder)["image"]
    daemon().api.remove_image(image, force=True)
    assert played.reward == 1.0


def test_an_agent_has_the_seconds_that_its_task_says_and_no_command_more_than_a_tool_may_take(folder: Path) -> None:
    (folder / "say-hello/task.toml").write_text('[agent]\ntimeout_sec = 77\n[verifier]\nenv = { WANTED = "hello" }\n')
    for options, words in (({}, "77 seconds"), ({"seconds": 5}, "5 seconds")):
        played = asyncio.run(play(make(f"harbor:{folder}", build=True, **options), the_task(folder), noop_policy))
        assert f"steps, {words} and" in played.nodes[0].message.text
    with pytest.raises(ConfigError, match=r"rollout\.tool_timeout=30"):
        asyncio.run(play(make(f"harbor:{folder}", build=True, command_seconds=31), the_task(folder), noop_policy))
