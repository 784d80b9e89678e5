"""A format's turns as a table: regions, and the delimiters that lead from one to the next.

`parsing.py` reads turns by such a table; `grammars.py` holds the families' tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.sessions.renderers.base import SpanKind, ToolSchema
from agentrl.types import FunctionCall, Tokenizer, ToolCall

Reader = Callable[[Sequence[str], int, Sequence[ToolSchema]], "list[ToolCall] | None"]
"""Reads a tool-call region: (its text and inner marks, index of its first call, tools) -> calls.

None: it was no call at all, and becomes content.
"""


class Mark(str):
    """A delimiter inside a tool-call region, to distinguish it from text that looks the same."""


@dataclass(frozen=True, slots=True)
class RegionExit:
    """A delimiter's exit from a region: `before` it and `after` it this text, where present, belongs to nobody."""

    to: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a turn. An exit that leads to the region itself is an inner mark, kept for the reader.

    Attributes:
        kind: what its tokens are.
        exits: how each delimiter leaves it.
        blank_is_markup: nothing but white space is no content.
        open_end: the end of the turn closes it as well as a delimiter does.
        closing: what a tool call that never ended should have been closed with.
        opens: the first character that is not blank decides that this is really another region.
        route: the region's text decides which region its delimiter leads to; the reader of that one finds the
            text as its first mark.
    """

    kind: SpanKind
    exits: Mapping[str, RegionExit] = field(default_factory=dict)
    blank_is_markup: bool = False
    open_end: bool = False
    closing: str = ""
    opens: Mapping[str, str] = field(default_factory=dict)
    route: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """The regions of a format, where a turn starts, and who reads its tool calls."""

    start: str
    regions: Mapping[str, Region]
    read: Reader
    lead: str = ""

    def without_calls(self) -> Grammar:
        """The grammar of turns whose calls are text: no delimiter begins one, but for a header that names the tool."""
        calls = {
            name
            for name, region in self.regions.items()
            if region.kind is SpanKind.TOOL_CALL or (region.blank_is_markup and name != self.start)
        }
        regions = dict(self.regions)
        for name in regions.keys() - calls:
            region = regions[name]
            exits = {mark: leaving for mark, leaving in region.exits.items() if leaving.to not in calls}
            opens = {first: to for first, to in region.opens.items() if to not in calls}
            regions[name] = replace(region, exits=exits, opens=opens)
        return replace(self, regions=regions)


def make_malformed(raw: str, index: int, problem: str) -> ToolCall:
    """A call that can't be read: its raw text as arguments, and an error message for the model."""
    error = f"The tool call could not be read: {problem}. Nothing was run; write the call again."
    return ToolCall(id=f"call_{index}", function=FunctionCall(name="", arguments=raw), error=error)


def special_or_none(tokenizer: Tokenizer, token: str) -> int | None:
    """The id of `token` where the tokenizer has it as an added token."""
    if isinstance(added := getattr(tokenizer, "added", None), dict):
        return added.get(token)  # asking `special` would search for the nearest name, for nobody to read
    try:
        return tokenizer.special(token)
    except (ValueError, LookupError):
        return None
