"""The tree's messages as the Responses protocol's items, each with an id by which a request can refer to it.

An id follows from the reply or the node and the item's place in it, so the tree alone resolves it: nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from typing import Any

from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.matching import NodeIndex
from agentrl.sessions.gateway.replies.kept import KeptReply
from agentrl.sessions.gateway.wire.items import output_items
from agentrl.types import Node, Session

_ID = re.compile(r"[a-z]{2,4}_(?:([0-9a-f]{24})|i([0-9]{1,9})p)([0-9]{1,4})")


def items_of(node: Node, customs: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """A node's items: several for a turn, one for any other message; `customs` are the custom tools' names."""
    message, name = node.message, f"i{node.id}p"
    if message.role == "assistant":
        own = node.reply_id
        return output_items(own if own is not None and own.isalnum() else name, message, customs)
    if message.role == "tool":
        item = {"id": f"fco_{name}0", "type": "function_call_output", "status": "completed"}
        return [{**item, "call_id": message.tool_call_id, "output": message.text}]
    content = [{"type": "input_text", "text": message.text}]
    item = {"id": f"msg_{name}0", "type": "message", "status": "completed", "role": message.role}
    return [{**item, "content": content}]


def items_of_path(nodes: Sequence[Node], kept: KeptReply | None) -> list[dict[str, Any]]:
    """A path's items, as the reply at its end has them; the first node has none where it holds instructions."""
    begins = 0 if kept is None or kept.asked.instructions is None else 1
    customs = frozenset[str]() if kept is None else kept.asked.customs
    items = [item for node in nodes[begins:] for item in items_of(node, customs)]
    called = {item["call_id"] for item in items if item["type"] == "custom_tool_call"}
    for item in items:
        if item["type"] == "function_call_output" and item["call_id"] in called:
            item["type"] = "custom_tool_call_output"
    return items


def item_of_id(
    session: Session, index: NodeIndex, item_id: Any, hidden: Callable[[str], bool]
) -> dict[str, Any] | None:
    """The item that an id refers to; None if there is none, or its reply is hidden."""
    found = _ID.fullmatch(item_id) if isinstance(item_id, str) and len(item_id) < 64 else None
    if found is None:
        return None
    reply_id, number, place = found.groups()
    if reply_id is not None and hidden(reply_id):
        return None
    node_id = index.node_of_reply(reply_id) if number is None else int(number)
    if node_id is None or node_id >= len(session.nodes):
        return None
    items = items_of(session.nodes[node_id])
    item = items[int(place)] if int(place) < len(items) else None
    return item if item is not None and _plain(item["id"]) == _plain(item_id) else None


def page_of(items: list[dict[str, Any]], *, order: str, limit: int, after: str | None) -> dict[str, Any]:
    """A page of a list of items.

    Args:
        items: all of them, the oldest first.
        order: "asc" or "desc".
        limit: how many at most.
        after: the id of the item before the page's first.

    Raises:
        ApiError: there is no item `after`.
    """
    if order == "desc":
        items = items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ApiError(404, f"no item {after!r:.100} here", "item_not_found", "after")
        items = items[places[0] + 1 :]
    data = items[:limit]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": len(items) > limit}


def _plain(item_id: str) -> str:
    return item_id.partition("_")[2]
