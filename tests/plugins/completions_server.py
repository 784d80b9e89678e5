"""A small server with OpenAI's completions route in token ids, over the local engine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

from agentrl.config import EngineConfig
from agentrl.errors import InvalidInput
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.types import FinishReason, Sampling, collect


def application(engine: LocalEngine) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> Any:
        return {"data": [{"id": "model"}]}

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any]) -> Any:
        if body["model"] != "model":
            raise HTTPException(400, f"there is no model {body['model']!r}")
        try:
            if body.get("echo"):
                scores = await engine.score(body["prompt"], body["temperature"])
                return {"choices": [{"logprobs": {"token_logprobs": [None, *scores[1:]]}}]}
            sampling = Sampling(
                temperature=body["temperature"],
                max_new_tokens=body["max_tokens"],
                top_p=body["top_p"],
                top_k=body["top_k"] or None,
                min_p=body["min_p"],
                presence_penalty=body["presence_penalty"],
                frequency_penalty=body["frequency_penalty"],
                seed=body["seed"],
                stop_token_ids=tuple(body["stop_token_ids"]),
            )
            turn = await collect(engine.generate(f"request-{time.monotonic_ns()}/0", body["prompt"], sampling))
        except InvalidInput as error:
            raise HTTPException(400, str(error)) from None
        reason = "stop" if turn.finish_reason is FinishReason.STOP else "length"
        logprobs = {"token_logprobs": list(turn.logprobs)}
        return {"choices": [{"token_ids": list(turn.token_ids), "logprobs": logprobs, "finish_reason": reason}]}

    @app.post("/load")
    async def load(body: dict[str, Any]) -> Any:
        await engine.publish(read_snapshot(Path(body["path"])), body["version"])
        return {"success": True}

    return app


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of an application that is served by a thread."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([place],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


@contextlib.contextmanager
def completions_server(folder: Path) -> Iterator[str]:
    """A server of a folder's model."""
    with serving(application(LocalEngine(folder, EngineConfig(max_batch=16, device="cpu", threads=1)))) as url:
        yield url
