"""Answers calls by name on an object, over connections: what runs in a worker's process, and behind `serve`."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from agentrl.cluster.wire.connection import Address, MessageKind, authenticate, make_error
from agentrl.cluster.wire.encryption import own_certificate
from agentrl.cluster.wire.frames import CANCEL, encode, read
from agentrl.cluster.wire.listening import ConnectionListener


class Calls:
    """The calls of one connection, each a task of its own.

    Args:
        target: what they are calls of.
        where: the role and its node, for the errors of its calls.
        writer: where results go: those of one turn of the event loop together.
    """

    def __init__(self, target: Any, where: str, writer: asyncio.StreamWriter) -> None:
        self._target, self._where, self._writer = target, where, writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._results: list[tuple[int, MessageKind, Any]] = []

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve until the connection is closed, or this is cancelled; what still runs then is cancelled."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    number, method, arguments = await read(reader)
                    if method != CANCEL:
                        task = self._tasks[number] = asyncio.create_task(self._answer(number, method, arguments))
                        task.add_done_callback(partial(self._forget, number))  # one that never began ends here too
                    elif number in self._tasks:
                        self._tasks[number].cancel()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _answer(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            found = getattr(self._target, method)
            result = found(*arguments) if callable(found) else found
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, AsyncIterator):
                await self._stream(number, result)
                result = None
            elif isinstance(result, Iterator):
                for item in result:
                    self._put(number, MessageKind.ITEM, item)
                    await asyncio.sleep(0)  # it is written
                    await self._writer.drain()
                result = None
            self._put(number, MessageKind.DONE, result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            self._put(number, MessageKind.FAILED, make_error(error, f"{self._where}: {method}", traceback.format_exc()))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        del self._tasks[number]

    async def _stream(self, number: int, items: AsyncIterator[Any]) -> None:
        try:
            async for item in items:
                self._put(number, MessageKind.ITEM, item)
        finally:
            if inspect.isasyncgen(items):
                await items.aclose()

    def _put(self, number: int, kind: MessageKind, value: Any) -> None:
        if not self._results:
            asyncio.get_running_loop().call_soon(self._send)
        self._results.append((number, kind, value))

    def _send(self) -> None:
        results, self._results = self._results, []
        try:
            data = encode(results)
        except Exception:  # one of them can't be pickled: each by itself, and an error for that one
            data = b"".join(map(self._encode, results))
        self._writer.write(data)

    def _encode(self, result: tuple[int, MessageKind, Any]) -> bytes:
        try:
            return encode([result])
        except Exception as error:
            wrong = make_error(
                error, f"{self._where}: a result of type {type(result[2]).__name__}", traceback.format_exc()
            )
            return encode([(result[0], MessageKind.FAILED, wrong)])


class Listener:
    """Answers calls on an object for every connection that knows its key; use it as an asynchronous context manager.

    Args:
        target: what they are calls of.
        name: what errors of connections call it.
        where: its name and node, for errors of calls.
        host: the network address to listen on.
        key: the secret of those who may call.
        encrypted: whether it listens with TLS.
    """

    def __init__(self, target: Any, name: str, where: str, host: str, key: bytes, *, encrypted: bool = False) -> None:
        self._target, self._where, self._key, self._encrypted = target, where, key, encrypted
        self._name, self._host = name, host
        self._connections = ConnectionListener(self._serve)

    async def __aenter__(self) -> Address:
        tls, certificate = own_certificate() if self._encrypted else (None, None)
        port = await self._connections.listen(self._host, tls)
        return Address(self._name, self._host, port, self._key, certificate)

    async def __aexit__(self, *error: object) -> None:
        await self._connections.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await authenticate(self._key, reader, writer):
            await Calls(self._target, self._where, writer).serve(reader)
