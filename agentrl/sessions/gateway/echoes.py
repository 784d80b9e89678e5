"""Echoes (turns that a client sends back) with text appended: the sampled tokens are kept, and the addition follows.

Some clients append to a turn: a tool's result, the string that stopped it and was left out, their own form of a call.
The node of such an echo begins with the sampled tokens, all but the end-of-turn token, and only the addition is
tokenised, by itself. It is a sibling of the turn and copies it (`Node.copied_tokens`): no stored token changes, and
what follows is credited to the turn.

Not every addition can be kept so. One after tool calls would be inside the template's markup, and where the parser
does not read the tokens back as the echo, they are not what the client means. Those become a branch
(`extended_forbidden`), as edits do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from agentrl.sessions.gateway.matching import HistoryMatch
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.sizes import check_length, off_loop
from agentrl.sessions.renderers.base import RenderedMessage, Renderer, ToolSchema, parse
from agentrl.types import Message, Node


@dataclass(frozen=True, slots=True)
class Addition:
    """An echo with appended text: the turn's first `copied_tokens` tokens, then `token_ids`."""

    copied_tokens: int
    token_ids: tuple[int, ...]


async def match_extended(
    state: SessionState,
    renderer: Renderer,
    match: HistoryMatch,
    limit: int | None = None,
    tools: Sequence[ToolSchema] = (),
) -> tuple[HistoryMatch, RenderedMessage | None]:
    """Continue a match after echoes with appended text, where the format allows it.

    Returns:
        The match after them, and the echo that is to be stored first; None where there is none.

    Raises:
        TokenBudgetExceeded: the addition alone is longer than the budget.
    """
    while match.extended_turn is not None:
        turn, echo = state.session.nodes[match.extended_turn], match.new[0]
        length = len(echo.text) - len(turn.message.text)
        if limit is not None:
            check_length(renderer.tokenizer, length, limit - len(state.path_ids(match.parent)))
        added = await off_loop(length, partial(addition, renderer, turn, echo))
        if added is None or not _consistent(state, turn, added):
            return replace(match, extended_turn=None, branch_cause="extended_forbidden"), None
        if added.token_ids:
            message = turn.message.model_copy(update={"content": echo.text})
            tokens = [*turn.token_ids[: added.copied_tokens], *added.token_ids]
            rendered = RenderedMessage(message, tokens, turn.id, added.copied_tokens)
            rest = replace(match, new=match.new[1:], branch_cause=None, dropped_tokens=0, extended_turn=None)
            return rest, rendered
        state.index.add_alias(turn, echo)
        below = state.index.match(turn.id, match.new[1:], tools)
        match = replace(below, loose_matches=match.loose_matches + below.loose_matches + 1)
    return match, None


def addition(renderer: Renderer, turn: Node, echo: Message) -> Addition | None:
    """Return what an echo appends to a turn's tokens (possibly nothing); None where the format forbids additions."""
    if turn.message.tool_calls or echo.tool_calls:
        return None
    start, end = turn.versions[0].start, len(turn.token_ids)
    while end > start and turn.token_ids[end - 1] in renderer.stop_token_ids:
        end -= 1
    end, generated = _common(renderer, turn, end, echo.text.lstrip())
    text = echo.text.lstrip()
    if not generated or not text.startswith(generated):
        return None
    added = renderer.tokenizer.encode(text[len(generated) :]) if len(text) > len(generated) else []
    read = parse(renderer, [*turn.token_ids[start:end], *added]).message
    reasoning = turn.message.reasoning_content
    if read.tool_calls or read.text.lstrip() != text or read.reasoning_content != reasoning:
        return None
    return Addition(end, tuple(added))


def _common(renderer: Renderer, turn: Node, end: int, text: str) -> tuple[int, str]:
    """The number of a turn's first `end` tokens that an echo begins with, and their text.

    All of them, if the echo has the stop string that the reply left out; else those of the text that was sent.
    """
    start, sent = turn.versions[0].start, turn.message.text.lstrip()
    common = generated = parse(renderer, turn.token_ids[start:end]).message.text.lstrip()
    while len(common) > len(sent) and not text.startswith(common) and end > start + 1:
        end -= 1
        common = parse(renderer, turn.token_ids[start:end]).message.text.lstrip()
    return (end, common) if common in (generated, sent) else (end, "")


def _consistent(state: SessionState, turn: Node, added: Addition) -> bool:
    """True if other echoes copy equally many of the turn's tokens: its text has one end."""
    return not added.token_ids or all(
        node.copied_tokens in (None, added.copied_tokens) for node in state.session.nodes if node.copy_of == turn.id
    )
