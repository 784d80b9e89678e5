"""The local engine: its log-probabilities against the trainer's, and its rate against transformers' generate()."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from agentrl.config import Dtype, EngineConfig
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Sampling, collect
from benchmarks.fidelity import agreement, random_sessions
from benchmarks.gpu_parts.report import SMOLLM2, Report
from benchmarks.local_engine import rates

BOUNDS: dict[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.05}


def run(report: Report) -> None:
    """Agreement in both precisions, a repeated request, and the rate."""
    path = report.folder(SMOLLM2)
    for dtype, bound in BOUNDS.items():
        report.attempt(dtype, lambda dtype=dtype, bound=bound: agree(report, path, dtype, bound))
    report.attempt("rate", lambda: asyncio.run(rate(report, path)))


def agree(report: Report, path: Path, dtype: Dtype, bound: float) -> None:
    """Sessions that the engine samples, computed by the trainer in the same precision."""

    async def draw() -> list[object]:
        engine = LocalEngine(path, EngineConfig(device=report.device, dtype=dtype, max_batch=32))
        try:
            sampling = Sampling(max_new_tokens=24, seed=1)
            twice = [await collect(engine.generate(f"same-{i}/0", [5, 6, 7, 8], sampling)) for i in range(2)]
            report.add(
                f"{dtype}: the same request samples the same tokens", str(twice[0].token_ids == twice[1].token_ids)
            )
            return list(await random_sessions(engine, 8 if report.small else 48))
        finally:
            await engine.close()

    sessions = asyncio.run(draw())
    trainer = TorchTrainer(path, TorchConfig(device=report.device, dtype=dtype))
    found = agreement(trainer, sessions)
    report.below(f"{dtype}: mean |Δ log-probability| from the trainer, {found.tokens} tokens", found.mean, bound)


async def rate(report: Report, path: Path) -> None:
    """Tokens per second, engine and generate() in turn."""
    dtype: Dtype = "float32" if report.device == "cpu" else "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).to(report.device).eval()
    batch, rounds, new = (4, 1, 8) if report.small else (64, 3, 64)
    engine = LocalEngine(path, EngineConfig(device=report.device, dtype=dtype, max_batch=batch))
    try:
        await rates(engine, model, batch, 1, 1, new)  # warms up
        for turns in (1, 4):
            (ours, _), (theirs, _) = await rates(engine, model, batch, rounds, turns, new // turns)
            what = (
                f"{dtype}, {batch} sessions of {turns} turn{'s' * (turns > 1)}: {ours:,.0f} tokens/s, of generate()'s"
            )
            report.add(what, ours / theirs)
    finally:
        await engine.close()
