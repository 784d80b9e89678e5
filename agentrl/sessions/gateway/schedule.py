"""A recorded session's order of requests and replies, which a gateway keeps when the session is run again.

Requests of one session may arrive together. What a request gets depends on which came before it: its attempt, where
others were the same, and the budget that is left. What an agent program does next may depend on which reply was first.
A recording has both orders: the turns' `Arrival`s, and the nodes, which are added as replies are sent. A request that
arrives early waits here for its place, and so does a reply that is generated early.

A request is known by its prompt. One that the recording does not have is let through: it is refused as it was, or the
engine says where it departs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.errors import Diverged
from agentrl.sessions.tree import tree
from agentrl.types import Arrival, Node, Session


@dataclass(eq=False)
class _Request:
    """A recorded request.

    Attributes:
        arrival: when it arrived.
        agent: whose turns it asked for.
        prompt: the tokens that its turns were generated from.
        turn: its first turn's node.
        reply: how many nodes the session had when its reply was sent.
        claimed: whether it has been sent again.
    """

    arrival: Arrival
    agent: str
    prompt: tuple[int, ...]
    turn: int
    reply: int
    claimed: bool = False


class RecordedOrder:
    """Keeps one session in its recorded order; on the gateway's event loop.

    Args:
        session: it, as it is run again.
        recorded: the recorded session; all of its requests were answered (`is_answered`).
        fail: called with the departure, where a request does not come.
        patience: seconds that the program may take until the request that is next in the recording.
    """

    def __init__(
        self, session: Session, recorded: Session, fail: Callable[[BaseException], None], patience: float
    ) -> None:
        self._session, self._name, self._fail, self._patience = session, recorded.id, fail, patience
        self._requests = list(_requests(recorded))
        self._arrived = 0
        self._changed = asyncio.Event()

    async def arrival(self, prompt: Sequence[int], agent: str | None = None) -> None:
        """Wait until a request with this prompt, of this agent if given, is next to arrive, if the recording has one.

        Raises:
            Diverged: the requests before it did not come.
        """
        left = (one for one in self._requests if one.prompt == tuple(prompt) and agent in (None, one.agent))
        known = next((one for one in left if not one.claimed), None)
        if known is not None:
            known.claimed = True
            await self._until(lambda: self._next() is known)

    async def reply(self, arrival: Arrival) -> None:
        """Wait until the reply to a request is the next to be sent.

        Raises:
            Diverged: the requests before it did not come.
        """
        if arrival.number < len(self._requests):
            own = self._requests[arrival.number]
            await self._until(lambda: self._next() is None and self._nodes() >= own.reply)

    def changed(self, arrived: int) -> None:
        """Note that a request has arrived, the last of so many, or that a reply was sent."""
        self._arrived = arrived
        self._changed.set()

    def _nodes(self) -> int:
        return len(self._session.nodes)

    def _next(self) -> _Request | None:
        """The request that has to arrive before anything else happens; None where a reply has to be sent first."""
        if self._arrived < len(self._requests) and self._requests[self._arrived].arrival.nodes <= self._nodes():
            return self._requests[self._arrived]
        return None

    async def _until(self, due: Callable[[], bool]) -> None:
        while not due():
            self._changed.clear()
            missing = self._next()
            if missing is None:  # an engine generates, and has deadlines of its own
                await self._changed.wait()
                continue
            try:
                async with asyncio.timeout(self._patience):
                    await self._changed.wait()
            except TimeoutError:
                where = f"session {self._name}, turn {missing.turn}"
                error = Diverged(f"{where}: the program did not request it within {self._patience:g} s")
                self._fail(error)
                raise error from None


def is_answered(session: Session) -> bool:
    """Return whether all requests of an agent program's session got a turn; others came and went by the clock."""
    names = ("failures", "disconnects", "slow_readers", "unanswered")
    numbers = {node.arrival.number for node in session.nodes if node.arrival is not None}
    return numbers == set(range(len(numbers))) and not any(session.counters.get(f"gateway/{name}") for name in names)


def _requests(recorded: Session) -> list[_Request]:
    """The recorded requests, in the order of their arrival."""
    first: dict[int, tuple[Arrival, Node]] = {}
    for node in recorded.nodes:
        if node.arrival is not None:
            first.setdefault(node.arrival.number, (node.arrival, node))
    return [_request(recorded, *first[number]) for number in sorted(first)]


def _request(recorded: Session, arrival: Arrival, turn: Node) -> _Request:
    reply = turn.id
    while reply and not recorded.nodes[reply - 1].sampled:
        reply -= 1  # messages that were new with the request were added with its turn
    return _Request(arrival, turn.agent, tuple(prompt_of(recorded, turn)), turn.id, reply)


def prompt_of(session: Session, turn: Node) -> list[int]:
    """The tokens that a turn was generated from."""
    return [*tree.path_ids(session, turn.parent), *turn.token_ids[: turn.versions[0].start]]
