"""A request in the same form for all protocols.

The conversation stays the client's JSON text (`history`): what an earlier request had is recognised by comparing
the text, and only the rest is parsed, validated and converted. So a request's cost grows with what is new in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentrl.sessions.gateway.http.bodies import Body, History
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import Message, Sampling

Protocol = Literal["chat", "responses", "messages", "completions", "google"]


@dataclass(slots=True)
class TurnRequest:
    """One request for a turn.

    Attributes:
        protocol: whose format it is in.
        model: the name that the client requested; replies repeat it.
        head: the raw JSON besides the history (system prompt, tools).
        prelude: the messages in the head (a system prompt outside the messages).
        history: the conversation as text; None if the protocol has none.
        convert: validates and converts items, given the first one's index, and notes the fields that it ignores; raises
            ApiError, naming the item.
        tools: the tools that the prompt lists.
        deferred: further tools that may be called: not in the prompt; messages may define them later.
        sampling: the parameters; `seed` is None where the client gave none.
        n: how many choices.
        stream: whether the reply is streamed.
        force: None lets the model choose, "" forces a call, a name forces a call of that tool.
        allowed: the names of the tools that may be called; None: all.
        strict: the names of the tools whose calls must fit their schemas.
        thinking: whether the turn may begin with reasoning; None leaves it to the format.
        prefills: whether an assistant's message at the end of the history is the beginning of the turn.
        prefill: that beginning, once the history is read.
        parallel: whether a turn may have more than one call.
        previous_reply: the reply that the conversation continues (Responses' `previous_response_id`).
        in_thread: whether it continues that reply with its system prompt and tools (Anthropic's `thread`).
        retry: how often the client has tried before, as its header says; None without one.
        key: the name of the request, which a retry has as well (`Idempotency-Key`); None without one.
        extra: what only the protocol's own code needs.
        count: how many items the history has, once known.
        ignored: ignored fields, which change nothing, each with the name of its counter.
        excluded: whether its headers say that a root which it begins is not trained on.
        agent: whose turn it is; None where agents are told apart by their system prompts.
    """

    protocol: Protocol
    model: str
    head: Any
    history: History | None
    convert: Callable[[Sequence[Any], int, dict[str, str]], list[Message]]
    sampling: Sampling
    prelude: list[Message] = field(default_factory=list)
    tools: Sequence[ToolSchema] = ()
    deferred: Sequence[ToolSchema] = ()
    n: int = 1
    stream: bool = False
    force: str | None = None
    allowed: frozenset[str] | None = None
    strict: frozenset[str] = frozenset()
    thinking: bool | None = None
    prefills: bool = False
    prefill: str = ""
    parallel: bool = True
    previous_reply: str | None = None
    in_thread: bool = False
    retry: int | None = None
    key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    ignored: dict[str, str] = field(default_factory=dict)
    excluded: bool = False
    agent: str | None = None
    _digest: int | None = field(default=None, init=False)

    @property
    def callable(self) -> list[ToolSchema]:
        """Every tool that a turn may call."""
        return [*self.tools, *self.deferred]

    @property
    def reads_calls(self) -> bool:
        """False where no tools are on offer: a call that the model writes all the same is text."""
        return bool(self.tools or self.deferred) or self.allowed is not None

    def may_call(self, name: str) -> bool:
        """Return whether a turn may call the tool of this name."""
        return self.allowed is None or name in self.allowed

    def digest(self) -> int:
        """A digest that this process's equal requests share: of the request as it was when this was first called."""
        if self._digest is None:
            history = self.history.raw if self.history is not None else repr(self.extra.get("prompt"))
            follows = self.previous_reply, self.extra.get("conversation")
            self._digest = hash((self.protocol, history, follows, self.sampling, self.n, self.stream, self.agent))
        return self._digest


Read = Callable[[Body, Limits, "int | None", bool], TurnRequest]
"""Reads a body as a TurnRequest: the body, the limits, how often the client has tried, whether the engine supports JSON
schemas."""
MAX_TEXT, MAX_CACHED = 1 << 18, 64
"""The largest parameters (in bytes) that are cached, and how many of them."""


def cache_reader(read: Read) -> Read:
    """Cache `read` by the parameters' bytes: a session's requests mostly differ in their history alone.

    Only for protocols whose conversion keeps no state in the request.
    """
    known: OrderedDict[tuple[tuple[bytes, ...], Limits, int | None, bool], TurnRequest] = OrderedDict()

    def cached_read(body: Body, limits: Limits, retry: int | None, json_schema: bool) -> TurnRequest:
        if body.history is None:
            return read(body, limits, retry, json_schema)
        key = body.text, limits, retry, json_schema
        request = known.get(key)
        if request is None:
            request = read(body, limits, retry, json_schema)
            if sum(map(len, body.text)) <= MAX_TEXT:
                known[key] = request
                if len(known) > MAX_CACHED:
                    known.popitem(last=False)
        else:
            known.move_to_end(key)
        return replace(request, history=body.history, count=0, ignored=dict(request.ignored))

    return cached_read
