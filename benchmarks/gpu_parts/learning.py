"""Learning end to end on this device: the calculator run, and a SmolLM2 shape that learns to write digits."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import agentrl
from agentrl.models.tiny import TinyShape, build, render
from benchmarks import vs_trl
from benchmarks.gpu_parts.report import SMOLLM2, Report

CALCULATOR_STEPS = 10
"""The reward is at 0.9 by step 5; a step of so small a model waits for the host, up to 7 seconds."""


def run(report: Report) -> None:
    """Both runs."""
    report.attempt("calculator", lambda: calculator(report))
    report.attempt("SmolLM2 shape", lambda: digits(report))


def calculator(report: Report) -> None:
    """`agentrl train env=calculator`, shorter; before is after the warm start."""
    small = {
        "warm_start": {"steps": 2, "demos": 16},
        "rollout": {"groups_per_step": 2, "group_size": 2},
        "eval": {"tasks": 2, "n": 1},
    }
    with TemporaryDirectory() as folder:
        result = agentrl.train(
            "calculator",
            steps=1 if report.small else CALCULATOR_STEPS,
            run_dir=f"{folder}/run",
            engine={"device": report.device},
            trainer={"device": report.device},
            **(small if report.small else {}),
        )
    assert result.before
    assert result.after
    report.add("calculator: held-out reward before", result.before.mean)
    what = f"calculator: held-out reward after {1 if report.small else CALCULATOR_STEPS} steps"
    report.above(what, result.after.mean, result.before.mean + 0.1, judged=not report.small)


def digits(report: Report) -> None:
    """The task of `benchmarks.vs_trl`, on a model of SmolLM2's widths with a small vocabulary of its own."""
    shape = TinyShape(
        layers=SMOLLM2["num_hidden_layers"],
        width=SMOLLM2["hidden_size"],
        heads=SMOLLM2["num_attention_heads"],
        kv_heads=SMOLLM2["num_key_value_heads"],
        mlp=SMOLLM2["intermediate_size"],
    )
    small = TinyShape(layers=2, width=48, heads=3, kv_heads=1, mlp=64)
    texts = [render([{"role": "user", "content": vs_trl.question(i, 0)}]) for i in range(50)]
    steps = 1 if report.small else 8
    with TemporaryDirectory() as folder:
        path = build(Path(folder) / "model", texts, shape=small if report.small else shape)
        found = vs_trl.ours(str(path), steps, 0, 0, device=report.device)
    first, last = found["rewards"][0], found["rewards"][-1]
    report.add("SmolLM2 shape: seconds a step", found["seconds"][-1])
    what = f"SmolLM2 shape: reward of step {steps} (of the first: {first:.3f})"
    report.above(what, last, first + 0.2, judged=not report.small)
