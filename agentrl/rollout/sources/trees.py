"""Conversations written into sessions of exact tokens, those that share a prefix into one tree.

Each message's tokens are those that the model's renderer writes in a rollout. A message that several conversations
begin with is one node, so what they share is computed once, and trained once where any of them trains it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError, RenderError
from agentrl.rollout.sources.messages import Example, Span
from agentrl.sessions.renderers.base import RenderedMessage, Renderer
from agentrl.sessions.tree import tree
from agentrl.types import Message, Node, Session

T = TypeVar("T")
LAST, ALL = "last", "all"
CUT, LONG, UNTRAINED, REFUSED, ODD = "cut", "too long", "without trained tokens", "refused by the format", "odd"
UNPAIRED = "without another reply to compare with"


@dataclass
class TreeCounts:
    """Counts of conversations, by what became of them.

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

    def fates(self) -> Iterator[str]:
        """Say of each fate how many conversations had it, and which was the first."""
        for fate, number in self.rows.items():
            said = {CUT: "cut off at the limit", ODD: f"{ODD}: not trained there"}.get(fate, f"{fate}: left out")
            yield f"{number:,} of {self.total:,} conversations {said}; the first: {self.first[fate]}"


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """A message's tokens, and which of them are trained."""

    rendered: RenderedMessage
    mask: list[bool]

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.rendered.token_ids)

    def divided(self, spans: Sequence[Span]) -> list[MessageTokens]:
        """The message in pieces that end with their trained tokens, as nodes do; several where parts say so.

        Args:
            spans: its parts; each piece's message has the texts of its own.
        """
        ids, mask = self.rendered.token_ids, self.mask
        cuts = [place for place in range(1, len(ids)) if mask[place - 1] and not mask[place]]
        if not cuts:
            return [self]
        texts = [""]
        for (said, trained), (_, before) in zip(spans, [("", False), *spans], strict=False):
            texts += [""] if before and not trained else []
            texts[-1] += said
        texts = texts if len(texts) == len(cuts) + 1 else [self.rendered.message.text, *[""] * len(cuts)]
        pieces = []
        for text, begin, end in zip(texts, [0, *cuts], [*cuts, len(ids)], strict=True):
            more = {"tool_calls": None} if end < len(ids) else {}
            more |= {"reasoning_content": None} if begin else {}
            message = self.rendered.message.model_copy(update={"content": text, **more})
            pieces.append(MessageTokens(RenderedMessage(message, ids[begin:end]), mask[begin:end]))
        return pieces


def prefix_key(example: Example) -> str:
    """Return what conversations of one tree share: tools, system messages, and the first message after them."""
    first = next((i for i, m in enumerate(example.messages) if m.role not in ("system", "developer")), 0)
    whole = first + 1 if len(example.messages) > 1 else 0
    if not whole:
        return json.dumps([example.place])
    messages = [message.model_dump(exclude_none=True) for message in example.messages[:whole]]
    return json.dumps([example.plain, example.tools, messages], sort_keys=True)


def gather(rows: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
    """The rows of each key, in the order of the first ones."""
    groups: dict[str, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


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
            trained = sum(each.mask.count(True) for each in pieces)
            if trained > any(each.mask[0] for each in pieces[:1]):  # nothing predicts a path's first token
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
                    whole = MessageTokens(RenderedMessage(each, ids), self._mask(example, number, ids, counts))
                    pieces += whole.divided(example.spans[number] if example.spans else ())
                    after = whole.rendered.as_node()
                start += len(messages)
            run = []
        return pieces

    def _plain(self, example: Example) -> list[MessageTokens]:
        encode = self.renderer.tokenizer.encode
        ids = [encode(message.text) for message in example.messages]
        ids[-1] = [*ids[-1], self.renderer.stop_token_ids[0]]
        every, last = ALL in self.config.train_on, len(ids) - 1
        return [
            MessageTokens(RenderedMessage(message, own), [every or place == last] * len(own))
            for place, (message, own) in enumerate(zip(example.messages, ids, strict=True))
        ]

    def _mask(self, example: Example, number: int, ids: Sequence[int], counts: TreeCounts) -> list[bool]:
        """Return which tokens of a message are trained; of a turn those that the model itself would write."""
        message, train_on = example.messages[number], self.config.train_on
        said = example.trained[number] if example.trained else None
        last = number == len(example.messages) - 1
        if said is None:
            said = ALL in train_on or message.role in train_on or (LAST in train_on and last)
        if not said:
            return [False] * len(ids)
        begin = 0
        if message.role == "assistant":
            turn = self.renderer.turn(message)
            begin = len(ids) - len(turn)
            if list(ids[begin:]) != turn:
                counts.note(ODD, example, f"message {number + 1} is rendered otherwise in its place than by itself")
                return [False] * len(ids)
        spans = example.spans[number] if example.spans else ()
        mask = span_mask(self._bytes(ids[begin:]), spans) if spans else [True] * (len(ids) - begin)
        if mask is None:
            counts.note(ODD, example, f"the parts of message {number + 1} are not in its tokens as they are written")
            mask = [False] * (len(ids) - begin)
        return [False] * begin + mask

    def _bytes(self, ids: Sequence[int]) -> list[bytes]:
        tokenizer = self.renderer.tokenizer
        read = getattr(tokenizer, "token_bytes", None)
        return [tokenizer.decode([index]).encode() if read is None else read(index) for index in ids]

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
                kept.append(MessageTokens(RenderedMessage(piece.rendered.message, ids), piece.mask[: len(ids)]))
            left -= len(ids)
        return kept


def span_mask(pieces: Sequence[bytes], spans: Sequence[Span]) -> list[bool] | None:
    """Return which tokens of a message are trained, where its parts say so; None where a part's text is not in them.

    A token that has bytes of a part which is not trained is not trained. What the format writes before the first part,
    between two and after the last goes with the part before it, or the first.
    """
    text, at = b"".join(pieces), 0
    places: list[tuple[int, bool]] = []
    for said, trained in spans:
        for wanted in (said.encode(), said.strip().encode()):
            if (found := text.find(wanted, at)) >= 0:
                places.append((found if places else 0, trained))
                at = found + len(wanted)
                break
        else:
            return None
    edges = [place for place, _ in places[1:]] + [len(text)]
    parts = [(begin, end, trained) for (begin, trained), end in zip(places, edges, strict=True) if begin < end]
    starts = (min(start, len(text) - 1) for start in accumulate(map(len, pieces), initial=0))
    return [
        all(trained for begin, end, trained in parts if begin < start + max(len(piece), 1) and start < end)
        for start, piece in zip(starts, pieces, strict=False)
    ]


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
        mask = list(piece.mask)
        same = (n for n in session.nodes if n.parent == parent and n.token_ids == ids and n.tools == list(tools))
        node = next(same, None)
        if node is None:
            node = tree.add_rendered(session, parent, piece.rendered, trainable=mask, tools=tools)
        else:
            node.trainable = [one or other for one, other in zip(node.trainable, mask, strict=True)]
        parent = node.id
