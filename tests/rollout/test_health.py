"""What is wrong with all sessions of a batch is reported, and a run without any progress ends."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import AgentError, InfraError, brief
from agentrl.rollout.stream import health
from agentrl.rollout.stream.health import HealthMonitor, failures, finding, with_retries
from agentrl.types import Group, Message, Node, Session, Status, Task

TASK = Task(id="t")


def session(status: Status, *, turns: int = 1, score: float | None = 0.0, error: str | None = None) -> Session:
    said = Message(role="assistant", content="")
    nodes = [
        Node(id=i, parent=i - 1 if i else None, message=said, token_ids=[], trainable=[], logprobs=[])
        for i in range(turns)
    ]
    return Session("s", TASK, nodes=nodes, status=status, reward=score, error=error)


def group(*sessions: Session) -> list[Group]:
    return [Group("g", TASK, list(sessions))]


FINE = session(Status.COMPLETED, score=1.0)
FAILED = session(Status.AGENT_ERROR, turns=0, error="KeyError: 'oops'")
LOST = session(Status.INFRA_ERROR, turns=0, score=None, error="EngineError: gone")


@pytest.mark.parametrize(
    ("sessions", "parts"),
    [
        ([FAILED, FAILED], ["all 2 sessions failed (2 AGENT_ERROR, 2 without a turn)", "KeyError: 'oops'"]),
        ([FAILED, LOST], ["all 2 sessions failed (1 AGENT_ERROR, 1 INFRA_ERROR"]),
        ([session(Status.COMPLETED, turns=0)], ["all 1 sessions had 0 turns"]),
        ([session(Status.TRUNCATED, error="too long")] * 3, ["all 3 sessions were TRUNCATED; 3 times: too long"]),
        ([session(Status.COMPLETED, score=None)] * 2, ["none of 2 sessions was rewarded"]),
    ],
    ids=["agent", "mixed", "no turns", "truncated", "unrewarded"],
)
def test_what_is_wrong_with_all_sessions_is_reported_with_counts_and_the_first_error(
    sessions: list[Session], parts: list[str]
) -> None:
    told = finding(sessions)
    assert all(part in told for part in parts), told
    assert finding([*sessions, FINE]) == ""


def test_single_failures_are_counted_with_the_first_error() -> None:
    assert failures([FINE, FAILED, FINE]) == "1 of 3 sessions failed (1 AGENT_ERROR); the first: KeyError: 'oops'"
    assert failures([FINE]) == ""


@pytest.mark.usefixtures("without_pauses")
async def test_a_batch_that_failed_by_infrastructure_is_generated_again_a_bounded_number_of_times() -> None:
    told: list[str] = []
    results = [group(LOST), group(LOST), group(FINE)]

    async def recovers() -> list[Group]:
        return results.pop(0)

    assert (await with_retries(recovers, "step 1", told.append))[0].sessions == [FINE]
    assert len(told) == 2

    async def never() -> list[Group]:
        return group(LOST, LOST)

    with pytest.raises(InfraError, match=r"step 2, attempt 3 of 3: all 2 sessions failed .*EngineError: gone"):
        await with_retries(never, "step 2", told.append)


async def test_a_batch_with_one_good_session_or_with_an_agents_failures_is_taken_as_it_is() -> None:
    for sessions in ([LOST, FINE], [LOST, FAILED], [FAILED]):

        async def once(sessions: Any = sessions) -> list[Group]:
            return group(*sessions)

        assert (await with_retries(once, "step", pytest.fail))[0].sessions == sessions


def test_steps_without_any_turn_end_a_run_with_the_first_error() -> None:
    seen = HealthMonitor()
    assert "KeyError" in seen.check(group(FAILED), signal=False)[0]
    seen.check(group(FAILED), signal=False)
    with pytest.raises(AgentError, match=r"3 steps in a row: .*KeyError"):
        seen.check(group(FAILED), signal=False)
    assert not seen.worked


def test_a_turn_in_between_begins_the_count_anew() -> None:
    seen = HealthMonitor()
    for _ in range(5):
        for one in (FAILED, FAILED, FINE):
            seen.check(group(one), signal=True)
    assert seen.worked


def test_steps_without_a_signal_are_reported_at_intervals() -> None:
    seen, told = HealthMonitor(), {}
    for step in range(1, 61):
        if said := seen.check(group(session(Status.COMPLETED), session(Status.COMPLETED)), signal=False):
            told[step] = said[0]
    assert list(told) == [5, 10, 20, 50]
    assert "last 20 steps: all 2 sessions of the last one scored 0" in told[20]


@pytest.mark.parametrize(
    ("one", "counts"),
    [
        (FINE, True),
        (session(Status.TRUNCATED), True),
        (session(Status.TRUNCATED, turns=0), False),
        (session(Status.AGENT_ERROR), False),
        (session(Status.AGENT_ERROR, score=1.0), True),
        (session(Status.AGENT_ERROR, score=-1.0), False),
    ],
)
def test_a_session_worked_if_it_had_a_turn_and_did_not_fail_or_earned_something(one: Session, counts: bool) -> None:
    assert health.has_worked(one) is counts


@pytest.mark.slow
def test_an_error_in_brief_keeps_its_head_and_its_causes_and_nothing_that_moves_a_cursor() -> None:
    log = "\n".join(["server died", *(f"line {i}" for i in range(30)), "  OSError: libcuda.so.1", "bye", "\x1b[2J" * 9])
    assert brief(log) == "server died\n  OSError: libcuda.so.1"
    assert brief("a\x1b[2Jb") == "a?[2Jb"
    assert len(brief("x" * 1000)) == 240
    assert brief("") == ""
