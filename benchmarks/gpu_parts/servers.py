"""SGLang and vLLM on a GPU: rates and determinism's price, agreement with the trainer, colocated sleep and wake.

They are looked for in this Python, in `.venv-sglang` and in `.venv-vllm`.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from agentrl.config import EngineConfig, FleetConfig, WeightsConfig
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.contract import CHECKS, EngineSubject
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet import asleep, make_engines
from agentrl.rollout.weights.buckets import Weights
from agentrl.train.driver.engine_check import probe_engine
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Engine, Sampling, collect
from benchmarks.engines import cached_share
from benchmarks.fidelity import agreement, random_sessions
from benchmarks.gpu_parts.report import SMOLLM2, Report

TOGETHER, NEW, SESSIONS = 128, 256, 100
ROOT = Path(__file__).resolve().parents[2]


def run(report: Report) -> None:
    """Each server that is there."""
    found = {name: python for name in ("sglang", "vllm") if (python := interpreter(name))}
    for name in ("sglang", "vllm"):
        if name not in found:
            report.add(name, "not installed here: neither in this Python nor in .venv-" + name)
    path = report.folder(SMOLLM2) if found else Path()
    for name, python in found.items():
        settings = {"name": name, "python": python, "device": "cuda", "max_batch": TOGETHER}
        report.attempt(f"{name}, colocated", lambda n=name, s=settings: asyncio.run(colocated(report, path, n, s)))
        report.attempt(f"{name}, rates", lambda n=name, s=settings: served(report, path, n, s))


def interpreter(name: str) -> str | None:
    """A Python that has the server."""
    for python in (sys.executable, str(ROOT / f".venv-{name}/bin/python")):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        if Path(python).exists() and subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


async def colocated(report: Report, path: Path, name: str, settings: dict[str, Any]) -> None:
    """Sleep gives memory back, and after waking and a publication the engine computes what the trainer does."""
    trainer = TorchTrainer(path)
    config = ServerConfig(dtype="bfloat16", **settings)
    engine = make_engines(config, FleetConfig(colocated=True), WeightsConfig(), path)
    try:
        prompt = random.Random(0).choices(range(1000), k=64)
        await collect(engine.generate("a/0", prompt, Sampling(max_new_tokens=16, seed=0)))
        awake = free()
        began = time.perf_counter()
        async with asleep(engine):
            slept = time.perf_counter() - began
            report.above(f"{name}: GiB that sleep gives back", (free() - awake) / 2**30, 1.0)
            began = time.perf_counter()
        report.add(f"{name}: seconds to sleep and to wake", f"{slept:.2f} and {time.perf_counter() - began:.2f}")
        await engine.publish(Weights(trainer.weights), 1)
        trainer.version = 1
        found = await probe_engine(engine, trainer, tokens=48, bound=1.0)
        report.below(f"{name}: mean |Δ log-probability| from the trainer after waking", found["probe/abs_mean"], 0.05)
    finally:
        await engine.close()


def served(report: Report, path: Path, name: str, settings: dict[str, Any]) -> None:
    """Rates in bfloat16 with and without determinism, and how far the engine is from the trainer."""
    rates: dict[bool, float] = {}
    for deterministic in (False, True):
        config = ServerConfig(dtype="bfloat16", deterministic=deterministic, **settings)
        rates[deterministic], sampled = asyncio.run(measure(report, path, config))
        apart = agreement(TorchTrainer(path), sampled)
        kind = "deterministic" if deterministic else "ordinary kernels"
        report.add(f"{name}, {kind}: tokens per second of {TOGETHER} sessions", rates[deterministic])
        report.below(f"{name}, {kind}: mean |Δ log-probability|, bfloat16 to float32", apart.mean, 0.05)
        torch.cuda.empty_cache()
    report.add(f"{name}: time of a token with determinism, of that without", rates[False] / rates[True])


async def measure(report: Report, path: Path, config: EngineConfig) -> tuple[float, Any]:
    """A server's best rate of three, and sessions for the trainer."""
    engine = make_engine(config, path)
    try:
        await rate(engine, 0)  # compiles what there is to compile
        best = max([await rate(engine, number) for number in range(1, 4)])
        report.add(f"{config.name}: share of prefix tokens from the cache", await cached_share(engine))
        if engine.capabilities.deterministic:
            await CHECKS["other_requests_change_nothing"](EngineSubject(engine))
            report.add(f"{config.name}: 50 mixed conversations in three orders", "bit-equal", "bit-equal", True)
        return best, await random_sessions(engine, SESSIONS)
    finally:
        await engine.close()


async def rate(engine: Engine, number: int) -> float:
    """Tokens per second of many sessions at once."""
    dice = random.Random(number)
    prompts = [dice.choices(range(engine.capabilities.vocab_size), k=256) for _ in range(TOGETHER)]
    began = time.perf_counter()
    turns = [
        collect(engine.generate(f"r{number}-{i}/0", prompt, Sampling(max_new_tokens=NEW, seed=i)))
        for i, prompt in enumerate(prompts)
    ]
    sampled = sum(len(turn.token_ids) for turn in await asyncio.gather(*turns))
    return sampled / (time.perf_counter() - began)


def free() -> int:
    """Bytes of the GPU that nobody has."""
    return int(torch.cuda.mem_get_info()[0])
