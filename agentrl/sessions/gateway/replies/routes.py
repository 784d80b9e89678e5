"""The addresses of replies, conversations and models under a session's own.

A deleted reply is not found by its id any more, and a deleted conversation is forgotten; their turns stay in the tree,
which is never rewritten.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response

from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.google.routes import describe_model
from agentrl.sessions.gateway.http import openapi
from agentrl.sessions.gateway.http.api_error import ApiError, Style, refuse_parameter
from agentrl.sessions.gateway.http.requests import json_body, key_of
from agentrl.sessions.gateway.replies.items import items_of, items_of_path, page_of
from agentrl.sessions.gateway.replies.kept import MOST_ADDED, ReplyStatus, StoredConversation
from agentrl.sessions.gateway.session_state import SessionState
from agentrl.sessions.gateway.wire import responses
from agentrl.sessions.gateway.workers import client_style
from agentrl.sessions.tree import tree

LONGEST_NAME = 200
"""Characters of a model's name."""
MOST_METADATA = 1 << 14
"""Bytes of a conversation's metadata."""


def add_routes(app: FastAPI, gateway: Gateway) -> None:
    """Add the addresses of replies, conversations and models."""

    def entry_of(session_id: str, request: Request) -> SessionEntry:
        return gateway.entry(session_id, key_of(request))

    _add_replies(app, gateway, entry_of)
    _add_conversations(app, gateway, entry_of)
    _add_models(app, gateway)


def _add_replies(app: FastAPI, gateway: Gateway, entry_of: Callable[[str, Request], SessionEntry]) -> None:
    one = "/sessions/{session_id}/v1/responses/{response_id}"

    @app.get(one, responses=openapi.answers(200, 400, 401, 404, 410))
    async def retrieve(session_id: str, response_id: str, request: Request) -> Response:
        """A reply by its id: whole, or how far it has come."""
        state = entry_of(session_id, request).state
        if request.query_params.get("stream", "false").lower() not in ("", "false", "0"):
            raise refuse_parameter("stream", "a reply that is fetched comes whole")
        return _answer(_response(state, response_id))

    @app.get(f"{one}/input_items", responses=openapi.answers(200, 400, 401, 404, 410))
    async def input_items(session_id: str, response_id: str, request: Request) -> Response:
        """Return what a reply answers, from the conversation's beginning."""
        state = entry_of(session_id, request).state
        kept = state.replies.get(response_id)
        if kept.node is None:
            raise ApiError(400, f"response {response_id!r:.100} has no turn: it is {kept.status.value}")
        path = tree.path(state.session, kept.node)[:-1]
        return _answer(_page(request, items_of_path(path, kept)))

    @app.post(f"{one}/cancel", responses=openapi.answers(200, 400, 401, 404, 410, 413))
    async def cancel(session_id: str, response_id: str, request: Request) -> Response:
        """End a reply that is made in the background; one that has ended stays as it is."""
        state = entry_of(session_id, request).state
        kept = state.replies.get(response_id)
        if not kept.frame["background"]:
            raise ApiError(400, f"response {response_id!r:.100} is not made in the background", param="response_id")
        if kept.cancel is not None:
            kept.cancel()
            kept.end(ReplyStatus.CANCELLED)
        return _answer(_response(state, response_id))

    @app.delete(one, responses=openapi.answers(200, 401, 404, 410))
    async def delete(session_id: str, response_id: str, request: Request) -> Response:
        """Keep a reply from being found by its id."""
        state = entry_of(session_id, request).state
        kept = state.replies.get(response_id)
        if kept.cancel is not None:
            kept.cancel()
        state.replies.hide(kept.reply_id)
        await gateway.save(state)
        return _answer({"id": f"resp_{kept.reply_id}", "object": "response", "deleted": True})


def _add_conversations(app: FastAPI, gateway: Gateway, entry_of: Callable[[str, Request], SessionEntry]) -> None:
    all_of_them = "/sessions/{session_id}/v1/conversations"
    one = f"{all_of_them}/{{conversation_id}}"
    body: dict[str, Any] = openapi.json_object(200, 400, 401, 404, 408, 410, 413, 415)

    async def body_of(request: Request) -> dict[str, Any]:
        value = await json_body(request, gateway.parts.limits, empty={})
        if not isinstance(value, dict):
            raise ApiError(400, "the body must be a JSON object", "invalid_json")
        return value

    @app.post(all_of_them, **body)
    async def create(session_id: str, request: Request) -> Response:
        """Begin a conversation; it may have items."""
        state = entry_of(session_id, request).state
        given = await body_of(request)
        made = StoredConversation(f"conv_{secrets.token_hex(12)}", int(time.time()), _metadata(given))
        _add_items(made, given.get("items") or [], gateway.parts.limits.messages)
        state.replies.add_conversation(made)
        await gateway.save(state)
        return _answer(_describe(made))

    @app.get(one, responses=openapi.answers(200, 401, 404, 410))
    async def retrieve(session_id: str, conversation_id: str, request: Request) -> Response:
        """A conversation by its id."""
        return _answer(_describe(entry_of(session_id, request).state.replies.conversation(conversation_id)))

    @app.post(one, **body)
    async def update(session_id: str, conversation_id: str, request: Request) -> Response:
        """Set a conversation's metadata."""
        state = entry_of(session_id, request).state
        kept = state.replies.conversation(conversation_id)
        kept.metadata = _metadata(await body_of(request))
        await gateway.save(state)
        return _answer(_describe(kept))

    @app.delete(one, responses=openapi.answers(200, 401, 404, 410))
    async def delete(session_id: str, conversation_id: str, request: Request) -> Response:
        """Forget a conversation; its turns stay in the tree."""
        state = entry_of(session_id, request).state
        state.replies.remove_conversation(state.replies.conversation(conversation_id).id)
        await gateway.save(state)
        return _answer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @app.get(f"{one}/items", responses=openapi.answers(200, 400, 401, 404, 410))
    async def items(session_id: str, conversation_id: str, request: Request) -> Response:
        """A conversation's items."""
        state = entry_of(session_id, request).state
        kept = state.replies.conversation(conversation_id)
        return _answer(_page(request, [*_list_items(state, kept), *kept.added]))

    @app.post(f"{one}/items", **body)
    async def add(session_id: str, conversation_id: str, request: Request) -> Response:
        """Add items to a conversation, for its next reply to read."""
        state = entry_of(session_id, request).state
        kept = state.replies.conversation(conversation_id)
        given = await body_of(request)
        new = _add_items(kept, given.get("items"), gateway.parts.limits.messages)
        await gateway.save(state)
        return _answer(page_of(new, order="asc", limit=len(new), after=None))


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/sessions/{session_id}/v1/models/{name:path}", responses=openapi.answers(200, 401, 404, 410))
    async def model(session_id: str, name: str, request: Request) -> Response:
        """A model by its name; requests may name any."""
        gateway.entry(session_id, key_of(request))
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ApiError(404, f"no model {name!r:.100}", "model_not_found", "model")
        return _answer(described_model(name, client_style(request)))


def described_model(name: str, style: Style) -> dict[str, Any]:
    """A model as its protocol describes it."""
    if style == "google":
        return describe_model(name)
    if style == "anthropic":
        return {"id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentrl"}


def _response(state: SessionState, response_id: str) -> dict[str, Any]:
    kept = state.replies.get(response_id)
    output = [] if kept.node is None else items_of(state.session.nodes[kept.node], kept.asked.customs)
    return responses.response(kept, output)


def _list_items(state: SessionState, conversation: StoredConversation) -> list[dict[str, Any]]:
    """The items up to a conversation's latest reply."""
    node_id = state.index.node_of_reply(conversation.head) if conversation.head is not None else None
    if node_id is None or conversation.head is None:
        return []
    return items_of_path(tree.path(state.session, node_id), state.replies.find(conversation.head))


def _add_items(conversation: StoredConversation, items: Any, most: int) -> list[dict[str, Any]]:
    """Items with ids of ours, as they were added."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ApiError(400, "items: must be a list of objects", "invalid_value", "items")
    new = [{**item, "id": f"item_{secrets.token_hex(12)}", "status": "completed"} for item in items]
    added = [*conversation.added, *new]
    if len(added) > most or len(orjson.dumps(added)) > MOST_ADDED:
        raise ApiError(413, f"items: at most {most}, of {MOST_ADDED} bytes together", "too_many_items", "items")
    conversation.added = added
    return new


def _metadata(given: dict[str, Any]) -> dict[str, Any]:
    metadata = given.get("metadata") or {}
    if not isinstance(metadata, dict) or len(orjson.dumps(metadata)) > MOST_METADATA:
        message = f"metadata: must be an object of at most {MOST_METADATA} bytes"
        raise ApiError(400, message, "invalid_value", "metadata")
    return metadata


def _describe(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": conversation.metadata,
    }


def _page(request: Request, items: list[dict[str, Any]]) -> dict[str, Any]:
    query = request.query_params
    order, limit = query.get("order", "desc"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order={order!r:.100} is neither asc nor desc", "invalid_value", "order")
    if not limit.isdecimal() or not limit.isascii() or len(limit) > 3 or not 1 <= int(limit) <= 100:
        raise ApiError(400, f"limit={limit!r:.100} must be between 1 and 100", "invalid_value", "limit")
    return page_of(items, order=order, limit=int(limit), after=query.get("after"))


def _answer(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
