"""Digests of stored sessions, from their rows as they are: nothing is decoded, so a digest costs as much as a read.

A digest has four parts, which say what of a session changed: `head` (its group, status, seed, rewards, counts, times),
`task`, `messages` (their text, calls and tools) and `tokens` (ids, log-probabilities, versions, sampling, the tree,
attachments by their own digests). 64 bits of BLAKE2b each.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from agentrl.sessions.tree.codec import NODE_COLUMNS

PARTS = {
    "head": "its status, seed, rewards or counts",
    "task": "its task",
    "messages": "the text of its messages",
    "tokens": "its tokens, log-probabilities or versions",
}
"""The parts of a digest in order, and what each is of, in words."""
BYTES = 8


def read_all(db: sqlite3.Connection, where: str, values: Sequence[Any]) -> dict[str, str]:
    """The digests of the sessions whose summaries fit a condition, 64 hexadecimal digits each, by id, in order.

    Raises:
        sqlite3.Error: reading failed.
    """
    found = db.execute(f"SELECT id, session FROM summaries WHERE {where} ORDER BY id", values).fetchall()
    return {name: _read(db, key) for name, key in found}


def _read(db: sqlite3.Connection, key: int) -> str:
    row = db.execute("SELECT id, group_id, status, head, nodes FROM sessions WHERE key = ?", (key,)).fetchone()
    head, task, messages, tokens = (hashlib.blake2b(digest_size=BYTES) for _ in PARTS)
    head.update(orjson.dumps(row))
    found = db.execute("SELECT task FROM tasks WHERE session = ?", (key,)).fetchone()
    task.update(orjson.dumps(found))
    for node in db.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE session = ? ORDER BY id", (key,)):
        id_, parent, agent, reply_id, message, token_ids, logprobs, trained_from, reward, turn, tools, attachments = (
            node
        )
        messages.update(orjson.dumps((id_, agent, reply_id, message, tools)))
        sizes = len(token_ids), len(logprobs or b"")
        tokens.update(orjson.dumps((id_, parent, trained_from, turn, attachments, sizes)))
        tokens.update(token_ids)
        tokens.update(logprobs or b"")
        head.update(orjson.dumps((id_, reward)))
    return "".join(part.hexdigest() for part in (head, task, messages, tokens))


def differences(before: str, now: str) -> str:
    """Describe what differs between two digests of a session; '' where nothing does."""
    width = 2 * BYTES
    parts = zip(PARTS.values(), range(0, len(PARTS) * width, width), strict=True)
    return ", ".join(what for what, at in parts if before[at : at + width] != now[at : at + width])
