"""A request of the Responses protocol: it may refer to what is kept here, and its reply is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import History
from agentrl.sessions.gateway.replies.items import item_of_id
from agentrl.sessions.gateway.replies.kept import ReplyStatus, StoredConversation
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.sizes import LARGE_BODY
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import responses
from agentrl.sessions.tree.turn_generator import Prompt
from agentrl.types import FinishReason, Node

_REFERENCE = b'"item_reference"'


@dataclass
class ReplyExchange(Exchange):
    """An exchange whose reply is kept, unless its client wants none stored.

    `prepared` is set once the request was found to be in order; `leave` ends it, if it is made in the background.
    """

    leave: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.prepared = asyncio.Event()
        self.sent_history = self.request.history.raw if self.request.history is not None else b""
        self.conversation: StoredConversation | None = None
        self._resolved = False

    async def prepare(self, cancel: Callable[[], object] = lambda: None) -> None:
        """Prepare the exchange like any other; one in the background can be fetched from now on."""
        await super().prepare(cancel)
        if self.leave is not None and not self.is_retry:
            kept = responses.kept(self, ReplyStatus.IN_PROGRESS)
            kept.cancel = self.leave
            self.state.replies.keep(kept)
        self.prepared.set()

    async def _render(self, limit: int | None = None) -> Prompt:
        if not self._resolved:
            self.request.digest()  # of what was sent, by which a retry is known
            name = self.request.extra["conversation"]
            self.conversation = self.state.replies.conversation(name) if name is not None else None
            if len(self.sent_history) >= LARGE_BODY:
                await asyncio.to_thread(resolve, self.state, self.request, self.conversation)
            else:
                resolve(self.state, self.request, self.conversation)
            self._resolved = True
        return await super()._render(limit)

    def commit(self) -> list[Node]:
        """Add the turn to the tree, and keep the reply."""
        nodes = super().commit()
        cut = nodes[0].finish_reason is FinishReason.LENGTH
        replies = self.state.replies
        if self.request.extra["store"]:
            replies.keep(responses.kept(self, ReplyStatus.INCOMPLETE if cut else ReplyStatus.COMPLETED, nodes[0].id))
        else:
            replies.hide(self.reply_id)
        if self.conversation is not None:
            self.conversation.advance(self.reply_id, self.sent_history)
        return nodes


def resolve(state: SessionState, request: TurnRequest, conversation: StoredConversation | None) -> None:
    """Put in place what a request refers to: items by their ids, and the conversation that it continues.

    Raises:
        ApiError: there is nothing of such an id.
    """
    history = request.history or History.of([])
    added: list[Any] = []
    if conversation is not None:
        request.previous_reply, added = conversation.continued(history.raw, bool(request.retry))
    if added or _REFERENCE in history.raw:
        items = [_referred(state, item, place) for place, item in enumerate(history.items())]
        request.history = History.of([*added, *items])


def _referred(state: SessionState, item: Any, place: int) -> Any:
    if not isinstance(item, dict) or item.get("type") != "item_reference":
        return item
    found = item_of_id(state.session, state.index, item.get("id"), state.replies.hidden)
    if found is None:
        where = f"input[{place}].id"
        raise ApiError(404, f"{where}: no item {item.get('id')!r:.100} in this session", "item_not_found", where)
    return found
