"""What `tracing=` costs: sessions with the local engine with spans and without, in turn, and a span by itself.

    python -m benchmarks.tracing [--rounds 7] [--groups 8] [--model FOLDER]

The sessions are the calculator's, by a model of random weights or the one in a folder; a turn is up to 48 tokens. Spans
go to a collector in another process, which answers and keeps nothing. Cost is processor time of this process, with
sending them. Printed are the share of a turn that its spans take, from their number and what one costs by itself (aim:
at most 2 %), and the ratio of whole rounds with spans and without, the median of pairs, which a busy machine makes
worthless. The model of random weights has half a million parameters, so turns are as cheap as can be: a real model's
cost more, their spans the same.
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

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentrl
from agentrl import tracing
from agentrl.config import EngineConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.models import tiny
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
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
SIZE, TOKENS = 8, 48
TEXTS = [f"<|im_start|>user\nWhat is {n} + {n * 7}?<|im_end|>\n" for n in range(200)]
AIM = 0.02


async def played(rollouts: Rollouts, groups: int) -> int:
    """Play the groups; how many turns there were."""
    tasks = list(islice(calls.tasks(agentrl.make("calculator")), groups))
    done = await rollouts.collect(tasks, ModelActor(Sampling(max_new_tokens=TOKENS)), phase="train", n=SIZE)
    return sum(session.turns for group in done for session in group.sessions)


async def compare(rollouts: Rollouts, groups: int, rounds: int, url: str, span: float) -> None:
    """Print the cost of a turn with spans and without, where one span takes `span` milliseconds."""
    lost: list[str] = []
    memory = InMemorySpanExporter()
    with tracing.send_spans(SimpleSpanProcessor(memory), {}):
        turns = await played(rollouts, groups)
    each = len(memory.get_finished_spans()) / turns
    pairs = []
    for number in range(rounds):
        cost = {}
        for on in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            with tracing.export_spans(url, {"agentrl.run": "benchmark"}, lost.append) if on else nullcontext():
                turns = await played(rollouts, groups)
            cost[on] = 1e3 * (time.process_time() - began) / turns
        pairs.append((cost[True], cost[False]))
    ratio = statistics.median(on / off for on, off in pairs)
    on, off = (statistics.median(side) for side in zip(*pairs, strict=True))
    share = each * span / off
    print(f"a turn: {off:.2f} ms without spans; {each:.1f} spans of {1e3 * span:.0f} µs: {share:.2%} of it")
    print(f"aim, at most {AIM:.0%}: {'reached' if share <= AIM else 'missed'}", *lost[:1])
    print(f"whole rounds of {turns} turns: {on:.2f} ms a turn with spans, ratio {ratio:.3f}")


def single(url: str, count: int = 1500) -> float:
    """Print what a span costs by itself, and return it in milliseconds, sending included: all fit into the queue."""

    def microseconds() -> float:
        began = time.process_time()
        for _ in range(count):
            with tracing.span("tool", tool="search"):
                pass
        return 1e6 * (time.process_time() - began) / count

    off = microseconds()
    with tracing.collected():
        kept = microseconds()
    began = time.process_time()
    with tracing.export_spans(url, {}), tracing.scope(session="train-1.0-1", turn=1), tracing.span("turn", root=True):
        on = microseconds()
    sent = 1e6 * (time.process_time() - began) / count
    print(f"a span: {off:.2f} µs where nobody asks, {kept:.2f} µs where its seconds are kept")
    print(f"exported: {on:.0f} µs, {sent:.0f} µs with sending it")
    return sent / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    print(machine())
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        url = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        with tracing.export_spans(url, {}):
            pass  # the first time imports the SDK
        span = single(url)
        with tempfile.TemporaryDirectory() as scratch:
            path = options.model or tiny.build(Path(scratch) / "model", TEXTS, shape=tiny.TinyShape())
            engine = LocalEngine(path, EngineConfig(max_batch=128))
            policy = Policy(get_renderer(path, "auto"), engine)
            limits = RolloutConfig(turn_tokens=TOKENS, concurrency=128)
            rollouts = Rollouts(lambda: agentrl.make("calculator"), policy, limits, 0)
            asyncio.run(compare(rollouts, options.groups, options.rounds, url, span))
    finally:
        collector.kill()


if __name__ == "__main__":
    main()
