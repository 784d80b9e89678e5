"""Replies that are made in the background: the client polls for them, and may end them.

Such a reply is delivered like any other, to what is kept in place of a connection: its client leaves by cancelling.
So all that holds of turns holds of these: limits, retries, and that the turn is stored once the reply is complete.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentrl.common.concurrency import hold_task
from agentrl.sessions.gateway.delivery import CLIENT, Delivery, GatewayClient
from agentrl.sessions.gateway.replies.exchange import ReplyExchange
from agentrl.sessions.gateway.replies.kept import STOPPED, ReplyStatus
from agentrl.sessions.gateway.wire import responses


class ReplyDelivery(Delivery):
    """Delivers a response, or begins to make it and answers at once."""

    exchange: ReplyExchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the whole reply, or in the background as soon as the request was found to be in order."""
        exchange = self.exchange
        if not exchange.request.extra["background"]:
            await super().__call__(scope, receive, send)
            return
        client, sent = GatewayClient(paused=lambda: False), list[Any]()
        exchange.leave = client.disconnect
        job = hold_task(self._work(client, sent), self.gateway.jobs)
        prepared = asyncio.ensure_future(exchange.prepared.wait())
        await asyncio.wait({job, prepared}, return_when=asyncio.FIRST_COMPLETED)
        prepared.cancel()
        kept = self.entry.state.replies.find(exchange.reply_id)
        if kept is None or kept.cancel is None:  # it was refused, or is complete already
            await asyncio.wait({job})
            for message in sent:
                await send(message)
            return
        await self._save()  # it can be fetched from now on, whatever becomes of this process
        await Response(orjson.dumps(responses.response(kept, [])), media_type="application/json")(scope, receive, send)

    async def _work(self, client: GatewayClient, sent: list[Any]) -> None:
        async def keep(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("a request in the background has been read")

        try:
            await super().__call__({"type": "http", CLIENT: client}, receive, keep)
        finally:
            kept = self.entry.state.replies.find(self.exchange.reply_id)
            if kept is not None and kept.status is ReplyStatus.IN_PROGRESS:
                if client.disconnected:
                    kept.end(ReplyStatus.CANCELLED)
                else:
                    kept.end(ReplyStatus.FAILED, _error_in(sent))
                await self._save()


def _error_in(sent: list[Any]) -> dict[str, Any]:
    """The error that a client would have been sent."""
    body = b"".join(message.get("body", b"") for message in sent)
    error = orjson.loads(body).get("error") if body else None
    error = error or STOPPED
    return {"code": error["code"], "message": error["message"]}
