"""Leaving out earlier reasoning, as several families' templates do: an explicit step that branches.

Reasoning stays on the path by default, since sampled tokens are never rewritten. With `model.reasoning=strip` (the
template's behaviour: a shorter context, in the form that the model was trained on) each new user message begins a
branch: it shares the path up to the first turn that loses its reasoning, and from there on holds copies of the messages
without it, untrainable. The cost is counted: an engine must compute the branch's own tokens again, since its prefix
cache ends where the branch begins; a forest holds them beside the turns that they copy; and turns before and after
condition on different texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, runtime_checkable

from agentrl.attachments import images
from agentrl.sessions.renderers.base import RenderedMessage, Renderer
from agentrl.types import FinishReason, Message, Node, Session

THINKING = ("<think>", "</think>")

PRICE = (
    "model.reasoning=strip: each user message that follows reasoning begins a branch; its tokens are computed again "
    "(count/reasoning/recomputed_tokens in the metrics), and no prefix cache serves them"
)
"""Logged at the start of a run that strips."""


@runtime_checkable
class RendersPastTurns(Protocol):
    """A renderer whose past turns are not a generation prompt and the turn without its reasoning."""

    def past(self, message: Message, before: Node | None) -> list[int]:
        """The tokens of an earlier assistant turn, its opening and its end included."""


@dataclass(frozen=True, slots=True)
class StrippedBranch:
    """A branch without earlier reasoning.

    Attributes:
        parent: the node that it begins at; None begins a new root.
        copies: the branch's own messages; none of their tokens is trainable.
        recomputed: tokens that an engine must compute again.
        saved: tokens that the branch is shorter than the path.
    """

    parent: int | None
    copies: tuple[RenderedMessage, ...]
    recomputed: int
    saved: int


def strip_earlier_reasoning(renderer: Renderer, path: Sequence[Node]) -> StrippedBranch | None:
    """The path without its reasoning, for a user's message that is to follow.

    Turns that lose nothing keep the very tokens that were sampled. Tool results after a copied turn are rendered again
    too, since they open with what the turn left out.

    Returns:
        None where there is no reasoning, or where the path can't be continued (its last turn was cut by a length
        limit).
    """
    past = {} if path and path[-1].finish_reason is FinishReason.LENGTH else dict(_list_changed(renderer, path))
    if not past:
        return None
    first = place = min(past)
    copies: list[RenderedMessage] = []
    while place < len(path):
        run = list(takewhile(lambda node: node.message.role != "assistant", path[place:])) or [path[place]]
        tokens = [node.token_ids for node in run]
        if place in past:
            tokens = [past[place]]
        elif place - 1 in past and run[0].message.role != "assistant":
            tokens = renderer.render([node.message for node in run], after=copies[-1].as_node())
        copies += [_copy(node, ids) for node, ids in zip(run, tokens, strict=True)]
        place += len(run)
    recomputed = sum(len(copy.token_ids) for copy in copies)
    saved = sum(len(node.token_ids) for node in path[first:]) - recomputed
    return StrippedBranch(path[first - 1].id if first else None, tuple(copies), recomputed, saved)


def count_stripped(session: Session, branch: StrippedBranch) -> None:
    """Count a branch in its session, and what it costs and saves."""
    session.count("branches/reasoning")
    session.count("reasoning/recomputed_tokens", branch.recomputed)
    session.count("reasoning/saved_tokens", branch.saved)


def summarize_cost(rows: Sequence[Mapping[str, float]]) -> str:
    """A summary of what stripping cost and saved, from the metrics of all of a run's steps."""
    names = ("branches/reasoning", "reasoning/recomputed_tokens", "reasoning/saved_tokens")
    branches, recomputed, saved = (int(sum(row.get(f"count/{name}", 0.0) for row in rows)) for name in names)
    return (
        f"model.reasoning=strip: {branches} branches, {recomputed} tokens computed again, "
        f"paths {saved} tokens shorter where they branched"
    )


def _list_changed(renderer: Renderer, path: Sequence[Node]) -> Iterator[tuple[int, list[int]]]:
    """The turns whose tokens differ without reasoning, by their place, with those tokens."""
    added = getattr(renderer.tokenizer, "added", {})
    marks = {added[mark] for mark in THINKING if mark in added}
    for place, node in enumerate(path):
        thinks = node.message.reasoning_content or not marks.isdisjoint(node.token_ids)
        is_stripped = node.copy_of is not None and not node.message.reasoning_content
        if node.message.role != "assistant" or not thinks or is_stripped:
            continue
        before, message = path[place - 1] if place else None, _without_reasoning(node.message)
        if isinstance(renderer, RendersPastTurns):
            ids = renderer.past(message, before)
        else:
            ids = [*renderer.generation_prompt(before), *renderer.turn(message)]
        if ids != node.token_ids:
            yield place, ids


def _copy(node: Node, token_ids: Sequence[int]) -> RenderedMessage:
    message = _without_reasoning(node.message) if node.message.role == "assistant" else node.message
    original = node.id if node.copy_of is None else node.copy_of
    seen = {name: data for name, data in node.attachments.items() if name == images.NAME}
    return RenderedMessage(message, list(token_ids), original, attachments=seen)


def _without_reasoning(message: Message) -> Message:
    return message.model_copy(update={"reasoning_content": None})
