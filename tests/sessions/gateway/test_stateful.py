"""Open, ask, retry, branch, reward, close, restart: in any order, and side by side, the promises hold.

The promises stand in one place, `State.promises`; hypothesis looks for an order of events that breaks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl.sessions.gateway.exchange import Parts
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.rewards import CloseBody, RewardBody
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Node, RewardState, Session, Status, Task
from tests.sessions.gateway.fakes import renderer
from tests.sessions.gateway.inside import exchange, turn_request
from tests.sessions.gateway.test_drift import TOOLS, Dice, holds_only_what_was_drawn, joined_legs

TEXTS = st.sampled_from(["hi", "more", "why?", " hi", "<|im_end|>"])
PICK = st.integers(0, 10**6)


class State(RuleBasedStateMachine):
    """A gateway, and what we know of its sessions from outside."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.engine = Dice()
        self.store = Store(Path(self.folder.name) / "s.db")
        self.gateway = self.new_gateway()
        self.keys: dict[str, str] = {}
        self.histories: dict[str, list[list[Any]]] = {}
        self.seen: dict[str, list[Node]] = {}
        self.sealed: dict[str, Session] = {}

    def new_gateway(self) -> Gateway:
        return Gateway(Parts(TurnGenerator(renderer(), self.engine), Limits()), self.store, secret=b"kept")  # type: ignore[arg-type]

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def pick(self, number: int) -> str:
        open_ = sorted(self.histories)
        return open_[number % len(open_)]

    @rule(seed=st.integers(0, 3))
    def open(self, seed: int) -> None:
        id_ = f"s{len(self.keys)}"
        access = self.run(self.gateway.open(Session(id_, Task(id="t"), seed=seed)))
        self.keys[id_] = access.api_key
        self.histories[id_] = [[{"role": "system", "content": "be"}]]
        self.seen[id_] = []

    @precondition(lambda self: self.histories)
    @rule(which=PICK, line=PICK, text=TEXTS, cut=st.none() | PICK, tools=st.booleans(), n=st.sampled_from([1, 1, 2]))
    def ask(self, which: int, line: int, text: str, cut: int | None, tools: bool, n: int) -> None:
        """Go on from some history, perhaps cut short first: a continuation or a branch."""
        id_ = self.pick(which)
        history = self.history(id_, line, cut)
        asked = [*history, {"role": "user", "content": text}]
        self.run(self.request(id_, asked, tools, n))

    @precondition(lambda self: self.histories)
    @rule(which=PICK, line=PICK, text=TEXTS, asked=st.booleans())
    def extend(self, which: int, line: int, text: str, asked: bool) -> None:
        """Go on from a history to whose last turn something was added."""
        id_ = self.pick(which)
        *history, last = self.history(id_, line, None)
        if last["role"] == "assistant":
            added = {**last, "content": (last.get("content") or "") + text}
            self.run(self.request(id_, [*history, added, *([{"role": "user", "content": text}] * asked)], False, 1))

    @precondition(lambda self: self.histories)
    @rule(which=PICK, lines=st.lists(st.tuples(PICK, TEXTS), min_size=2, max_size=4))
    def ask_side_by_side(self, which: int, lines: list[tuple[int, str]]) -> None:
        id_ = self.pick(which)
        asked = [[*self.history(id_, line, None), {"role": "user", "content": text}] for line, text in lines]

        async def together() -> None:
            await asyncio.gather(*(self.request(id_, one, False, 1) for one in asked))

        self.run(together())

    @precondition(lambda self: self.histories)
    @rule(which=PICK, line=PICK)
    def retry(self, which: int, line: int) -> None:
        """What was asked before, asked again: no engine call, no new node."""
        id_ = self.pick(which)
        history = self.histories[id_][line % len(self.histories[id_])]
        if history[-1]["role"] != "assistant":
            return
        calls, nodes = len(self.engine.calls), len(self.session(id_).nodes)
        marked = history[-1]["_asked"]
        made, _ = self.run(self.exchange(id_, marked["messages"], marked["tools"], marked["n"], retry=1))
        assert made.is_retry
        assert (len(self.engine.calls), len(self.session(id_).nodes)) == (calls, nodes)

    @precondition(lambda self: self.histories)
    @rule(which=PICK, node=PICK, value=st.sampled_from([0.0, 1.0]))
    def reward(self, which: int, node: int, value: float) -> None:
        id_ = self.pick(which)
        turns = [n.id for n in self.session(id_).nodes if n.sampled]
        bodies = [RewardBody(value=value, name="a")]
        if turns:
            bodies.append(RewardBody(value=value, turn=turns[node % len(turns)]))
        for body in bodies:
            with contextlib.suppress(ApiError):  # it contradicts an earlier one
                self.run(self.gateway.reward(id_, self.keys[id_], body))

    @precondition(lambda self: self.histories)
    @rule(which=PICK, reward=st.none() | st.sampled_from([0.0, 1.0]))
    def close(self, which: int, reward: float | None) -> None:
        id_ = self.pick(which)
        session = self.session(id_)
        self.run(self.gateway.close(id_, self.keys[id_], CloseBody(reward=reward)))
        assert session.status in (Status.COMPLETED, Status.TRUNCATED)
        self.histories.pop(id_)
        if session.reward_state is RewardState.SEALED:
            self.sealed[id_] = copy.deepcopy(session)
            with pytest.raises(ApiError, match="sealed"):
                self.session(id_)

    @rule()
    def restart(self) -> None:
        """The process ends, and another takes up what is in the store."""
        self.run(self.gateway.aclose())
        self.gateway = self.new_gateway()

    @invariant()
    def promises(self) -> None:
        """All that must hold, whatever happened."""
        if not hasattr(self, "gateway"):
            return
        turns = joined_legs(self.engine.calls)
        for id_ in self.histories:
            session = self.session(id_)
            holds_only_what_was_drawn(session, turns)
            for old, new in zip(self.seen[id_], session.nodes, strict=False):
                assert replace(old, reward=new.reward) == new, "a stored node was changed"
            self.seen[id_] = copy.deepcopy(session.nodes)
            assert self.store.load(id_).nodes == session.nodes
            assert all(count > 0 for count in session.counters.values())
            for node in session.nodes:
                assert tree.children(session, node.id) == sorted(
                    tree.children(session, node.id), key=lambda child: child.id
                )
        for id_, session in self.sealed.items():
            assert self.store.load(id_) == session

    def teardown(self) -> None:
        if hasattr(self, "gateway"):
            self.run(self.gateway.aclose())
            self.store.close()
            self.loop.close()
            self.folder.cleanup()

    # -------------------------------------------------------------------------------------- helpers

    def session(self, id_: str) -> Session:
        async def found() -> Session:
            return self.gateway.entry(id_, self.keys[id_]).state.session

        return self.run(found())

    def history(self, id_: str, line: int, cut: int | None) -> list[Any]:
        history = self.histories[id_][line % len(self.histories[id_])]
        return history if cut is None else history[: 1 + cut % len(history)]

    async def exchange(self, id_: str, messages: list[Any], tools: bool, n: int, retry: int | None = None) -> Any:
        plain = [{k: v for k, v in message.items() if k != "_asked"} for message in messages]
        entry = self.gateway.entry(id_, self.keys[id_])
        fields = {"tools": TOOLS} if tools else {}
        return await exchange(self.gateway, entry, turn_request(plain, retry, n=n, **fields))

    async def request(self, id_: str, messages: list[Any], tools: bool, n: int) -> None:
        _, nodes = await self.exchange(id_, messages, tools, n)
        assert len(nodes) == n
        for node in nodes:
            message = node.message.model_dump(exclude_none=True)
            for call in message.get("tool_calls") or ():
                call.pop("error", None)
            message["_asked"] = {"messages": messages, "tools": tools, "n": n}
            self.histories[id_].append([*messages, message])


TestSessionsInAnyOrder = State.TestCase
TestSessionsInAnyOrder.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
pytestmark = pytest.mark.slow
