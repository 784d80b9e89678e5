"""A local engine behind SGLang's routes, in a process of its own: a server for fleets that starts in seconds.

Run as `python -m tests.rollout.fleet.token_server FOLDER PORT`, or as a role, which starts in a moment. It
speaks as much of SGLang's HTTP as `SGLangEngine` and a disk publication use.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from agentrl.config import EngineConfig
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.types import Chunk, PauseMode, Sampling, Turn

ORDINARY = {"success": True, "message": ""}
DEADLY = 99
"""It ends at once where a prompt begins with this token."""
MODES = {"abort": PauseMode.ABORT, "retract": PauseMode.RETRACT, "in_place": PauseMode.IN_PLACE}


def application(engine: LocalEngine) -> FastAPI:
    app = FastAPI()

    @app.get("/model_info")
    async def model_info() -> Any:
        return {"weight_version": str(engine.version())}

    @app.get("/server_info")
    async def server_info() -> Any:
        return {"version": "0.5.23", "incremental_streaming_output": True, "max_req_input_len": 10_000}

    @app.get("/health")
    async def health() -> Any:
        return {}

    @app.post("/generate")
    async def generate(request: Request) -> Any:
        body = await request.json()
        if not body["sampling_params"]["max_new_tokens"]:  # it is asked for log-probabilities
            scored = await engine.score(body["input_ids"])
            return {"meta_info": {"input_token_logprobs": [[logp] for logp in scored]}}
        return StreamingResponse(stream(body), media_type="text/event-stream")

    async def stream(body: dict[str, Any]) -> AsyncIterator[bytes]:
        if body["input_ids"][0] == DEADLY:
            os._exit(1)
        params = body["sampling_params"]
        ends = tuple(params.get("stop_token_ids") or ())
        sampling = Sampling(params["temperature"], max_new_tokens=params["max_new_tokens"], stop_token_ids=ends)
        async for item in engine.generate(f"{body['rid']}/0", body["input_ids"], sampling):
            meta: dict[str, Any] = {"cached_tokens": 0, "weight_version": str(engine.version()), "finish_reason": None}
            new: Chunk | Turn = item
            if isinstance(item, Turn):
                meta["finish_reason"] = {"type": item.finish_reason.value, "matched": item.stopped_by}
                meta["weight_versions"] = [
                    {"version": str(span.version), "start": span.start, "end": span.end} for span in item.versions
                ]
                new = Chunk((), (), 0)
            meta["output_token_logprobs"] = [
                [logp, token, None] for logp, token in zip(new.logprobs, new.token_ids, strict=True)
            ]
            yield b"data: " + orjson.dumps({"output_ids": new.token_ids, "meta_info": meta}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    @app.post("/pause_generation")
    async def pause(request: Request) -> Any:
        await engine.pause(MODES[(await request.json())["mode"]])
        return ORDINARY

    @app.post("/continue_generation")
    async def resume() -> Any:
        await engine.resume()
        return ORDINARY

    @app.post("/update_weights_from_disk")
    async def update(request: Request) -> Any:
        body = await request.json()
        await engine.publish(read_snapshot(Path(body["model_path"])), int(body["weight_version"]))
        return ORDINARY

    @app.post("/weights_checker")
    async def checksum() -> Any:
        return {**ORDINARY, "per_engine_checksum": await engine.checksum()}

    @app.post("/abort_request")
    @app.post("/flush_cache")
    async def nothing() -> Any:
        return ORDINARY

    return app


def slow_down(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step that takes 3 ms more: turns last long enough to be disturbed, where compiled 400 tokens take 0.1 s."""

    def slower(*given: Any) -> Any:
        time.sleep(0.003)
        return step(*given)

    return slower


def serve(folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    local = LocalEngine(folder, EngineConfig(max_batch=16, device="cpu"))
    local.runner.step = slow_down(local.runner.step)  # type: ignore[method-assign]
    uvicorn.run(application(local), host="127.0.0.1", port=port, log_level="warning")


class TokenServer:
    """The server as a role, whose process is forked."""

    def __init__(self, folder: Path, port: int) -> None:
        threading.Thread(target=serve, args=(folder, port), daemon=True).start()


def interpreter(file: Path) -> Path:
    """Write the interpreter of an SGLang that is this server, for `engine.python`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "#!/bin/bash\n"
        'case "$*" in *metadata*) echo 0.5.23; exit;; esac\n'
        'while [ $# -gt 0 ]; do case "$1" in --model-path) model=$2;; --port) port=$2;; esac; shift; done\n'
        f'exec {sys.executable} -m tests.rollout.fleet.token_server "$model" "$port"\n'
    )
    file.chmod(0o755)
    return file


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
