"""Driving the gateway without HTTP: requests from chat messages, exchanges from end to end."""

from __future__ import annotations

from typing import Any

import orjson

from agentrl.sessions.gateway.entries import SessionEntry
from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.gateway import Gateway
from agentrl.sessions.gateway.http.bodies import Body
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.turn_request import TurnRequest
from agentrl.sessions.gateway.wire import chat
from agentrl.types import Node


def turn_request(messages: list[Any], retry: int | None = None, **fields: Any) -> TurnRequest:
    body = Body.parse(orjson.dumps({"model": "m", "messages": messages, **fields}), "messages")
    return chat.read(body, Limits(), retry, True)


async def exchange(gateway: Gateway, entry: SessionEntry, asked: TurnRequest) -> tuple[Exchange, list[Node]]:
    """A request from its placing to its storing."""
    made = Exchange(gateway.parts, entry.state, asked)
    try:
        await made.prepare()
        async for _ in made.events():
            pass
        nodes = made.commit()
    finally:
        made.end()
    await gateway.save(entry.state)
    return made, nodes
