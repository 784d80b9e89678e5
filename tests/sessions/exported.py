"""Exported sessions read back, which proves that an export holds everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from agentrl.sessions.tree.codec import session_from
from agentrl.types import Arrival, FinishReason, Message, Node, Sampling, Session, VersionSpan


def from_jsonl(path: str | Path) -> Iterator[Session]:
    """The sessions of a file that `to_jsonl` wrote."""
    for line in Path(path).read_bytes().splitlines():
        data = orjson.loads(line)
        nodes = [_node(node) for node in data.pop("nodes")]
        id_, group, status = (data.pop(name) for name in ("id", "group", "status"))
        task = orjson.dumps(data.pop("task")).decode()
        yield session_from(id_, group, status, task, orjson.dumps(data).decode(), nodes)


def _node(data: dict[str, Any]) -> Node:
    sampling = data["sampling"]
    if sampling is not None:
        for name in ("stop", "stop_token_ids"):
            sampling[name] = tuple(sampling[name])
        for name in ("logit_bias", "record"):
            sampling[name] = tuple((first, second) for first, second in sampling[name])
    return Node(
        **{
            **data,
            "message": Message.model_validate(data["message"]),
            "versions": [VersionSpan(*span) for span in data["versions"]],
            "sampling": Sampling(**sampling) if sampling is not None else None,
            "finish_reason": FinishReason(data["finish_reason"]) if data["finish_reason"] else None,
            "engines": tuple(data.get("engines", ())),
            "arrival": Arrival(*data["arrival"]) if data.get("arrival") else None,
            "attachments": {kind: bytes.fromhex(text) for kind, text in data["attachments"].items()},
        }
    )
