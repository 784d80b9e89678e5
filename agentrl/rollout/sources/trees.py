"""Conversations written into sessions of exact tokens, those that share a prefix into one tree.

Each message's tokens are those that the model's renderer writes in a rollout. A message that several conversations
begin with is one node, so what they share is computed once, and trained once where any of them trains it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError, RenderError
from agentrl.rollout.sources.messages import Example
from agentrl.sessions.renderers.base import RenderedMessage, Renderer
from agentrl.sessions.tree import tree
from agentrl.types import Message, Node, Session

LAST, ALL = "last", "all"
CUT, LONG, UNTRAINED, REFUSED, ODD = "cut", "too long", "without trained tokens", "refused by the format", "odd"
UNPAIRED = "without another reply to compare with"


@dataclass
class TreeCounts:
    """What became of conversations.

    Attributes:
        rows: conversations by what became of them; those that were just written are in none.
        total: all of them.
        paths: tokens of all paths, each as a row of its own.
        tokens: tokens of the trees.
        trained: those of them that are trained.
        first: for each fate the first conversation that had it, in words.
    """

    rows: Counter[str] = field(default_factory=Counter)
    total: int = 0
    paths: int = 0
    tokens: int = 0
    trained: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def note(self, fate: str, example: Example, why: str = "") -> None:
        """A conversation had a fate that is to be told."""
        self.rows[fate] += 1
        self.first.setdefault(fate, f"{example.place}{f': {why}' if why else ''}")


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """A message's tokens, of which those from `trained_from` on are trained (their number: none)."""

    rendered: RenderedMessage
    trained_from: int

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.rendered.token_ids)


def prefix_key(example: Example) -> str:
    """What conversations of one tree share: tools, system messages, and the first message after them."""
    first = next((i for i, m in enumerate(example.messages) if m.role not in ("system", "developer")), 0)
    whole = first + 1 if len(example.messages) > 1 else 0
    if not whole:
        return json.dumps([example.place])
    messages = [message.model_dump(exclude_none=True) for message in example.messages[:whole]]
    return json.dumps([example.plain, example.tools, messages], sort_keys=True)


def gather(examples: Iterable[Example]) -> list[list[Example]]:
    """The conversations of each tree, in the order of the first ones."""
    trees: dict[str, list[Example]] = {}
    for example in examples:
        trees.setdefault(prefix_key(example), []).append(example)
    return list(trees.values())


@dataclass(frozen=True)
class TreeWriter:
    """Writes conversations into sessions.

    Attributes:
        renderer: the model's.
        config: what is trained, and what is done with long conversations.
        limit: tokens of a path; None: there is no limit.
    """

    renderer: Renderer
    config: DataConfig
    limit: int | None = None

    def write(self, session: Session, examples: Sequence[Example], counts: TreeCounts | None = None) -> None:
        """Write the conversations of one tree into a session.

        Args:
            session: gets their nodes; none of a conversation without trained tokens.
            examples: the conversations.
            counts: is told what became of them.

        Raises:
            ConfigError: one is too long, and data.overlong=refuse.
        """
        counts = counts if counts is not None else TreeCounts()
        before, trained_before = _sizes(session)
        for example in examples:
            counts.total += 1
            try:
                pieces = self._fitting(example, self._pieces(example, counts), counts)
            except RenderError as error:
                counts.note(REFUSED, example, str(error))
                continue
            trained = sum(each.size - each.trained_from for each in pieces) - (
                not pieces[0].trained_from if pieces else 0
            )
            if trained > 0:
                counts.paths += sum(each.size for each in pieces)
                _insert(session, pieces, example)
            elif pieces:
                counts.note(UNTRAINED, example)
        tokens, trained = _sizes(session)
        counts.tokens += tokens - before
        counts.trained += trained - trained_before

    def _pieces(self, example: Example, counts: TreeCounts) -> list[MessageTokens]:
        if example.plain:
            return self._plain(example)
        pieces: list[MessageTokens] = []
        after: Node | None = None
        run: list[Message] = []
        start = 0
        for message in (*example.messages, None):
            if message is not None and message.role != "assistant":
                run.append(message)
                continue
            together = [run] if message is None else [run, [message]]
            for messages in filter(None, together):
                rendered = self.renderer.render(messages, tools=example.tools if after is None else (), after=after)
                for number, (each, ids) in enumerate(zip(messages, rendered, strict=True), start):
                    pieces.append(
                        MessageTokens(RenderedMessage(each, ids), self._trained_from(example, number, ids, counts))
                    )
                after, start = pieces[-1].rendered.as_node(), start + len(messages)
            run = []
        return pieces

    def _plain(self, example: Example) -> list[MessageTokens]:
        encode = self.renderer.tokenizer.encode
        ids = [encode(message.text) for message in example.messages]
        ids[-1] = [*ids[-1], self.renderer.stop_token_ids[0]]
        trained = [
            0 if place == len(ids) - 1 or ALL in self.config.train_on else len(own) for place, own in enumerate(ids)
        ]
        written = zip(example.messages, ids, trained, strict=True)
        return [MessageTokens(RenderedMessage(message, own), begin) for message, own, begin in written]

    def _trained_from(self, example: Example, number: int, ids: Sequence[int], counts: TreeCounts) -> int:
        """The first trained token of a message; of a turn, what the model itself would write."""
        message, train_on = example.messages[number], self.config.train_on
        said = example.trained[number] if example.trained else None
        last = number == len(example.messages) - 1
        if said is None:
            said = ALL in train_on or message.role in train_on or (LAST in train_on and last)
        if not said:
            return len(ids)
        if message.role != "assistant":
            return 0
        turn = self.renderer.turn(message)
        if list(ids[len(ids) - len(turn) :]) != turn:
            counts.note(ODD, example, f"message {number + 1} is rendered otherwise in its place than by itself")
            return len(ids)
        return len(ids) - len(turn)

    def _fitting(self, example: Example, pieces: list[MessageTokens], counts: TreeCounts) -> list[MessageTokens]:
        """The pieces within the limit; none of a conversation that is left out."""
        total = sum(each.size for each in pieces)
        if self.limit is None or total <= self.limit:
            return pieces
        words = f"{total} tokens, and the limit is {self.limit}"
        if self.config.overlong == "refuse":
            raise ConfigError(f"data={self.config.name}: {example.place} has {words} (data.overlong=refuse)")
        if self.config.overlong == "skip":
            counts.note(LONG, example, words)
            return []
        counts.note(CUT, example, words)
        kept, left = [], self.limit
        for piece in pieces:
            ids = piece.rendered.token_ids[:left]
            if ids:
                kept.append(
                    MessageTokens(RenderedMessage(piece.rendered.message, ids), min(piece.trained_from, len(ids)))
                )
            left -= len(ids)
        return kept


def _sizes(session: Session) -> tuple[int, int]:
    """A tree's tokens, and those that are trained."""
    return (
        sum(len(node.token_ids) for node in session.nodes),
        sum(node.trainable.count(True) for node in session.nodes),
    )


def _insert(session: Session, pieces: Sequence[MessageTokens], example: Example) -> None:
    """Add a path to a tree; what is there already is not added again."""
    parent: int | None = None
    for piece in pieces:
        ids = piece.rendered.token_ids
        tools = example.tools if parent is None else ()
        mask = [False] * piece.trained_from + [True] * (len(ids) - piece.trained_from)
        same = (n for n in session.nodes if n.parent == parent and n.token_ids == ids and n.tools == list(tools))
        node = next(same, None)
        if node is None:
            node = tree.add_rendered(session, parent, piece.rendered, trainable=mask, tools=tools)
        elif mask.count(True) > node.trainable.count(True):
            node.trainable = mask
        parent = node.id
