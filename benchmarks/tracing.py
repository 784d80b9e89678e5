"""What `tracing=` costs: sessions with the local engine with spans and without, in turn, and a span by itself.

    python -m benchmarks.tracing [--rounds 7] [--width 128] [--layers 3]

The sessions are the calculator's, by a model of random weights; a turn is up to 48 tokens. Spans go to a collector in
another process, which answers and keeps nothing. Cost is processor time of this process, with sending all of a round's
spans; the ratio is the median over pairs of rounds. The aim is at most 1.02. The default model has half a million
parameters, which makes turns as cheap as they can be: those of a real model cost more, and their spans the same.
Needs the extra `tracing`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import agentrl
from agentrl import tracing
from agentrl.config import EngineConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.models import tiny
from agentrl.rollout.actors import ModelActor
from agentrl.rollout.engines.local import LocalEngine
from agentrl.rollout.groups import Rollouts
from agentrl.rollout.policies import Policy
from agentrl.sessions.renderers import get_renderer
from agentrl.types import Sampling
from benchmarks.machine import machine

COLLECTOR = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
GROUPS, SIZE, TOKENS = 8, 8, 48
TEXTS = [f"<|im_start|>user\nWhat is {n} + {n * 7}?<|im_end|>\n" for n in range(200)]
AIM = 1.02


async def played(rollouts: Rollouts) -> int:
    """Play the groups; how many turns there were."""
    tasks = list(islice(calls.tasks(agentrl.make("calculator")), GROUPS))
    groups = await rollouts.collect(tasks, ModelActor(Sampling(max_new_tokens=TOKENS)), phase="train", n=SIZE)
    return sum(session.turns for group in groups for session in group.sessions)


async def compare(rollouts: Rollouts, rounds: int, url: str) -> None:
    """Print the cost of a turn with spans and without."""
    lost: list[str] = []
    await played(rollouts)
    pairs = []
    for number in range(rounds):
        cost = {}
        for on in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            with tracing.exported(url, {"agentrl.run": "benchmark"}, lost.append) if on else nullcontext():
                turns = await played(rollouts)
            cost[on] = 1e3 * (time.process_time() - began) / turns
        pairs.append((cost[True], cost[False]))
    ratio = statistics.median(on / off for on, off in pairs)
    on, off = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"a turn, of {turns} in a round: {off:.2f} ms without spans, {on:.2f} ms with them: ratio {ratio:.3f}")
    print(f"aim, at most {AIM}: {'reached' if ratio <= AIM else 'missed'}{''.join(f'; {text}' for text in lost[:1])}")


def single(url: str, count: int = 5000) -> None:
    """Print what a span costs by itself."""

    def microseconds() -> float:
        began = time.process_time()
        for _ in range(count):
            with tracing.span("tool", tool="search"):
                pass
        return 1e6 * (time.process_time() - began) / count

    off = microseconds()
    with tracing.collected():
        kept = microseconds()
    with tracing.exported(url, {}), tracing.scope(session="train-1.0-1", turn=1), tracing.span("turn", root=True):
        on = microseconds()
    print(f"a span: {off:.2f} µs where nobody asks, {kept:.2f} µs where its seconds are kept, {on:.1f} µs exported")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        url = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        single(url)
        with tempfile.TemporaryDirectory() as scratch:
            shape = tiny.TinyShape(width=options.width, layers=options.layers)
            path = tiny.build(Path(scratch) / "model", TEXTS, shape=shape)
            engine = LocalEngine(path, EngineConfig(max_batch=128))
            policy = Policy(get_renderer(path, "auto"), engine)
            limits = RolloutConfig(turn_tokens=TOKENS, concurrency=128)
            asyncio.run(compare(Rollouts(lambda: agentrl.make("calculator"), policy, limits, 0), options.rounds, url))
    finally:
        collector.kill()


if __name__ == "__main__":
    main()
