"""Random sessions for measurements: a group on a shared prompt, with turns and a compaction."""

from __future__ import annotations

import random

from agentrl.types import Message, Node, Sampling, Session, Status, Task, VersionSpan

SUMMARY = 40
"""Tokens of a summary."""


def workload(
    rng: random.Random, vocabulary: int, *, samples: int = 8, prompt: int = 1024, turns: int = 10, turn: int = 24
) -> list[Session]:
    """A group's sessions, which share a prompt and are compacted once, so that each has two paths.

    Half-way through a session the prompt is followed by a summary, and the conversation goes on from that.

    Args:
        rng: of the tokens.
        vocabulary: tokens are below it.
        samples: how many sessions.
        prompt: the prompt's tokens.
        turns: of the model, in each session.
        turn: tokens that the model samples in a turn, and tokens that the environment answers.
    """

    def tokens(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    opening = tokens(prompt)
    sessions = []
    for i in range(samples):
        session = Session(str(i), Task(id="t"), "g", i, status=Status.COMPLETED, reward=float(i))
        at = grow(session, None, opening, sampled=False)
        for number in range(turns):
            if number and number == turns // 2:
                at = grow(session, 0, tokens(SUMMARY), sampled=False)
            at = grow(session, at, tokens(turn), sampled=True)
            at = grow(session, at, tokens(turn), sampled=False)
        sessions.append(session)
    return sessions


def split(session: Session) -> list[Session]:
    """A session for each of its paths."""
    parents = {node.parent for node in session.nodes}
    paths = []
    for leaf in (node.id for node in session.nodes if node.id not in parents):
        along: list[int] = []
        at: int | None = leaf
        while at is not None:
            along.insert(0, at)
            at = session.nodes[at].parent
        path = Session(f"{session.id}.{leaf}", Task(id="t"), "g", status=session.status, reward=session.reward)
        for i, node in enumerate(along):
            held = session.nodes[node]
            grow(path, i - 1 if i else None, held.token_ids, sampled=held.sampled)
        paths.append(path)
    return paths


def grow(session: Session, parent: int | None, ids: list[int], *, sampled: bool, demonstrated: bool = False) -> int:
    """Add a node; returns its id."""
    size = len(ids)
    node = Node(
        len(session.nodes),
        parent,
        Message(role="assistant" if sampled else "user", content="."),
        ids,
        [sampled] * size,
        [-8.0 if sampled else 0.0] * size,
    )
    if sampled and not demonstrated:
        node.sampling, node.versions = Sampling(), [VersionSpan(0, 0, size)]
    session.nodes.append(node)
    return node.id
