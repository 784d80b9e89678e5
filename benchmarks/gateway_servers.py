"""The servers that `benchmarks.gateway_load` measures and needs, each a process of its own.

`agentrl serve` with a fleet and a real tokenizer, its canned inference server, a bare FastAPI echo, and the LiteLLM
proxy with what it passes requests on to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from agentrl.models import resolve
from agentrl.sessions.renderers import Renderer, get_renderer
from benchmarks.gateway import REPLY, Wire

CONTEXT = 1 << 18
MODEL = "smollm2-135m"
STREAM_TOKENS = 8
"""Tokens of an event, as `engine.stream_tokens` has them."""
MASTER_KEY = "sk-benchmark-of-the-gateway-under-load-0001"  # the LiteLLM proxy does not start without one


def model_folder(folder: Path) -> Path:
    """A folder with the tokenizer of a real model, whose context is long enough for every part."""
    source, path = resolve(MODEL), folder / "model"
    path.mkdir()
    for file in source.iterdir():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    config = orjson.loads((source / "config.json").read_bytes())
    (path / "config.json").write_bytes(orjson.dumps({**config, "max_position_embeddings": CONTEXT}))
    return path


def renderer_of(path: Path) -> Renderer:
    """The format that the folder's model is served in."""
    return get_renderer(path)


# ------------------------------------------------------------------------------------------- what is started


class Inference(asyncio.Protocol):
    """A connection to a server with SGLang's routes that answers `/generate` at once, always with the same turn."""

    def __init__(self, turn: bytes) -> None:
        self._turn, self._data = turn, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that has arrived."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            _, _, length = head.partition(b"content-length:")
            whole = end + 4 + int(length.split(b"\r\n")[0] or 0)
            if len(self._data) < whole:
                return
            self._transport.write(self._turn if head.startswith(b"post /generate ") else _INFO)
            self._data = self._data[whole:]


def _whole(data: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)


_INFO = _whole(
    orjson.dumps(
        {
            "version": "0.5.23",
            "incremental_streaming_output": True,
            "max_req_input_len": CONTEXT,
            "weight_version": "0",
            "success": True,
        }
    )
)


def streamed(ids: Sequence[int]) -> bytes:
    """A turn as SGLang streams it: an event of the first token, then one for each `STREAM_TOKENS` tokens."""
    events, told = [], 0
    for end in [*range(1, len(ids), STREAM_TOKENS), len(ids)]:
        new = ids[told:end]
        drawn = [[-0.5, token, None] for token in new]
        meta = {"id": "x", "prompt_tokens": 1000, "cached_tokens": 900, "weight_version": "0", "finish_reason": None}
        if end == len(ids):
            spans = [{"version": "0", "start": 0, "end": end}]
            meta |= {"finish_reason": {"type": "stop", "matched": ids[-1]}, "weight_versions": spans}
        event = {"text": "", "output_ids": new, "meta_info": {**meta, "output_token_logprobs": drawn}}
        events.append(b"data: " + orjson.dumps(event) + b"\n\n")
        told = end
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in [*events, b"data: [DONE]\n\n"])
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + chunks + b"0\r\n\r\n"


async def serve_inference(path: str) -> None:
    """The inference server, for the model in this folder."""
    turn = streamed(renderer_of(Path(path)).turn(REPLY))
    server = await asyncio.get_running_loop().create_server(lambda: Inference(turn), "127.0.0.1", 0, backlog=512)
    host, port = server.sockets[0].getsockname()
    print(f"the inference server listens on http://{host}:{port} ", flush=True)
    await server.serve_forever()


async def serve_echo() -> None:
    """A bare FastAPI application that answers a JSON body with itself, on the same server."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/sessions/{session_id}/v1/chat/completions")
    async def echo(session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return body

    await _served(app, "echo")


async def serve_upstream() -> None:
    """What a proxy passes requests on to: an OpenAI API that gives the same reply to everything, at once."""
    call = REPLY.tool_calls[0].model_dump() if REPLY.tool_calls else {}
    message = {"role": "assistant", "content": REPLY.text, "tool_calls": [{**call, "type": "function"}]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    usage = {"prompt_tokens": 1000, "completion_tokens": 40, "total_tokens": 1040}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    data = orjson.dumps(reply)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    await _served(app, "upstream")


async def _served(app: Any, name: str) -> None:
    import uvicorn

    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    print(f"the {name} listens on http://{host}:{port} ", flush=True)
    await serving


# ------------------------------------------------------------------------------------------- starting them


@dataclass
class Server:
    """A server's process.

    Attributes:
        url: its address.
        process: the process.
        path: where its chat completions are; None: under each session's own address.
        engine: the inference server that it calls.
    """

    url: str
    process: psutil.Process
    path: str | None = None
    engine: Server | None = None

    @property
    def processes(self) -> list[psutil.Process]:
        """It and its children."""
        return [self.process, *self.process.children(recursive=True)]

    def cpu(self) -> float:
        """CPU seconds that it and its children have used, all threads; Linux counts them to the nanosecond."""
        tasks = [task for one in self.processes for task in Path(f"/proc/{one.pid}/task").glob("*/schedstat")]
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def megabytes(self) -> float:
        """Its memory, and its children's."""
        return sum(float(one.memory_info().rss) for one in self.processes) / 2**20


@contextlib.asynccontextmanager
async def started(*command: str) -> AsyncIterator[Server]:
    """A server in a process of its own, which prints its address."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        if not line:
            raise SystemExit(f"{' '.join(command)} has ended with code {await process.wait()}")
        yield Server(f"http{line.partition('http')[2].split()[0]}", psutil.Process(process.pid))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def own(*words: str) -> contextlib.AbstractAsyncContextManager[Server]:
    """A server of this module."""
    return started("-m", __name__, *words)


@contextlib.asynccontextmanager
async def gateway(
    path: Path, store: Path, workers: int = 1, module: Sequence[str] = ("agentrl",)
) -> AsyncIterator[Server]:
    """`agentrl serve` over a fleet of one inference server, once that is ready; `module` is what runs it."""
    async with own("inference", str(path)) as engine:
        words = [f"model={path}", "engine=sglang", f"engine.url={engine.url}", "engine.device=cpu", "port=0"]
        async with started("-m", *module, "serve", *words, f"store={store}", f"workers={workers}") as server:
            wire = await Wire.open(server.url)
            while not _ready(await wire.post("/health", b"", method="GET")):  # noqa: ASYNC110 (it has no event for it)
                await asyncio.sleep(0.1)
            wire.writer.close()
            server.engine = engine
            yield server


def _ready(health: bytes) -> bool:
    report = orjson.loads(health)
    return all(worker["ok"] for worker in report.get("workers", [report]))


@contextlib.asynccontextmanager
async def litellm(python: str, folder: str) -> AsyncIterator[Server]:
    """The LiteLLM proxy with its default settings, for one model."""
    async with own("upstream") as upstream:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = Path(folder) / "litellm.yaml"
        parameters = f'{{model: openai/m, api_base: "{upstream.url}/v1", api_key: none}}'
        config.write_text(f"model_list:\n  - model_name: m\n    litellm_params: {parameters}\n")
        process = await asyncio.create_subprocess_exec(
            *(str(Path(python).with_name("litellm")), "--config", str(config), "--host", "127.0.0.1"),
            *("--port", str(port)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LITELLM_MASTER_KEY": MASTER_KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(240):
                with contextlib.suppress(OSError):
                    if b"alive" in await (await Wire.open(url)).post("/health/liveliness", b"", method="GET"):
                        break
                if process.returncode is not None:
                    raise SystemExit(f"{python}: the LiteLLM proxy has ended with code {process.returncode}")
                await asyncio.sleep(0.5)
            yield Server(url, psutil.Process(process.pid), "/v1/chat/completions")
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def main() -> None:
    match sys.argv[1:]:
        case ["inference", path]:
            asyncio.run(serve_inference(path))
        case ["echo"]:
            asyncio.run(serve_echo())
        case ["upstream"]:
            asyncio.run(serve_upstream())


if __name__ == "__main__":
    main()
