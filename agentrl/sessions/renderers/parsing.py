"""One incremental parser for all formats, driven by a table of regions.

A turn is a run of regions (content, reasoning, a tool call …), and each region names the delimiters that leave
it. A delimiter that the tokenizer knows as an added token is recognised by its id alone, so the same characters
spelt out in plain tokens stay text; where it has no such token, the characters are searched for. The parser
holds back only what may still turn out to be a delimiter. That a stream gives the same as the whole needs no
care in any format: the whole is fed through the same steps.

Bytes become text incrementally, so a character cut in two by tokens is whole again; a broken one becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentrl.sessions.renderers.base import Delta, Parsed, Span, SpanKind, ToolSchema
from agentrl.sessions.renderers.grammar import Grammar, Mark, Region, make_malformed, special_or_none
from agentrl.types import Message, Tokenizer, ToolCall


@dataclass(frozen=True, slots=True)
class _Bound:
    """A region compiled for one tokenizer."""

    name: str
    region: Region
    by_id: Mapping[int, str]
    pattern: re.Pattern[str] | None
    starters: re.Pattern[str] | None
    partial: frozenset[str]
    longest: int


class _Pieces(dict[int, bytes]):
    """Bytes of tokens, each asked for once."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def __missing__(self, index: int) -> bytes:
        piece = self[index] = self._read(index)
        return piece


class Bound:
    """A grammar compiled for one tokenizer; its `parser()` is cheap."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer, stop_token_ids: Sequence[int]) -> None:
        self.grammar, self._tokenizer = grammar, tokenizer
        self.stops = frozenset(stop_token_ids)
        self.pieces = _Pieces(getattr(tokenizer, "token_bytes", None) or (lambda id_: tokenizer.decode([id_]).encode()))
        self.regions = {name: _bind(name, region, tokenizer) for name, region in grammar.regions.items()}
        self.marks = frozenset(index for region in self.regions.values() for index in region.by_id)
        self._without_calls: Bound | None = None

    def parser(self, tools: Sequence[ToolSchema] = ()) -> RegionParser:
        """A fresh parser for one turn."""
        return RegionParser(self, tools)

    def without_calls(self) -> Bound:
        """The same for turns whose calls are text, compiled once."""
        if self._without_calls is None:
            self._without_calls = Bound(self.grammar.without_calls(), self._tokenizer, ())
        self._without_calls.stops = self.stops
        return self._without_calls

    def end_also(self, token_ids: Sequence[int]) -> None:
        """Read these tokens as ends of a turn, too."""
        self.stops |= frozenset(token_ids)


def _bind(name: str, region: Region, tokenizer: Tokenizer) -> _Bound:
    ids = {mark: special_or_none(tokenizer, mark) for mark in region.exits}
    texts = [mark for mark, index in ids.items() if index is None]
    heads = {region.exits[mark].before for mark in ids}
    wholes = {head + mark for mark in texts for head in ("", region.exits[mark].before)}
    partial = {text[:n] for text in wholes for n in range(1, len(text))} | {
        h[:n] for h in heads for n in range(1, len(h) + 1)
    }
    starters = {text[0] for text in partial}
    return _Bound(
        name=name,
        region=region,
        by_id={index: mark for mark, index in ids.items() if index is not None},
        pattern=re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True))) if texts else None,
        starters=re.compile("[" + re.escape("".join(sorted(starters))) + "]") if starters else None,
        partial=frozenset(partial),
        longest=max(map(len, partial), default=0),
    )


_KEPT = frozenset({SpanKind.TOOL_CALL, SpanKind.MARKUP})
"""Kinds that are distinguished only when their region ends."""
MOST_BLANKS = 4096
"""Blanks for which a region waits that its first character decides; more are content."""
AT_ONCE = 64
"""Tokens that are searched for a delimiter at once: the search begins anew behind each character that may begin one."""
MOST_CALL = 1 << 20
"""The longest tool call that is read, in characters: no context holds one that is much longer."""


class RegionParser:
    """Reads one turn; see `base.Parser`.

    Every character taken, and every delimiter given by its id, has a position; segments and tokens are laid
    against each other by it. A token belongs to the segment that holds its first byte.
    """

    def __init__(self, bound: Bound, tools: Sequence[ToolSchema] = ()) -> None:
        self._bound = bound
        self._tools = tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._starts: list[int] = []  # position of each token's first byte
        self._segments: list[tuple[int, SpanKind]] = []  # (end position, kind)
        self._position = 0  # end of the last segment
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._deltas: list[Delta] = []
        self._ended = False
        self._enter(bound.grammar.start, bound.grammar.lead)

    def without_calls(self) -> RegionParser:
        """A fresh parser that reads calls as text, as the model wrote them."""
        return RegionParser(self._bound.without_calls(), self._tools)

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more of the turn's tokens; return what they make known."""
        self._deltas = []
        pieces, stops, marks = self._bound.pieces, self._bound.stops, self._bound.marks
        plain: list[bytes] = []
        if not self._ended and marks.isdisjoint(body := token_ids[:-1]) and stops.isdisjoint(body):  # as most are
            plain, token_ids = list(map(pieces.__getitem__, body)), token_ids[-1:]
        for index in token_ids:
            if index not in marks and index not in stops and not self._ended:
                plain.append(pieces[index])
                continue
            self._plain(plain)
            plain = []
            self._starts.append(self._next)
            if self._ended or index in stops:
                self._stop()
                self._segment(1, SpanKind.MARKUP)
            elif not self._delimiter(index):
                self._take(self._decoder.decode(pieces[index]))
        self._plain(plain)
        return self._deltas

    @property
    def unread(self) -> int:
        return self._pending

    @property
    def _next(self) -> int:
        """The position of the next character."""
        return self._position + self._pending + len(self._buffer)

    def _plain(self, pieces: Sequence[bytes]) -> None:
        """Take a run of tokens that are no delimiters: many at once where bytes are characters and none is spelt out.

        Where one may be, it is searched for token by token, so that a stream gives the same as the whole.
        """
        place = 0
        while place < len(pieces):
            some = pieces[place : place + AT_ONCE]
            data = b"".join(some)
            if not data.isascii():
                count = 0
            elif self._opens or (self._at.pattern and self._buffer) or self._decoder.getstate()[0]:
                count, some = 0, some[:1]
            else:
                text = data.decode("ascii")
                places = list(accumulate(map(len, some), initial=self._next))
                safe = self._without_delimiter(text)
                count = len(some) if safe == len(text) else bisect_right(places, places[0] + safe) - 1
                some = some[: max(1, count)]
            if count:
                self._starts += places[:count]
                self._take(text[: places[count] - places[0]])
            else:
                for piece in some:
                    self._starts.append(self._next)
                    self._take(self._decoder.decode(piece))
            place += len(some)

    def _without_delimiter(self, text: str) -> int:
        """The number of a text's first characters that are no part of a delimiter that is spelt out, or that begins."""
        at = self._at
        if at.pattern is None:
            return len(text)
        found = (at.pattern.search(text), at.starters.search(text) if at.starters else None)
        return min((one.start() for one in found if one is not None), default=len(text))

    def finish(self) -> tuple[list[Delta], Parsed]:
        """The turn has ended: what was still held back, and the whole."""
        self._deltas = []
        self._stop()
        content, calls = "".join(self._content), self._calls or None
        message = Message(
            role="assistant",
            content=content if content or not calls else None,
            reasoning_content="".join(self._reasoning) or None,
            tool_calls=calls,
        )
        return self._deltas, Parsed(message, self._spans())

    # ----------------------------------------------------------------------------------- moving on

    def _enter(self, name: str, lead: str) -> None:
        self._at = self._bound.regions[name]
        self._lead = lead  # skipped if the region opens with it
        self._buffer = ""  # taken, not yet accepted
        self._body: list[str] = []  # accepted, not yet known to be what
        self._pending = 0  # positions of `_body`
        self._blank = self._at.region.blank_is_markup
        self._opens = self._at.region.opens

    def _delimiter(self, index: int) -> bool:
        """Leave the region by this token, if it has such an exit."""
        self._take(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        mark = self._at.by_id.get(index)
        if mark is not None:
            self._leave(mark, self._buffer, 1)
        return mark is not None

    def _take(self, text: str) -> None:
        """More text: find delimiters in it, accept what is safe, hold back the rest."""
        if not text:
            return
        self._buffer += text
        while not (self._skip_lead() or self._is_undecided()):
            at = self._at
            found = at.pattern.search(self._buffer) if at.pattern else None
            if found is None:
                if safe := len(self._buffer) - self._count_held():
                    self._accept(self._buffer[:safe])
                    self._buffer = self._buffer[safe:]
                return
            rest = self._buffer[found.end() :]
            self._leave(found.group(), self._buffer[: found.start()], len(found.group()))
            self._buffer = rest

    def _skip_lead(self) -> bool:
        """Drop the region's leading text; True while it is not known yet whether it is there."""
        if self._lead:
            if len(self._buffer) < len(self._lead) and self._lead.startswith(self._buffer):
                return True
            if self._buffer.startswith(self._lead):
                self._buffer = self._buffer[len(self._lead) :]
                self._segment(len(self._lead), SpanKind.MARKUP)
            self._lead = ""
        return False

    def _is_undecided(self) -> bool:
        """True if only blanks are known of a region whose first character decides what it is."""
        if self._opens:
            first = self._buffer.lstrip()[:1]
            if not first and len(self._buffer) < MOST_BLANKS:
                return True
            if first in self._opens:
                self._at = self._bound.regions[self._opens[first]]
            self._opens = {}
        return False

    def _count_held(self) -> int:
        """The number of the buffer's last characters that may still become part of a delimiter."""
        at, buffer = self._at, self._buffer
        if at.starters is None or at.starters.search(buffer, max(0, len(buffer) - at.longest)) is None:
            return 0
        return next((n for n in range(min(len(buffer), at.longest), 0, -1) if buffer[-n:] in at.partial), 0)

    def _leave(self, mark: str, text: str, width: int) -> None:
        """A delimiter of `width` positions: `text` is the last of this region, another one begins."""
        leaving = self._at.region.exits[mark]
        if leaving.to == self._at.name:  # an inner mark
            self._accept(text)
            self._body.append(Mark(mark))
            self._pending += width
            self._buffer = ""
            return
        trail = leaving.before if leaving.before and text.endswith(leaving.before) else ""
        self._accept(text[: len(text) - len(trail)])
        header = "".join(self._body)
        route = self._at.region.route
        self._close(complete=True)
        self._segment(len(trail) + width, SpanKind.MARKUP)
        self._enter(route(header) if route else leaving.to, leaving.after)
        if route:
            self._body.append(Mark(header))

    def _stop(self) -> None:
        """The turn is over, by its end token or for want of tokens."""
        if self._ended:
            return
        self._take(self._decoder.decode(b"", final=True))
        self._accept(self._buffer)
        self._buffer = ""
        self._close(complete=self._at.region.open_end)
        self._ended = True

    # ------------------------------------------------------------------------------- what was found

    def _accept(self, text: str) -> None:
        if not text:
            return
        kind = self._at.region.kind
        if kind in _KEPT or (self._blank and text.isspace()):
            self._body.append(text)
            self._pending += len(text)
        else:
            self._blank = False
            self._emit("".join((*(part for part in self._body if not isinstance(part, Mark)), text)), kind)
            self._body, self._pending = [], 0

    def _emit(self, text: str, kind: SpanKind) -> None:
        self._segment(len(text), kind)
        if kind is SpanKind.REASONING:
            self._reasoning.append(text)
            self._deltas.append(Delta(reasoning=text))
        elif kind is SpanKind.CONTENT:
            self._content.append(text)
            self._deltas.append(Delta(content=text))

    def _close(self, *, complete: bool) -> None:
        """Settle what the region has put aside: blank space is markup, a tool call is read."""
        body, width = self._body, self._pending
        self._body, self._pending = [], 0
        if self._at.region.kind is not SpanKind.TOOL_CALL:
            if self._at.region.route and not complete and not "".join(body).isspace() and width:
                self._emit("".join(body), SpanKind.CONTENT)  # a header that never ended: keep the model's words
            else:
                self._segment(width, SpanKind.MARKUP)
            return
        calls: list[ToolCall] | None
        if complete and width > MOST_CALL:
            problem = f"it has {width} characters; at most {MOST_CALL} are read"
            calls = [make_malformed("".join(body), len(self._calls), problem)]
        elif complete:
            calls = self._bound.grammar.read(body, len(self._calls), self._tools)
        else:
            calls = [
                make_malformed("".join(body), len(self._calls), f"it was never closed with {self._at.region.closing}")
            ]
        if calls is None:
            self._emit("".join(body), SpanKind.CONTENT)  # no mark in it: such regions have none
            return
        self._segment(width, SpanKind.MALFORMED if any(call.error for call in calls) else SpanKind.TOOL_CALL)
        for call in calls:
            name, arguments = call.function.name, call.function.arguments
            self._deltas.append(Delta(call=len(self._calls), name=name, id=call.id, arguments=arguments))
            self._calls.append(call)

    def _segment(self, length: int, kind: SpanKind) -> None:
        """The next `length` positions are of this kind."""
        if length:
            self._position += length
            if self._segments and self._segments[-1][1] is kind:
                self._segments.pop()
            self._segments.append((self._position, kind))

    def _spans(self) -> tuple[Span, ...]:
        spans, start, count = [], 0, len(self._starts)
        for end_position, kind in self._segments:
            end = bisect_left(self._starts, end_position, lo=start)
            if end_position == self._position:
                end = count  # tokens without text belong to whatever ends the turn
            if end > start:
                spans.append(Span(kind, start, end))
            start = end
        if start < count:
            spans.append(Span(SpanKind.MARKUP, start, count))
        return tuple(spans)
