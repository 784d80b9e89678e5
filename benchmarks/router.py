"""Two engines behind the fleet's own policy, and the same two behind SGLang's router (`sglang-router`).

16 sessions of five turns side by side, in groups of four on one prompt, as a rollout generates them; prompts,
messages and turns are of uneven lengths. The fleet and the router get the same requests from the same client, one
after the other in each round, whoever is first changing, against the same two servers with caches flushed before.
The router runs its policy `cache_aware` with its own defaults, from an environment of its own (`.venv-router`,
made here if it is absent).

Printed for both: new tokens per second; which share of a session's own earlier turns came from a cache (as in
`benchmarks.engines`), and which of all prompt tokens, a group's shared prompt included. First it is shown what an
answer of `/generate` loses on its way through the router, and which of the other routes that we ask a server for the
router passes on; 0.3.2 passes on so few that `engine.url` can't name it, and the client here skips what is missing.

Run as `python -m benchmarks.router [--rounds 3] [--sessions 16] [python=… other=settings]`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.cluster.server import ServerProcess, free_port
from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.errors import AgentRLError
from agentrl.models import resolve
from agentrl.overrides import parse_words
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.rollout.engines.servers.sglang_client import SGLangClient
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights import make_publisher
from agentrl.types import Engine, Sampling, collect
from benchmarks.machine import machine

ROOT = Path(__file__).resolve().parents[1]
ROUTER, ENVIRONMENT = "sglang-router==0.3.2", ROOT / ".venv-router"
HOST = "127.0.0.1"
GROUP, TURNS = 4, 5
PROMPT, SAID, NEW = (64, 320), (8, 40), (16, 64)
"""Tokens of a group's prompt, of a message, and of a turn: from, to."""
ROUTES = (
    "GET /model_info",
    "GET /server_info",
    "POST /abort_request",
    "POST /flush_cache",
    "POST /continue_generation",
)
"""Some of those that an engine and a publication need, harmless at any time."""


class Behind(SGLangEngine):
    """An engine behind a router, which says nothing of the servers behind it: it is taken as it is."""

    async def _probe(self) -> bool:
        return await self.client.healthy()

    async def _check_server(self) -> None:
        pass


@dataclass
class Found:
    """What a side did in a round, in tokens and seconds."""

    new: int = 0
    prompt: int = 0
    cached: int = 0
    earlier: int = 0
    reused: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.rate:.0f} tokens/s, {self.own:.3f} of own turns and {self.all:.3f} of all prompts cached"

    @property
    def rate(self) -> float:
        """New tokens per second."""
        return self.new / self.seconds

    @property
    def own(self) -> float:
        """Cached share of what sessions said and drew before."""
        return self.reused / self.earlier

    @property
    def all(self) -> float:
        """Cached share of all prompt tokens."""
        return self.cached / self.prompt


async def play(engine: Engine, sessions: int, round_: int) -> Found:
    """All sessions of a round, side by side."""
    found, vocab = Found(), engine.capabilities.vocab_size

    async def session(index: int) -> None:
        shared = random.Random(f"{round_} group {index // GROUP}")
        path = shared.choices(range(vocab), k=shared.randint(*PROMPT))
        dice, earlier = random.Random(f"{round_} session {index}"), 0
        for turn in range(TURNS):
            path += dice.choices(range(vocab), k=dice.randint(*SAID))
            sampling = Sampling(max_new_tokens=dice.randint(*NEW))
            sampled = await collect(engine.generate(f"round-{round_}-{index}/{turn}", path, sampling))
            found.new += len(sampled.token_ids)
            found.prompt, found.cached = found.prompt + len(path), found.cached + sampled.cached_tokens
            found.earlier, found.reused = found.earlier + earlier, found.reused + min(sampled.cached_tokens, earlier)
            path += sampled.token_ids
            earlier = len(path)

    began = time.perf_counter()
    await asyncio.gather(*[session(index) for index in range(sessions)])
    found.seconds = time.perf_counter() - began
    return found


async def losses(server: SGLangClient, router: SGLangClient) -> None:
    """Print what the router leaves out of an answer, and which routes it passes on."""
    sampling = {"max_new_tokens": 4, "ignore_eos": True}
    body = {"rid": "0", "input_ids": [1, 2, 3], "sampling_params": sampling, "return_logprob": True, "extra_key": "0"}

    async def fields(client: SGLangClient) -> set[str]:
        return {field async for event in client.generate(body) for field in (*event, *event["meta_info"])}

    lost = sorted(await fields(server) - await fields(router))
    print(
        f"router: an answer of /generate (token ids, log-probabilities, versions) loses {', '.join(lost) or 'nothing'}"
    )
    for route in ROUTES:
        method, path = route.split()
        try:
            await (router.get(path) if method == "GET" else router.post(path))
            print(f"router: {route} is passed on")
        except AgentRLError as error:
            print(f"router: {route} is not passed on: {error}")


def routing(urls: Sequence[str], port: int) -> ServerProcess:
    """The router before these servers, as a process of ours."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        print(f"installing {ROUTER} into {ENVIRONMENT.name} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*install, ROUTER], check=True)
    options = ["--host", HOST, "--port", str(port), "--policy", "cache_aware", "--worker-urls", *urls]
    options += ["--prometheus-port", str(free_port(HOST)), "--log-level", "warn"]
    return ServerProcess("router", [str(python), "-m", "sglang_router.launch_router", *options])


async def compare(fleet: Engine, router: Engine, servers: Sequence[SGLangEngine], given: argparse.Namespace) -> None:
    """Interleave rounds of both; print them, and medians."""
    found: dict[str, list[Found]] = {"fleet": [], "router": []}
    sides = {"fleet": fleet, "router": router}
    for round_ in range(given.rounds + 1):  # the first warms up and is not counted
        for side in sorted(sides, reverse=bool(round_ % 2)):
            for server in servers:
                await server.client.flush()
            result = await play(sides[side], given.sessions, round_)
            print(f"round {round_}: {side:6} {result}", flush=True)
            if round_:
                found[side].append(result)
    for name, unit in (("rate", "tokens/s"), ("own", "of own turns cached"), ("all", "of all prompts cached")):
        ours, its = ([getattr(one, name) for one in found[side]] for side in ("fleet", "router"))
        ratio = statistics.median(a / b for a, b in zip(ours, its, strict=True))
        figures = f"fleet {statistics.median(ours):.3f}, router {statistics.median(its):.3f}"
        print(f"{given.sessions} sessions, {unit}: {figures}, ratio fleet / router {ratio:.3f}")


async def run(given: argparse.Namespace, path: Path, config: EngineConfig) -> None:
    """Start servers, router and fleet, and measure."""
    async with AsyncExitStack() as ends:
        servers = [SGLangEngine(path, config) for _ in range(2)]
        for server in servers:
            ends.push_async_callback(server.close)
        await asyncio.gather(*[server.start() for server in servers])
        urls, port = [server.client.url for server in servers], free_port(HOST)
        ends.push_async_callback(routing(urls, port).close)
        router = Behind(path, config.model_copy(update={"url": f"http://{HOST}:{port}"}))
        ends.push_async_callback(router.close)
        makers = [partial(SGLangEngine, path, config.model_copy(update={"url": url})) for url in urls]
        fleet = Fleet(makers, make_publisher(WeightsConfig(), path, config), FleetConfig())
        ends.push_async_callback(fleet.close)
        await router.start()
        await fleet.start()
        await losses(servers[0].client, router.client)
        await compare(fleet, router, servers, given)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("settings", nargs="*", help="of the engines: python=.venv-sglang/bin/python")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=16)
    given = parser.parse_intermixed_args(argv)
    settings: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_context": 1024, "max_batch": 32}
    settings |= {"threads": 1, "start_timeout": 1800, **parse_words(given.settings)}
    print(machine(), flush=True)
    asyncio.run(run(given, resolve(given.model), ServerConfig(name="sglang", **settings)))
    print(machine())


if __name__ == "__main__":
    main()
