"""Whatever a model, a tool, a sandbox or an agent program writes can be held, stored and printed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl.common.untrusted import MAX_DEPTH, read_json, safe_json, safe_text
from agentrl.config import RolloutConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import EXPERT
from agentrl.errors import AgentError, EnvError, SandboxError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.recorder import Recorder
from agentrl.sessions.store.store import Store
from agentrl.tools.tool import tool
from agentrl.types import FunctionCall, Message, Session, Status, StepResult, Task, ToolCall

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates included
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
SURROGATE = "before\ud800after"


def has_wide_integer(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(has_wide_integer, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def nested(depth: int) -> Any:
    value: Any = "deepest"
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


HOSTILE: dict[str, Any] = {
    "a lone surrogate": SURROGATE,
    "a lone surrogate as a key": {SURROGATE: 1},
    "a NUL": "a\0b",
    "deep nesting": nested(400),
    "nesting beyond any decoder's stack": nested(5000),
    "a whole number beyond 64 bits": 2**400,
    "numbers as keys": {1: {2.5: None}},
    "a number that is none": float("nan"),
    "terminal escapes": "\x1b[2J\x1b]0;title\x07",
}


@given(ANY_TEXT)
@pytest.mark.slow
def test_safe_text_can_be_encoded_and_leaves_other_text_as_it_is(text: str) -> None:
    safe = safe_text(text)
    safe.encode()
    assert len(safe) == len(text)
    assert all(a == b or "\ud800" <= a <= "\udfff" for a, b in zip(text, safe, strict=True))


@given(ANY_JSON)
@example([2**63, -(2**63) - 1])
@pytest.mark.slow
def test_safe_json_can_be_stored_and_leaves_what_could_be_stored_as_it_is(value: Any) -> None:
    stored = orjson.dumps(safe_json(value))
    try:
        expected = orjson.dumps(value)
    except TypeError:
        return
    if not has_wide_integer(value):  # of 64 bits without a sign, which no column of integers has
        assert stored == expected


def test_safe_json_ends_where_nesting_is_too_deep_and_says_so() -> None:
    value = safe_json(nested(5000))
    for _ in range(MAX_DEPTH):
        value = value["in"] if isinstance(value, dict) else value[0]
    assert "nested deeper" in value


def test_reading_json_that_nests_beyond_the_stack_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deeply"):
        read_json("[" * 100_000)


@given(ANY_TEXT, ANY_TEXT)
def test_a_message_holds_only_text_that_can_be_encoded(content: str, name: str) -> None:
    call = ToolCall(id=content, function=FunctionCall(name=name, arguments=content), error=name)
    parts = [{"type": "text", "text": content}]
    for given_content in (content, parts):
        message = Message(role="assistant", content=given_content, tool_calls=[call], reasoning_content=name, name=name)  # type: ignore[arg-type]
        assert Message.model_validate_json(message.model_dump_json()) == message


# --------------------------------------------------------------------- through an episode into the store


class Hostile(Env):
    """Lets something hostile in through one of its doors."""

    def __init__(self, door: str, what: Any) -> None:
        self.door, self.what = door, what

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        return [{"n": 1}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        return "go"

    @tool
    def look(self) -> Any:
        """Look."""
        if self.door == "exception":
            raise ValueError(self.what)
        return self.what if self.door == "result" else "nothing"

    def step(self, message: Message) -> Any:
        if self.door == "agent's fault":
            raise AgentError(str(self.what))
        if self.door == "our fault":
            raise SandboxError(str(self.what))
        if self.door == "observation":
            return StepResult([Message(role="user", content=str(self.what))], terminated=True)
        return super().step(message)

    @reward
    def noted(self, session: Session) -> float:
        if self.door == "info":
            session.info["note"] = self.what
        return 1.0

    def expert(self, messages: list[Message]) -> Message | str:
        return self.call("look") if len(messages) == 1 else "done"


DOORS = ("exception", "result", "agent's fault", "our fault", "observation", "info")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.slow
async def test_a_session_survives_and_is_stored_whatever_comes_in(
    door: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # what a tool raised is logged as it is, and pytest's workers can't send that
    what = HOSTILE[name]
    if door not in ("result", "info") and not isinstance(what, str):
        what = json.dumps(SURROGATE) + "x" * 100
    limits = RolloutConfig(retries=0)
    rollouts = Rollouts(lambda: Hostile(door, what), Policy(NullRenderer()), limits, seed=5)
    groups = await rollouts.collect([Task(id="t")], EXPERT, phase="test", n=1)
    (session,) = groups[0].sessions
    assert session.status in {
        "agent's fault": (Status.AGENT_ERROR,),
        "our fault": (Status.INFRA_ERROR,),
    }.get(door, (Status.COMPLETED,))
    (session.error or "").encode()
    with Store(":memory:") as store:
        store.save(session)
        again = store.load(session.id)
    assert [node.message for node in again.nodes] == [node.message for node in session.nodes]


class Thing:
    """Stands for nothing in JSON."""

    def __repr__(self) -> str:
        return "a thing"


async def test_a_session_whose_info_can_not_be_stored_is_the_authors_error_and_is_stored_with_its_text(
    tmp_path: Path,
) -> None:
    limits = RolloutConfig(retries=0)
    policy = Policy(NullRenderer())
    with Store(tmp_path / "s.db") as store:
        with Recorder(store) as recorder:
            rollouts = Rollouts(lambda: Hostile("info", Thing()), policy, limits, seed=5, recorder=recorder)
            with pytest.raises(EnvError, match=r"reward 'noted' of Hostile left info\['note'\] = a thing"):
                await rollouts.collect([Task(id="t")], EXPERT, phase="test", n=1)
        (session,) = store.sessions()
    assert (session.status, session.info["note"]) == (Status.ABORTED, "a thing")
