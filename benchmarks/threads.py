"""What a share of the cores is worth to processes on a CPU, against as many threads as the machine has cores.

`python -m benchmarks.threads [engines] [trainer] [--rounds 3] [KEY=VALUE …]`

engines: two servers generate at the same time, with their share of threads each, and with as many as there are cores.
All four are started at once and take turns, pair by pair: idle ones sleep. The second pair starves whatever else runs
on the machine.

trainer: a step of the tiny model with its share (one thread) and with a thread for each core; as the machine is, and
beside as many busy processes as there are cores.

Rounds alternate, and ratios are of medians. Words like `python=.venv-sglang/bin/python` are settings of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.common import cores
from agentrl.config import AlgoConfig, EngineConfig, FleetConfig
from agentrl.models import resolve
from agentrl.overrides import parse_words
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet import divided
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.types import Engine, Sampling, collect
from benchmarks.machine import machine

SERVERS, REQUESTS, PROMPT, NEW = 2, 2, 32, 8
STEPS, SESSIONS, SAID = 3, 32, 32


async def tokens_per_second(pair: Sequence[Engine]) -> float:
    """New tokens a second of servers that generate at the same time."""
    sampling = Sampling(max_new_tokens=NEW)
    began = time.perf_counter()
    turns = await asyncio.gather(
        *[
            collect(engine.generate(f"{time.time()}-{n}/0", [n + 10 * i + 5 for i in range(PROMPT)], sampling))
            for engine in pair
            for n in range(REQUESTS)
        ]
    )
    return sum(len(turn.token_ids) for turn in turns) / (time.perf_counter() - began)


async def engines(model: Path, config: EngineConfig, rounds: int) -> None:
    """Measure two servers with their shares and with all cores each."""
    every = len(cores.allowed())
    shares = divided(config, FleetConfig(engines=SERVERS), model)
    alike = [config.model_copy(update={"threads": every})] * SERVERS
    pairs = {f"{one[0].threads} threads each": [make_engine(c, model) for c in one] for one in (shares, alike)}
    rates: dict[str, list[float]] = {name: [] for name in pairs}
    try:
        for pair in pairs.values():
            await tokens_per_second(pair)  # started, and warm
        for _ in range(rounds):
            for name, pair in pairs.items():
                rates[name].append(await tokens_per_second(pair))
                print(f"  {name}: {rates[name][-1]:.3g} new tokens/s", flush=True)
    finally:
        await asyncio.gather(*[engine.close() for pair in pairs.values() for engine in pair])
    report(f"{SERVERS} x engine={config.name}, new tokens/s", rates, lambda share, other: share / other)


def trainer(rounds: int) -> None:
    """Measure steps of the tiny model."""
    from agentrl.models.tiny import build, render
    from agentrl.train.algorithms import make_algorithm
    from agentrl.train.forest.packing import pack
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
    from agentrl.types import Group, Task
    from benchmarks.forest import sample

    dice, algo = random.Random(0), AlgoConfig()
    prompt = dice.choices(range(256), k=PROMPT)
    group = Group("g", Task(id="t"), [sample(i, prompt, dice.choices(range(256), k=SAID)) for i in range(SESSIONS)])
    forests = pack([group], make_algorithm(algo).credit([group]), 4096)
    with tempfile.TemporaryDirectory() as folder:
        text = [render([{"role": "user", "content": f"What is {n} + {n}?"}]) for n in range(50)]
        one = TorchTrainer(build(Path(folder) / "model", text), TorchConfig(device="cpu"), algo)

        def seconds(threads: int) -> float:
            one.threads = threads
            began = time.perf_counter()
            for _ in range(STEPS):
                one.step(forests)
            return (time.perf_counter() - began) / STEPS

        share, every = cores.share(1, Path(folder) / "model"), len(cores.allowed())
        for label, busy in (("as the machine is", 0), (f"beside {every} busy processes", every)):
            with load(busy):
                times: dict[str, list[float]] = {f"{threads} threads": [] for threads in (share, every)}
                seconds(share), seconds(every)
                for _ in range(rounds):
                    for threads in (share, every):
                        times[f"{threads} threads"].append(seconds(threads))
            report(f"tiny trainer, s/step, {label}", times, lambda mine, other: other / mine)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Meanwhile so many other processes compute."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def report(what: str, found: dict[str, list[float]], ratio: Callable[[float, float], float]) -> None:
    """Print medians, the range of each, and how much better the first is than the second."""
    (first, mine), (second, other) = found.items()
    shown = [
        f"{n}: {statistics.median(v):.3g} ({min(v):.3g} to {max(v):.3g})" for n, v in ((first, mine), (second, other))
    ]
    times = ratio(statistics.median(mine), statistics.median(other))
    print(f"{what}: {'; '.join(shown)}; {times:.2f} times as fast", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=["engines", "trainer"], help="engines, trainer, engine settings")
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_intermixed_args(argv)
    os.environ.pop(cores.VARIABLE, None)  # this measures the defaults, without settings
    print(machine())
    both = not {"engines", "trainer"} & set(given.what)
    if both or "trainer" in given.what:
        trainer(given.rounds)
    if both or "engines" in given.what:
        settings: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_context": 512, "max_batch": 8}
        settings |= parse_words(word for word in given.what if "=" in word)
        config = ServerConfig(name=given.engine, start_timeout=1800, **settings)
        asyncio.run(engines(resolve(given.model), config, given.rounds))


if __name__ == "__main__":
    main()
