"""The environment `swe`: what the agent is told and given, how an episode ends, and what never reaches its sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.envs import sandboxes
from agentrl.envs.base import Env
from agentrl.envs.builtin.swe.env import Swe
from agentrl.envs.builtin.swe.limits import EpisodeLimits, LimitMeter
from agentrl.envs.builtin.swe.prompts import SUBMIT
from agentrl.envs.episode import expert_policy, noop_policy, play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError
from agentrl.types import Message, Session, Status
from tests.envs.swe.conftest import FIXED, HIDDEN, TASK, finish_elsewhere

Says = Callable[[Env, Sequence[Message]], Message]


def script(*lines: str | dict[str, Any]) -> Says:
    """A policy that says these in turn: a shell command for `bash` in braces, or plain text."""

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        line = lines[min(said, len(lines) - 1)]
        if isinstance(line, str):
            return Message(role="assistant", content=line)
        name, arguments = next(iter(line.items()))
        return env.call(name, **(arguments if isinstance(arguments, dict) else {"command": arguments}))

    return policy


def episode(policy: Any, **options: Any) -> Session:
    """An episode of the small task."""
    return asyncio.run(play(Swe(**options), TASK.as_task(), policy))


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("tools", ["all", "bash"])
def test_the_expert_solves_a_task_through_the_tools_and_saying_nothing_does_not(tools: str) -> None:
    assert episode(expert_policy, tools=tools).reward == 1.0
    assert episode(noop_policy, tools=tools, steps=3).reward == 0.0


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("tools", ["all", "bash"])
@pytest.mark.slow
def test_an_episode_is_finished_in_another_instance_and_a_fork_does_not_touch_it(tools: str) -> None:
    reward, forked, said = asyncio.run(finish_elsewhere(TASK, tools=tools))
    assert (reward, forked) == (1.0, 0.0)
    assert "new" in said
    assert ("kept" in said) == (tools == "all")


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_the_patch_of_an_episode_is_kept_and_is_the_reference_where_the_expert_made_it() -> None:
    assert episode(expert_policy).info["patch"] == TASK.solution


@pytest.mark.usefixtures("docker")
def test_neither_the_solution_nor_the_hidden_tests_nor_later_commits_are_in_the_agents_sandbox() -> None:
    look = (
        "git log --all --oneline | wc -l; git reflog | wc -l; git fsck --lost-found 2>&1 | grep -c dangling;"
        " grep -rl hello-big-world /work /tmp /etc /.agentrl 2>/dev/null;"
        " find / -xdev -name '*hidden*' -path '*tests/*' 2>/dev/null | grep -v ^/usr; git remote; env"
    )
    said = episode(script({"bash": look}, "done")).messages[2].text
    assert said.splitlines()[:3] == ["1", "0", "0"]
    assert "hello-big-world" in HIDDEN
    assert not any("repo" in line and "/" in line and "=" not in line for line in said.splitlines()[3:]), said
    assert "TOKEN" not in said
    assert "KEY" not in said


@pytest.mark.usefixtures("docker")
def test_unsubmitted_work_counts_as_it_stands_when_a_limit_is_reached() -> None:
    fix = {"edit": {"command": "create", "path": "slug.py", "text": FIXED}}
    session = episode(script(fix, {"bash": "true"}), steps=2)
    assert session.status is Status.TRUNCATED
    assert session.reward == 1.0


@pytest.mark.slow
def test_without_docker_the_subprocess_backend_serves_and_says_that_it_isolates_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert episode(expert_policy, sandbox="subprocess").reward == 1.0
    assert episode(script({"bash": "echo x > x"}, "done"), sandbox="subprocess").reward == 0.0
    assert "isolates nothing" in caplog.text


def test_the_limits_are_stated_at_the_beginning() -> None:
    words = EpisodeLimits(steps=7, seconds=99, tokens=1234, command_seconds=5, output_bytes=678).words()
    assert all(number in words for number in ("7 steps", "99 seconds", "1234 tokens", "5 seconds", "678 bytes"))


@pytest.mark.usefixtures("docker")
def test_what_is_left_is_stated_when_it_runs_out() -> None:
    session = episode(script({"bash": "true"}), steps=7)
    answers = [message.text for message in session.messages if message.role == "tool"]
    assert "left" not in answers[0]
    assert "5 steps left" in answers[1]
    assert "1 step left" in answers[5]
    assert len(answers) == 7
    assert session.status is Status.TRUNCATED


def test_tokens_and_seconds_run_out_as_well_with_a_warning_before() -> None:
    now = [0.0]
    meter = LimitMeter(EpisodeLimits(steps=100, seconds=10, tokens=100), clock=lambda: now[0])
    assert meter.spent is None
    assert meter.notice() == ""
    meter.count([Message(role="tool", content="x" * 4 * 85)])
    assert "15 tokens" in meter.notice()
    assert meter.spent is None
    now[0] = 9.0
    assert "1 seconds" in meter.notice()
    meter.count([Message(role="tool", content="x" * 4 * 20)])
    assert meter.spent == "tokens"
    now[0] = 11.0
    assert meter.spent == "seconds"


@pytest.mark.usefixtures("docker")
@pytest.mark.slow
def test_a_command_that_takes_too_long_is_stopped_and_a_long_output_is_cut() -> None:
    says = script({"bash": "sleep 600"}, {"bash": "yes | head -c 100000"}, "done")
    for seconds in (1.0, 25.0):  # a busy machine is late with the second one, too
        session = episode(says, command_seconds=seconds, output_bytes=500)
        answers = [message.text for message in session.messages if message.role == "tool"]
        if "time limit" not in answers[1]:
            break
    assert "time limit" in answers[0]
    assert "bytes left out" in answers[1]
    assert len(answers[1]) < 1000


@pytest.mark.usefixtures("docker")
def test_with_bash_alone_one_command_is_run_in_each_answer_as_a_call_or_in_a_code_block() -> None:
    session = episode(
        script(
            "Let me look.\n```bash\ncd /tmp && export X=1 && pwd\n```",
            "```bash\npwd; echo [$X]\n```",
            "no command",
            "```bash\necho 1\n```\n```bash\necho 2\n```",
            f"```bash\nfalse; echo {SUBMIT}; false\n```",
            f"```bash\necho {SUBMIT}\n```",
        ),
        tools="bash",
    )
    said = [message.text for message in session.messages if message.role == "user"][1:]
    assert said[0] == "<returncode>0</returncode>\n<output>\n/tmp\n</output>"
    assert "/work/repo\n[]" in said[1]
    assert "you gave 0" in said[2]
    assert "you gave 2" in said[3]
    assert SUBMIT in said[2]
    assert "<returncode>1<" in said[4]
    assert session.status is Status.COMPLETED
    assert len(said) == 6


@pytest.mark.usefixtures("docker")
def test_nothing_is_run_after_the_work_was_submitted() -> None:
    def policy(env: Env, messages: Sequence[Message]) -> Message:
        first, second = env.call("submit"), env.call("bash", command="echo late")
        return Message(role="assistant", tool_calls=[*(first.tool_calls or ()), *(second.tool_calls or ())])

    session = episode(policy)
    assert session.status is Status.COMPLETED
    assert [message.text for message in session.messages[2:]] == ["submitted"]


@pytest.mark.usefixtures("docker")
@pytest.mark.slow
def test_partial_credit_is_what_was_mended_times_what_was_kept() -> None:
    half = FIXED.replace("if number <= 0", "if False")
    broken = half.replace("total += 1", "total += 2")
    for text, whole, part in ((FIXED, 1.0, 1.0), (half, 0.0, 2 / 3), (broken, 0.0, 2 / 3 * 3 / 5)):
        fix = {"edit": {"command": "create", "path": "slug.py", "text": text}}
        assert episode(script(fix, "done")).reward == whole
        assert episode(script(fix, "done"), partial=True).reward == pytest.approx(part)


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_an_agent_that_uses_up_its_sandboxs_memory_is_to_blame_and_gets_nothing() -> None:
    hog = "head -c 240M /dev/zero > /work/big; head -c 120M /dev/zero > /tmp/big; python3 -c 'x = bytearray(2 << 30)'"
    session = episode(script({"bash": hog}, "done"))
    assert session.reward == 0.0


@pytest.mark.usefixtures("without_docker")
def test_without_a_daemon_it_says_in_one_line_what_to_do() -> None:
    env = Swe()
    for work in (env.prepare([TASK.as_task()], 1), env.reset(TASK.as_task())):
        with pytest.raises(ConfigError) as caught:
            asyncio.run(work)
        assert "\n" not in str(caught.value)
        assert "start one" in str(caught.value)
        assert "env.sandbox=subprocess" in str(caught.value)


def test_an_unknown_option_or_an_empty_choice_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env\.tool"):
        make("swe", tool="bash")
    with pytest.raises(ConfigError, match="difficulty"):
        make("swe", difficulty="heavy")
    with pytest.raises(Exception, match="no-such-folder"):
        list(make("swe", path="/no-such-folder").tasks("train"))


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_sandboxes_are_given_back_however_an_episode_ends() -> None:
    async def work() -> None:
        supplier = sandboxes.supplier("docker")
        others = set(supplier.leased)  # of tests that ended in the middle of an episode
        env = Swe()
        await env.reset(TASK.as_task())
        await env.close()  # at once, while the sandbox is being made
        await env.close()
        await play(Swe(), TASK.as_task(), noop_policy)
        await play(Swe(), TASK.as_task(), expert_policy)
        assert supplier.leased <= others

    asyncio.run(work())
