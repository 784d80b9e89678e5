"""The place where a rerun departs from its recording: the first session, turn or message, and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import Diverged
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.codec import digest
from agentrl.types import Node, Session

SHOWN = 12
"""Digits of an answer's hash in a message."""


def compare(recorded: Session, session: Session) -> None:
    """Compare a session that was played again with the recorded one.

    Raises:
        Diverged: tokens, rewards or the end differ; the message names the first turn and token.
    """
    for one, other in zip(recorded.nodes, session.nodes, strict=False):
        where = f"session {recorded.id}, {'turn' if one.sampled else 'message'} {one.id}"
        same(where, one.token_ids, other.token_ids)
        same(where, [one.reward], [other.reward], what="reward")
        spans, found = ([replace(span, incarnation=0) for span in node.versions] for node in (one, other))
        same(where, spans, found, what="version span")
        same(where, [one.arrival], [other.arrival], what="arrival")
    where = f"session {recorded.id}, at its end"
    same(where, [len(recorded.nodes)], [len(session.nodes)], what="number of messages")
    same(where, [recorded.status], [session.status], what="status")
    same(where, [recorded.reward], [session.reward], what="reward")
    same(where, recorded.branches, session.branches, what="branch")
    same(where, [recorded.excluded], [session.excluded], what="set of excluded roots (gateway.exclude)")


def same(where: str, recorded: Sequence[Any], found: Sequence[Any], start: int = 0, what: str = "token") -> None:
    """Compare what was found with the recorded values, of which it may be the first.

    Raises:
        Diverged: names the first that differs.
    """
    for place, value in enumerate(found):
        if place >= len(recorded) or recorded[place] != value:
            had = recorded[place] if place < len(recorded) else "none"
            raise Diverged(f"{where}, {what} {start + place}: the recording has {had}, the rerun {value}")


def same_prompt(session: Session, turn: Node, prompt: Sequence[int]) -> None:
    """Compare the prompt that a turn is to be generated from with the recorded path, message by message.

    Raises:
        Diverged: names the first message that differs, an environment's answer mostly, by its hash (`answer_hash`).
    """
    at = 0
    for node in tree.path(session, turn.parent):
        found = list(prompt[at : at + len(node.token_ids)])
        if found != node.token_ids[: len(found)]:
            name = f"message {node.id} ({node.message.role}, hash {answer_hash(node)})"
            same(f"session {session.id}, turn {turn.id}, its prompt's {name}", node.token_ids, found)
        at += len(node.token_ids)
    same(f"session {session.id}, turn {turn.id}", turn.token_ids, prompt[at:])


def answer_hash(node: Node) -> str:
    """The first hexadecimal digits of the SHA-256 of a node's message."""
    return digest(node.message.model_dump_json(exclude_none=True).encode())[:SHOWN]
