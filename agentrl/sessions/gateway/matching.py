"""Finding a client's history in a session's tree.

Clients resend their whole history, in their own formatting: without the reasoning, without the text beside calls, with
other white space in a call's arguments, with defaults of the tool's schema filled in, with text of their own appended.
Each stored node is indexed under its parent by two keys: the strict one is the message as it was sent, the loose one
what every client keeps. A history is matched from the root down, message by message, as far as it is stored; the rest
is new.

A history can match several siblings (`n` choices, the same text sampled twice), so all of them are followed and the
later messages decide; among equal ones the one with the fewest loose matches is taken, then the newest.

Pure: no clock, no randomness, no engine.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import orjson

from agentrl.sessions.renderers.base import ToolSchema
from agentrl.types import FinishReason, Message, Node, Session, order_results

ParentKey = int | str
"""The parent of a message: a node's id, or for a root its `root_key`."""


@dataclass(frozen=True, slots=True)
class HistoryMatch:
    """The stored part of a history.

    Attributes:
        parent_key: of the first new message: the deepest stored node that matches.
        new: the messages that are not stored.
        loose_matches: how many of the stored ones match only by their loose key.
        branch_cause: why this is a branch; None is a clean continuation or a session's beginning.
        dropped_tokens: sampled tokens on the newest path that the history does not have.
        extended_turn: the stored turn to which the first new message appends text.
        reordered: how many of the new messages are results that were put in the order of their calls.
    """

    parent_key: ParentKey
    new: tuple[Message, ...]
    loose_matches: int = 0
    branch_cause: str | None = None
    dropped_tokens: int = 0
    extended_turn: int | None = None
    reordered: int = 0

    @property
    def parent(self) -> int | None:
        """The node to continue; None begins a root."""
        return self.parent_key if isinstance(self.parent_key, int) else None


class NodeIndex:
    """A session's nodes by parent and message."""

    def __init__(self, session: Session, *, by_agent: bool = False) -> None:
        self._session, self._by_agent = session, by_agent
        self._strict: dict[tuple[ParentKey, Hashable], list[int]] = defaultdict(list)
        self._loose: dict[tuple[ParentKey, Hashable], list[int]] = defaultdict(list)
        self._truncated: set[tuple[ParentKey, Hashable]] = set()
        self._known: set[Hashable] = set()
        self._children: dict[int, list[int]] = defaultdict(list)
        self._digests: dict[int, bytes] = {}
        self._roots: dict[int, str] = {}
        self._replies: dict[str, int] = {}
        for node in session.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Index a node that was added to the tree."""
        agent = node.agent if self._by_agent else None
        parent_key: ParentKey = root_key(node.tools, agent) if node.parent is None else node.parent
        if node.parent is None:
            self._roots[node.id] = str(parent_key)
        else:
            self._children[node.parent].append(node.id)
        above = self.path_digest(node.parent, agent)
        self._digests[node.id] = extended_digest(above, node.token_ids, node.message.images)
        if node.reply_id is not None:
            self._replies[node.reply_id] = node.id
        strict, loose = strict_key(node.message), loose_key(node.message)
        if node.finish_reason is FinishReason.LENGTH:
            self._truncated.add((parent_key, loose))
            return
        self._strict[parent_key, strict].append(node.id)
        if node.copy_of is not None and node.copied_tokens is None:
            original = strict_key(self._session.nodes[node.copy_of].message)
            if original != strict:
                self._strict[parent_key, original].append(node.id)  # clients may echo the reasoning that was left out
        self._loose[parent_key, loose].append(node.id)
        self._known.add(loose)

    def path_digest(self, node_id: int | None, agent: str | None = None) -> bytes:
        """A digest of the tokens and images of the path to a node, and of its agent where those have own roots."""
        return self._digests[node_id] if node_id is not None else (agent or "").encode()

    def node_of_reply(self, reply_id: str) -> int | None:
        """The node that was sent with this reply id."""
        return self._replies.get(reply_id)

    def sampled_children(self, node_id: int | None) -> list[Node]:
        """The turns that were generated directly after a node."""
        if node_id is None:
            return []
        return [node for i in self._children.get(node_id, ()) if (node := self._session.nodes[i]).sampled]

    def has_children(self, node_id: int) -> bool:
        """Return whether a node has children."""
        return bool(self._children.get(node_id))

    def same_child(self, parent_key: ParentKey, message: Message, token_ids: Sequence[int]) -> Node | None:
        """The stored node with exactly this message and these tokens."""
        for i in self._strict.get((parent_key, strict_key(message)), ()):
            node = self._session.nodes[i]
            if node.token_ids == token_ids and not node.sampled:
                return node
        return None

    def match(
        self, parent_key: ParentKey, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()
    ) -> HistoryMatch:
        """Match `messages` below `parent_key` as far as they are stored; `tools` are what turns may call."""
        candidates: list[tuple[ParentKey, int]] = [(parent_key, 0)]
        matched, sent = 0, messages
        above = self._session.nodes[parent_key].message if isinstance(parent_key, int) else None
        messages = order_results(above, sent)
        for message in messages:
            below = self._children_like(candidates, message, tools)
            if not below:
                break
            candidates, matched = below, matched + 1
        best, loose = min(candidates, key=lambda step: (step[1], -step[0] if isinstance(step[0], int) else 0))
        rest = tuple(messages[matched:])
        turn = self._find_extended(candidates, rest[0]) if rest else None
        if turn is not None and turn.parent is not None:
            best, loose = turn.parent, dict(candidates)[turn.parent]
        cause = self._branch_cause(best, rest)
        dropped = self._dropped_tokens(best) if cause in ("edited", "dropped", "compacted", "cut") else 0
        reordered = sum(new is not old for new, old in zip(rest, sent[matched:], strict=True))
        return HistoryMatch(best, rest, loose, cause, dropped, None if turn is None else turn.id, reordered)

    def add_alias(self, node: Node, echo: Message) -> None:
        """Index this node by this message as well, which means the same."""
        self._loose[node.above, loose_key(echo)].append(node.id)

    def _find_extended(self, candidates: list[tuple[ParentKey, int]], echo: Message) -> Node | None:
        """The turn to which a message appends text: the longest such, the newest of equal ones."""
        if echo.role != "assistant":
            return None
        turns = (node for key, _ in candidates if isinstance(key, int) for node in self.sampled_children(key))
        found = [node for node in turns if extends(echo, node)]
        return max(found, key=lambda node: (len(node.message.text), node.id), default=None)

    def _children_like(
        self, candidates: list[tuple[ParentKey, int]], message: Message, tools: Sequence[ToolSchema]
    ) -> list[tuple[ParentKey, int]]:
        """The candidates' children that match a message: of each the exact ones, else of its calls, else loose."""
        strict = strict_key(message)
        below: list[tuple[ParentKey, int]] = []
        for key, loose in candidates:
            exact = self._strict.get((key, strict), ())
            below += [(i, loose) for i in exact]
            if not exact:
                found = self._of_its_calls(key, message, tools) or self._loose.get((key, loose_key(message)), [])
                below += [(i, loose + 1) for i in found]
        return below

    def _of_its_calls(self, key: ParentKey, message: Message, tools: Sequence[ToolSchema]) -> list[int]:
        """The messages that have the same calls, by their ids: the gateway makes them, and they are unique."""
        if not message.tool_calls or not isinstance(key, int):
            return []
        nodes = [self._session.nodes[i] for i in self._children.get(key, ())]
        whole = [node for node in nodes if node.finish_reason is not FinishReason.LENGTH]
        return [node.id for node in whole if same_calls(message, node.message, tools)]

    def _branch_cause(self, parent_key: ParentKey, rest: Sequence[Message]) -> str | None:
        """The reason why `rest` would be a branch here; None where it isn't one."""
        if not rest:
            return None
        first = rest[0]
        if not isinstance(parent_key, int):
            return self._root_cause(parent_key, rest)
        if (parent_key, loose_key(first)) in self._truncated:
            return "cut"
        children = [self._session.nodes[i] for i in self._children.get(parent_key, ())]
        if first.role == "assistant":
            return "edited" if any(child.sampled for child in children) else "injected"
        if not children:
            return None
        if len(rest) < len(self._newest_path(parent_key)):
            return "dropped" if any(loose_key(m) in self._known for m in rest) else "compacted"
        return "edited"

    def _root_cause(self, parent_key: ParentKey, rest: Sequence[Message]) -> str | None:
        if not self._roots:
            return None
        agent, key = _agent_in(parent_key), loose_key(rest[0])
        own = [root for root in self._roots.values() if _agent_in(root) == agent]
        if not own:
            return "agent"
        if any((root, key) in self._loose for root in own if root != parent_key):
            return "tools"
        if rest[0].role not in ("system", "developer") and any(
            m.role == "assistant" and loose_key(m) in self._known for m in rest
        ):
            return "dropped"
        return "agent"

    def _newest_path(self, parent: int) -> list[int]:
        """The nodes from below `parent` to its newest leaf."""
        nodes = self._session.nodes
        under = {parent}
        newest = parent
        for node in nodes[parent + 1 :]:
            if node.parent in under:
                under.add(node.id)
                newest = node.id
        found = []
        while newest != parent:
            found.append(newest)
            newest = nodes[newest].above
        return found[::-1]

    def _dropped_tokens(self, parent_key: ParentKey) -> int:
        """Sampled tokens on the newest path below, which a branch here does not have."""
        if not isinstance(parent_key, int):
            return 0
        nodes = [self._session.nodes[i] for i in self._newest_path(parent_key)]
        return sum(len(node.token_ids) - node.versions[0].start for node in nodes if node.sampled)


def root_key(tools: Sequence[ToolSchema], agent: str | None) -> str:
    """The key of roots with these tools; of one agent's roots, where a request's model says whose it is."""
    digest = tools_digest(tools)
    return digest if agent is None else f"{agent}/{digest}"


def _agent_in(key: ParentKey) -> str:
    """The agent in a root's key."""
    return str(key).rpartition("/")[0]


def tools_digest(tools: Sequence[ToolSchema]) -> str:
    """A digest of tools, whatever the order of their keys."""
    data: list[Any] = [dict(tool) for tool in tools]
    return hashlib.blake2b(orjson.dumps(data, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def extended_digest(parent: bytes, token_ids: Sequence[int], images: Sequence[str] = ()) -> bytes:
    """The digest of a path, from its parent's digest, and its last node's tokens and images, whose tokens are alike."""
    found = hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16)
    for url in images:
        found.update(hashlib.blake2b(url.encode(), digest_size=16).digest())
    return found.digest()


def strict_key(message: Message) -> Hashable:
    """A key that only identical messages share."""
    calls = tuple((c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    reasoning = message.reasoning_content or ""
    return message.role, _comparable_text(message), reasoning, calls, message.tool_call_id, message.name


def loose_key(message: Message) -> tuple[Hashable, ...]:
    """A key of what every client keeps of a message: role, text, images and calls."""
    calls = tuple((c.function.name, _canonical(c.function.arguments)) for c in message.tool_calls or ())
    shown = _comparable_text(message)
    return message.role, shown.strip() if isinstance(shown, str) else shown, calls


def _comparable_text(message: Message) -> str | tuple[str, ...]:
    """A message's text; with images, its pieces in order."""
    if not message.images:
        return message.text
    assert isinstance(message.content, list)
    return tuple(part.image or part.text or "" for part in message.content)


def same_calls(echo: Message, stored: Message, tools: Sequence[ToolSchema]) -> bool:
    """Return whether an echo is a stored turn with calls, but for what its client left out or filled in.

    The gateway makes the calls' ids, so they tell the turn. Some clients keep the calls alone, without text and
    reasoning beside them. Others validate a call against the tool's schema and send back the result: it may have
    arguments that the model did not write, each the default that the tool declares.
    """
    if echo.role != stored.role or echo.text.strip() not in ("", stored.text.strip()):
        return False
    if not echo.tool_calls or _call_ids(echo) != _call_ids(stored):
        return False
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    for sent, original in zip(echo.tool_calls, stored.tool_calls or (), strict=True):
        name = original.function.name
        if sent.function.name != name:
            return False
        if _canonical(sent.function.arguments) == _canonical(original.function.arguments):
            continue
        given, generated = _object(sent.function.arguments), _object(original.function.arguments)
        if given is None or generated is None:
            return False
        if given != {**_defaults(schemas.get(name), given.keys() - generated.keys()), **generated}:
            return False
    return True


def _defaults(schema: Any, names: Set[str]) -> dict[str, Any]:
    """The default of each of these arguments that has one."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = {name: properties.get(name) for name in names} if isinstance(properties, dict) else {}
    return {name: one["default"] for name, one in declared.items() if isinstance(one, dict) and "default" in one}


def _object(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None if they are not a JSON object."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def extends(echo: Message, turn: Node) -> bool:
    """Return whether an echo is a turn's message with text appended; it may leave out the reasoning."""
    stored = turn.message
    same_calls = loose_key(echo)[-1] == loose_key(stored)[-1]
    same_reasoning = echo.reasoning_content in (None, "", stored.reasoning_content)
    if not same_calls or not same_reasoning or turn.finish_reason is not FinishReason.STOP:
        return False
    return bool(stored.text.strip()) and echo.text.lstrip().startswith(stored.text.lstrip())


def _call_ids(message: Message) -> tuple[str, ...]:
    return tuple(call.id for call in message.tool_calls or ())


def _canonical(arguments: str) -> str | bytes:
    try:
        return orjson.dumps(orjson.loads(arguments or "{}"), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):
        return arguments.strip()
