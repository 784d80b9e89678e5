"""Exporting sessions: JSON lines, with one session per line, and Parquet, with one node per row.

JSON lines hold all of a session. Parquet is for data frames: tokens, mask and log-probabilities are
list columns, and each row has the session's own fields too. Both are written to a temporary file and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import require_extra
from agentrl.sessions.tree.codec import head_json, task_json
from agentrl.types import Node, Session

ROWS = 4096
"""Nodes in one Parquet row group: a few megabytes at a time, however long the run was."""


def to_jsonl(sessions: Iterable[Session], path: str | Path) -> int:
    """Write one session a line; returns how many.

    Raises:
        InvalidInput: a session holds what JSON can't express.
    """
    count = 0
    part = Path(f"{path}.part")
    with open(part, "wb") as file:
        for session in sessions:
            file.write(orjson.dumps(session_dict(session)) + b"\n")
            count += 1
    os.replace(part, path)
    return count


def session_dict(session: Session) -> dict[str, Any]:
    """A session as plain JSON values, nodes included."""
    head: dict[str, Any] = orjson.loads(head_json(session))
    task = orjson.loads(task_json(session))
    nodes = [node_dict(node) for node in session.nodes]
    names = {"id": session.id, "group": session.group, "status": session.status.value, "task": task}
    return {**names, **head, "nodes": nodes}


def node_dict(node: Node) -> dict[str, Any]:
    """A node as plain JSON values; attachments as hexadecimal text."""
    return {
        "id": node.id,
        "parent": node.parent,
        "agent": node.agent,
        "policy": node.policy,
        "message": node.message.model_dump(exclude_none=True),
        "token_ids": node.token_ids,
        "trainable": node.trainable,
        "logprobs": node.logprobs,
        "versions": [list(span.packed) for span in node.versions],
        "sampling": asdict(node.sampling) if node.sampling else None,
        "finish_reason": node.finish_reason.value if node.finish_reason else None,
        "stopped_by": node.stopped_by,
        "reward": node.reward,
        "attachments": {kind: data.hex() for kind, data in node.attachments.items()},
        "tools": node.tools,
        "reply_id": node.reply_id,
        "engines": list(node.engines),
        "arrival": list(node.arrival.packed) if node.arrival else None,
        "copy_of": node.copy_of,
        "copied_tokens": node.copied_tokens,
        "timings": node.timings,
    }


def to_parquet(sessions: Iterable[Session], path: str | Path) -> int:
    """Write one node a row; returns how many.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    with require_extra("parquet", "pyarrow"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    schema = _schema(pa)
    part, count = Path(f"{path}.part"), 0
    with pq.ParquetWriter(part, schema) as writer:
        rows: list[dict[str, Any]] = []
        for row in _rows(sessions):
            rows.append(row)
            count += 1
            if len(rows) == ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))
    os.replace(part, path)
    return count


def _rows(sessions: Iterable[Session]) -> Iterator[dict[str, Any]]:
    for session in sessions:
        session_fields = {
            "session_id": session.id,
            "group": session.group,
            "task_id": session.task.id,
            "sample": session.sample,
            "status": session.status.value,
            "session_reward": session.reward,
        }
        for node in session.nodes:
            row = {**node_dict(node), **session_fields, "role": node.message.role}
            row["attachments"], row["timings"] = list(node.attachments.items()), list(node.timings.items())
            row["message"] = node.message.model_dump_json(exclude_none=True)
            for name in ("versions", "sampling", "tools", "arrival"):
                row[name] = orjson.dumps(row[name]).decode() if row[name] else None
            row["stopped_by"] = None if node.stopped_by is None else str(node.stopped_by)
            yield row


def _schema(pa: Any) -> Any:
    texts = ("session_id", "group", "task_id", "status", "agent", "role", "message")
    optional = ("versions", "sampling", "finish_reason", "stopped_by", "tools", "reply_id", "policy", "arrival")
    return pa.schema(
        [
            *(pa.field(name, pa.string(), nullable=False) for name in texts),
            *(pa.field(name, pa.string()) for name in optional),
            pa.field("sample", pa.int64(), nullable=False),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("parent", pa.int64()),
            pa.field("copy_of", pa.int64()),
            pa.field("copied_tokens", pa.int64()),
            pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("trainable", pa.list_(pa.bool_()), nullable=False),
            pa.field("logprobs", pa.list_(pa.float64()), nullable=False),
            pa.field("reward", pa.float64()),
            pa.field("session_reward", pa.float64()),
            pa.field("attachments", pa.map_(pa.string(), pa.binary())),
            pa.field("timings", pa.map_(pa.string(), pa.float64())),
        ]
    )
