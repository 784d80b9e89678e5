"""A session's latest replies and conversations, kept beside the tree.

The tree has what was said, so any stored reply can be continued by its id. Here is what it does not have: which
parameters a reply was asked with, whether its path begins with instructions, how far one has come that is made in the
background. It is kept of the latest replies only, within a number of bytes, and stored with the session, so that it is
found after a restart.

Pure: no clock, no randomness, no engine.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import orjson

from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.wire import custom

MOST_REPLIES = 256
MOST_BYTES = 4 << 20
"""Bytes of parameters; equal ones of replies one after the other are kept once."""
MOST_CONVERSATIONS = 64
MOST_ADDED = 1 << 20
"""Bytes of items that were added to a conversation and that no reply has read yet."""


STOPPED: Mapping[str, str] = MappingProxyType(
    {"code": "request_ended", "message": "the session was closed before the reply was complete"}
)
"""The error of a reply that the gateway's end has cut off."""


class ReplyStatus(Enum):
    """The progress of a reply."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """The parameters of a request that its reply repeats; `text` is their JSON, by which equal ones are known."""

    text: tuple[bytes, ...]
    fields: Mapping[str, Any]
    instructions: str | None = None

    @property
    def customs(self) -> frozenset[str]:
        """The names of the custom tools on offer."""
        return custom.names_of(self.fields.get("tools", []))


@dataclass(slots=True, eq=False)
class KeptReply:
    """A reply that can be fetched by its id.

    Attributes:
        reply_id: its id, without the protocol's prefix.
        asked: the request's parameters.
        frame: the response's other fields, but for its output.
        status: how far it has come.
        node: its turn; None before it has ended, and if it never does.
        cancel: ends it; None unless it is made in the background and in progress.
    """

    reply_id: str
    asked: RequestParameters
    frame: dict[str, Any]
    status: ReplyStatus
    node: int | None = None
    cancel: Callable[[], object] | None = None

    def end(self, status: ReplyStatus, error: dict[str, Any] | None = None) -> None:
        """End the reply without a turn."""
        self.status, self.cancel, self.frame["error"] = status, None, error


@dataclass(slots=True, eq=False)
class StoredConversation:
    """A conversation with an id, which each reply in it continues.

    Attributes:
        id: the id, with its prefix.
        created: in seconds since 1970.
        metadata: the client's own.
        head: the latest reply in it.
        added: items that were added since.
        before: head and items as the latest request found them, and its history's digest: for a retry of it.
    """

    id: str
    created: int
    metadata: dict[str, Any]
    head: str | None = None
    added: list[Any] = field(default_factory=list)
    before: tuple[str | None, list[Any], str] | None = None

    def advance(self, reply_id: str, history: bytes) -> None:
        """Note that a reply was stored; `history` is what its client sent."""
        if reply_id != self.head:
            self.before = self.head, self.added, _digest(history)
        self.head, self.added = reply_id, []

    def continued(self, history: bytes, is_retry: bool) -> tuple[str | None, list[Any]]:
        """The reply and the items that a request continues."""
        if is_retry and self.before is not None and self.before[2] == _digest(history):
            return self.before[:2]
        return self.head, self.added


class Replies:
    """A session's latest replies, and its conversations."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptReply | None] = OrderedDict()
        self._conversations: dict[str, StoredConversation] = {}
        self._stored: str | None = None

    @classmethod
    def unpacked(cls, data: bytes) -> Replies:
        """Load what `unstored` returned; a reply that was in progress has failed."""
        replies, stored = cls(), orjson.loads(data)
        asked = [
            RequestParameters((orjson.dumps(fields),), fields, instructions) for fields, instructions in stored["asked"]
        ]
        for reply_id, kept in stored["replies"]:
            if kept is None:
                replies._kept[reply_id] = None
                continue
            place, frame, status, node = kept
            reply = KeptReply(reply_id, asked[place], frame, ReplyStatus(status), node)
            if reply.status is ReplyStatus.IN_PROGRESS:
                reply.end(ReplyStatus.FAILED, dict(STOPPED))
            replies._kept[reply_id] = reply
        for one in stored["conversations"]:
            before = one.pop("before")
            conversation = StoredConversation(**one, before=None if before is None else tuple(before))
            replies._conversations[conversation.id] = conversation
        return replies

    def unstored(self) -> bytes | None:
        """Return the bytes to store, as `unpacked` takes them; None if nothing has changed since the last call."""
        if self._stored is None and not self._kept and not self._conversations:
            return None
        packed = self._pack()
        known, self._stored = self._stored, _digest(packed)
        return None if known == self._stored else packed

    def _pack(self) -> bytes:
        kept = {reply_id: one for reply_id, one in self._kept.items() if one is not None}
        asked = list({id(one.asked): one.asked for one in kept.values()}.values())
        places = {id(one): place for place, one in enumerate(asked)}
        replies = [
            (name, None if one is None else (places[id(one.asked)], one.frame, one.status, one.node))
            for name, one in self._kept.items()
        ]
        parameters = [(one.fields, one.instructions) for one in asked]
        conversations = list(self._conversations.values())
        return orjson.dumps({"asked": parameters, "replies": replies, "conversations": conversations})

    def keep(self, reply: KeptReply) -> None:
        """Keep a reply, and drop the oldest ones that are too many."""
        newest = next(reversed(self._kept.values()), None)
        same = newest is not None and newest.asked.text == reply.asked.text
        if same and newest is not None:
            reply.asked = newest.asked
        self._put(reply.reply_id, reply)
        while not same and self._bytes() > MOST_BYTES and self._drop_oldest():
            pass

    def hide(self, reply_id: str) -> None:
        """Answer as if there were no such reply: it was deleted, or not to be stored."""
        self._put(reply_id, None)

    def get(self, response_id: str) -> KeptReply:
        """The reply of a response's id; ApiError where there is none, or none any more."""
        kept = self._kept.get(response_id.removeprefix("resp_"))
        if kept is None:
            raise ApiError(404, f"no response {response_id!r:.100} in this session", "response_not_found")
        return kept

    def find(self, reply_id: str) -> KeptReply | None:
        """The reply of an id, if it is kept."""
        return self._kept.get(reply_id)

    def hidden(self, reply_id: str) -> bool:
        """Return whether a reply must not be found, although the tree has it."""
        return self._kept.get(reply_id, self) is None

    def add_conversation(self, conversation: StoredConversation) -> None:
        """Keep a conversation, and drop the oldest ones that are too many."""
        self._conversations[conversation.id] = conversation
        if len(self._conversations) > MOST_CONVERSATIONS:
            del self._conversations[next(iter(self._conversations))]

    def conversation(self, conversation_id: str) -> StoredConversation:
        """The conversation of an id; ApiError where there is none."""
        if conversation_id not in self._conversations:
            message = f"no conversation {conversation_id!r:.100} in this session"
            raise ApiError(404, message, "conversation_not_found", "conversation")
        return self._conversations[conversation_id]

    def remove_conversation(self, conversation_id: str) -> None:
        """Forget a conversation; what was said in it stays in the tree."""
        self._conversations.pop(conversation_id, None)

    def _put(self, reply_id: str, reply: KeptReply | None) -> None:
        self._kept[reply_id] = reply
        self._kept.move_to_end(reply_id)
        if len(self._kept) > MOST_REPLIES:
            self._drop_oldest()

    def _bytes(self) -> int:
        asked = {id(one.asked): one.asked for one in self._kept.values() if one is not None}
        return sum(len(part) for one in asked.values() for part in one.text)

    def _drop_oldest(self) -> bool:
        """Drop the oldest reply, and return whether there was one: those in progress stay."""
        ended = (key for key, one in self._kept.items() if one is None or one.cancel is None)
        oldest = next(ended, None)
        if oldest is not None:
            del self._kept[oldest]
        return oldest is not None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
