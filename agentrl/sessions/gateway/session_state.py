"""An open session: its tree, its latest histories, and the requests in progress.

Everything here runs on the event loop's thread and changes the tree without awaiting, so concurrent requests in one
session are safe. A request's new messages and turns are added once the reply has been sent, and not before; two
requests with the same new messages share their nodes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.bodies import History
from agentrl.sessions.gateway.matching import HistoryMatch, NodeIndex, ParentKey, root_key, tools_digest
from agentrl.sessions.gateway.reading import prefill_of
from agentrl.sessions.gateway.replies.kept import Replies
from agentrl.sessions.gateway.retries import PendingRequest, Retries
from agentrl.sessions.gateway.schedule import RecordedOrder
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.renderers.base import RenderedMessage
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.turn_generator import GeneratedTurn, Prompt, TurnGenerator
from agentrl.types import Arrival, FinishReason, Message, Node, Sampling, Session

HISTORIES = 8
"""Histories (and token paths) that a session caches; older ones are found by walking the tree."""


def _few(items: list[Any], most: int) -> list[Any]:
    if len(items) > most:
        raise ApiError(
            413, f"{len(items)} messages are new in this request; at most {most} are read", "too_many_messages"
        )
    return items


def _convert(request: TurnRequest, items: list[Any], start: int) -> list[Message]:
    """The messages of items, without one that begins the turn (`TurnRequest.prefill`)."""
    messages = request.convert(items, start, request.ignored)
    if request.prefills and messages and messages[-1].role == "assistant":
        request.prefill = prefill_of(messages.pop())
    return messages


@dataclass(slots=True, eq=False)
class KnownHistory:
    """A history as a client last sent it, how many items it has, and the node that its last message is."""

    agent: str | None
    protocol: str
    head: Any
    beginning: bytes
    count: int
    node: int


@dataclass
class SessionState:
    """One open session and its index.

    `stored` counts the nodes that the store has; `truncated` says that the last request reached a limit,
    `broken` that the store failed: the session then ends as INFRA_ERROR. `arrived` counts the requests for turns.
    `schedule` is the order that a session which is run again keeps. `by_agent` says that requests name their agents,
    each of which has roots of its own.
    """

    session: Session
    index: NodeIndex = field(init=False)
    histories: list[KnownHistory] = field(default_factory=list)
    pending: list[PendingRequest] = field(default_factory=list)
    retries: Retries = field(default_factory=Retries)
    replies: Replies = field(default_factory=Replies)
    stored: int = 0
    truncated: bool = False
    broken: str | None = None
    arrived: int = 0
    schedule: RecordedOrder | None = None
    by_agent: bool = False

    def __post_init__(self) -> None:
        self.index = NodeIndex(self.session, by_agent=self.by_agent)
        self._paths: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        self._agents: dict[int, str] = {}
        self._counted = dict(self.session.counters)
        for node in self.session.nodes:
            self._agent_of(node)
        self._size = tree.size(self.session)
        self._turns = sum(node.sampled for node in self.session.nodes)
        arrivals = [node.arrival.number for node in self.session.nodes if node.arrival is not None]
        self.arrived = max(arrivals, default=-1) + 1

    @property
    def size(self) -> int:
        """The number of the tree's tokens."""
        return self._size

    @property
    def turns(self) -> int:
        """Turns that an engine generated."""
        return self._turns

    def find_turn(self, name: str | int) -> Node:
        """The turn of a reply's id (with its protocol's prefix or without), or of a node's number.

        Raises:
            ApiError: there is none.
        """
        node_id = (
            name if isinstance(name, int) else self.index.node_of_reply(name.rpartition("-")[2].rpartition("_")[2])
        )
        if node_id is None or not 0 <= node_id < len(self.session.nodes) or not self.session.nodes[node_id].sampled:
            raise ApiError(404, f"turn={name!r} is no turn of this session", "turn_not_found", "turn")
        return self.session.nodes[node_id]

    # ------------------------------------------------------------------------------------- requesting

    def match(self, request: TurnRequest, most: int) -> tuple[HistoryMatch, KnownHistory | None]:
        """Match the request's history to the tree; only what a known history does not have is converted.

        It changes nothing, so that it may run beside the event loop: nodes are only ever added meanwhile. `most`: how
        many messages may be new.

        Raises:
            ApiError: a message can't be read, there are too many, or the reply that it continues is unknown.
        """
        if request.previous_reply is not None:
            return self._after_reply(request, request.previous_reply, most), None
        history = request.history or History.of([])
        known = self._known_history(request, history)
        items = _few(history.items(known.beginning if known is not None else b""), most)
        start = known.count if known is not None else 0
        request.count = start + len(items)
        messages = _convert(request, items, start)
        if known is not None:
            return self.index.match(known.node, messages, request.callable), known
        key = root_key(request.tools, request.agent)
        return self.index.match(key, [*request.prelude, *messages], request.callable), None

    def known_beginning(self, request: TurnRequest) -> bytes:
        """Return the part of a request's history that an earlier request had, so that it need not be parsed."""
        known = (
            self._known_history(request, request.history)
            if request.history is not None and request.previous_reply is None
            else None
        )
        return known.beginning if known is not None else b""

    def _after_reply(self, request: TurnRequest, reply_id: str, most: int) -> HistoryMatch:
        """Continue a reply by its id; other instructions or tools than its own begin a new root.

        A system message of the input is part of what is continued, instructions are not. Where nothing is kept of the
        reply any more, one that begins the path counts as instructions if the request has some.
        """
        kept, node_id = self.replies.find(reply_id), self.index.node_of_reply(reply_id)
        if node_id is None or self.replies.hidden(reply_id):
            if kept is not None and kept.cancel is not None:
                raise ApiError(400, f"reply {reply_id!r:.100} is in progress", "previous_response_in_progress")
            code = "thread_not_found" if request.in_thread else "previous_response_not_found"
            raise ApiError(404, f"no reply {reply_id!r:.100} in this session", code)
        nodes = tree.path(self.session, node_id)
        items = _few(request.history.items(), most) if request.history is not None else []
        new = _convert(request, items, 0)
        wanted = request.prelude[0].text if request.prelude else None
        had = kept.asked.instructions if kept is not None else _prompt(nodes[0]) if wanted is not None else None
        if request.in_thread:
            request.tools, same = nodes[0].tools, True
        else:
            same = had == wanted and tools_digest(request.tools) == tools_digest(nodes[0].tools)
        same = same and request.agent in (None, nodes[0].agent)
        if same and nodes[-1].finish_reason is not FinishReason.LENGTH:
            return self.index.match(node_id, new, request.callable)
        said = [node.message for node in nodes]
        history = said if same else [*request.prelude, *said[0 if had is None else 1 :]]
        return self.index.match(root_key(request.tools, request.agent), [*history, *new], request.callable)

    def path_ids(self, node_id: int | None) -> tuple[int, ...]:
        """The tokens of the path to a node."""
        if node_id is None:
            return ()
        known = self._paths.get(node_id)
        if known is None:
            known = tuple(tree.path_ids(self.session, node_id))
            self._cache_path(node_id, known)
        return known

    def seed(self, digest: bytes, choice: int, attempt: int) -> int:
        """A seed for a turn, from the session's seed and the path's digest: not from the time of the request."""
        words = f"{self.session.seed}/{self.session.sample}/{choice}/{attempt}/".encode()
        return int.from_bytes(hashlib.blake2b(words + digest, digest_size=8).digest(), "big") >> 1

    def stored_turns(
        self, node_id: int | None, opening: Sequence[int], wanted: Sequence[Sampling], remaining: int
    ) -> list[Node] | None:
        """The turns that were generated after a node with these samplings; None unless all of them are there."""
        found: list[Node] = []
        for sampling in wanted:
            for node in self.index.sampled_children(node_id):
                fits = node not in found and _fits(node, sampling, remaining)
                if fits and node.token_ids[: node.versions[0].start] == opening:
                    found.append(node)
                    break
            else:
                return None
        return found

    def stored_path(self, key: ParentKey, new: Sequence[RenderedMessage]) -> int | None:
        """The node of the last of these messages below `key`; None unless all are stored, as by an equal request."""
        for message in new:
            node = self.index.same_child(key, message.message, message.token_ids)
            if node is None:
                return None
            key = node.id
        return key if isinstance(key, int) else None

    def _known_history(self, request: TurnRequest, history: History) -> KnownHistory | None:
        """The longest known history that this request continues, compared as the client's JSON."""
        best: KnownHistory | None = None
        for known in self.histories:
            if (
                (best is None or known.count > best.count)
                and known.agent == request.agent
                and known.protocol == request.protocol
                and known.head == request.head
            ):
                best = known if history.continues(known.beginning) else best
        return best

    def arrive(self, pending: PendingRequest) -> Arrival:
        """Note that a request has arrived, and that its turns are about to be generated."""
        self.pending.append(pending)
        arrival = Arrival(self.arrived, len(self.session.nodes), pending.attempt)
        self.arrived += 1
        self._note_change()
        return arrival

    # -------------------------------------------------------------------------------------- storing

    def commit(
        self,
        generator: TurnGenerator,
        request: TurnRequest,
        match: HistoryMatch,
        known: KnownHistory | None,
        prompt: Prompt,
        choices: Sequence[GeneratedTurn],
    ) -> list[Node]:
        """Add a request's new messages and its turns; returns the turns' nodes."""
        key: ParentKey = match.parent_key
        for message in prompt.new:
            node = self.index.same_child(key, message.message, message.token_ids)
            if node is None:
                parent = key if isinstance(key, int) else None
                tools = request.tools if parent is None else ()
                node = self._add(tree.add_rendered(self.session, parent, message, tools=tools), request.agent)
                if parent is None and request.excluded:
                    self.session.excluded.append(node.id)
            key = node.id
        assert isinstance(key, int)
        self._paths.pop(prompt.parent if prompt.parent is not None else -1, None)
        for choice in choices:
            choice.node = self._add_turn(generator, key, choice)
            if choice is choices[0]:
                self._cache_path(choice.node.id, (*prompt.token_ids, *choice.turn.token_ids))
        self.cache_history(request, known, key)
        self._note_change()
        return [choice.node for choice in choices if choice.node is not None]

    def counters_changed(self) -> bool:
        """Return whether a counter has changed since the last call."""
        known, self._counted = self._counted, dict(self.session.counters)
        return known != self._counted

    def unstored(self) -> list[Node]:
        """The nodes that are not in the store yet; they count as stored from now on."""
        nodes, self.stored = self.session.nodes[self.stored :], len(self.session.nodes)
        return nodes

    def _note_change(self) -> None:
        if self.schedule is not None:
            self.schedule.changed(self.arrived)

    def _add_turn(self, generator: TurnGenerator, parent: int, choice: GeneratedTurn) -> Node:
        token_ids = [*choice.opening, *choice.turn.token_ids]
        for node in self.index.sampled_children(parent):
            if node.sampling == choice.sampling and node.token_ids == token_ids:
                return node  # two concurrent requests with the same seed
        self._turns += 1
        return self._add(generator.add(self.session, parent, choice))

    def _add(self, node: Node, agent: str | None = None) -> Node:
        node.agent = self._agent_of(node, agent)
        self.index.add(node)
        self._size += tree.new_tokens(node)
        return node

    def _agent_of(self, node: Node, named: str | None = None) -> str:
        """The agent of a node's path: the named one, else "agent", and another one for each further system prompt."""
        if node.parent is not None:
            name = self._agents[node.parent]
        elif named is not None:
            name = named
        else:
            roots = [i for i in self._agents if self.session.nodes[i].parent is None]
            same = [i for i in roots if _prompt(self.session.nodes[i]) == _prompt(node)]
            names = {self._agents[i] for i in roots}
            name = self._agents[same[0]] if same else "agent" if not names else f"agent-{len(names) + 1}"
        self._agents[node.id] = name
        return name

    def _cache_path(self, node_id: int, ids: tuple[int, ...]) -> None:
        """Cache a path, as a tuple: the collector would traverse a list of 128k tokens every time."""
        self._paths[node_id] = ids
        if len(self._paths) > HISTORIES:
            self._paths.popitem(last=False)

    def cache_history(self, request: TurnRequest, old: KnownHistory | None, node: int) -> None:
        """Cache this history, in place of the one that it continues."""
        if request.history is None or request.previous_reply is not None or request.prefill:
            return  # the message that a prefilled turn becomes is not what this history ends in
        if old in self.histories:
            self.histories.remove(old)
        self.histories.append(
            KnownHistory(request.agent, request.protocol, request.head, request.history.beginning, request.count, node)
        )
        del self.histories[:-HISTORIES]


def _prompt(node: Node) -> str | None:
    return node.message.text if node.message.role in ("system", "developer") else None


def _fits(node: Node, wanted: Sampling, remaining: int) -> bool:
    """True if a stored turn is what `wanted` would generate; a truncated one has to have the same limit."""
    drawn = node.drawn_with
    if not _same_sampling(drawn, wanted):
        return False
    if node.finish_reason is FinishReason.LENGTH:
        return drawn.max_new_tokens in (wanted.max_new_tokens, min(wanted.max_new_tokens, remaining))
    return len(node.token_ids) - node.versions[0].start <= wanted.max_new_tokens


def _same_sampling(stored: Sampling | None, wanted: Sampling) -> bool:
    """True if two sets of parameters are the same, apart from the length."""
    names = (
        *("temperature", "seed", "stop", "top_p", "top_k", "min_p"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "json_schema", "regex"),
        "lark",
    )
    return stored is not None and all(getattr(stored, name) == getattr(wanted, name) for name in names)
