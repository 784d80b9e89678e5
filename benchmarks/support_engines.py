"""How far engines and trainer agree on narrowed turns, and what it costs an engine to record what it drew from.

    python -m benchmarks.support_engines [mismatch] [cost] [--engine local sglang vllm] [--model smollm2-135m]

mismatch: for each engine and each way of drawing the largest and the mean |Δ log-probability| of engine and trainer
(torch, float32), and which part of the sampled tokens is trained. Full support is the baseline. Beside it the distance
of either from the same model in float64: where these are as large as their difference, it is float32's rounding that
they differ by, and nothing that they compute differently.

cost: processor time of this process and the server's, a token, for turns with their supports recorded, against the same
without, alternately; and against full support. Aim: at most 1.05 times as much as without. vLLM scores narrowed turns
again whose supports are not recorded, so its ratio is below 1.

Words like `server.block_size=32` are settings of the engines; `.venv-sglang` and `.venv-vllm` have the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from agentrl.attachments import support
from agentrl.models import resolve
from agentrl.overrides import parse_words
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.call_grammar import call_grammar
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Engine, Sampling, Session, collect
from benchmarks.fidelity import Agreement, agreement, forests_of, random_sessions
from benchmarks.machine import machine

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "note": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "note", "age"],
}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
FULL = "full support"
CASES: Mapping[str, dict[str, Any]] = {
    FULL: {},
    "top_p=0.9": {"top_p": 0.9},
    "top_k=20, top_p=0.95": {"top_k": 20, "top_p": 0.95},
    "min_p=0.05": {"min_p": 0.05},
    "JSON schema": {"json_schema": json.dumps(SCHEMA)},
    "JSON schema, top_p=0.9": {"json_schema": json.dumps(SCHEMA), "top_p": 0.9},
    "repetition_penalty=1.1": {"repetition_penalty": 1.1},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
}
CALLS = "tool calls"
SEPARATE = ("sglang", "vllm")


def cases(engine: Engine, path: Path) -> dict[str, dict[str, Any]]:
    """The ways of drawing that an engine has."""
    found = dict(CASES)
    if engine.capabilities.lark:
        found[CALLS] = {"lark": call_grammar(get_renderer(path), [TOOL])}
    return found


async def mismatch(
    engine: Engine, trainer: TorchTrainer, own: Mapping[str, Any], sessions: int, turns: int = 3
) -> tuple[Agreement | None, float, list[Session]]:
    """The agreement on one way of drawing's trained tokens, their part of the sampled ones, and the sessions."""
    made = await random_sessions(engine, sessions, turns=turns, narrowings=(own,))
    drawn = [node for session in made for node in session.nodes if node.sampled]
    trained = sum(sum(node.trainable) for node in drawn)
    sampled = sum(span.end - span.start for node in drawn for span in node.versions)
    return agreement(trainer, made) if trained else None, trained / sampled, made


def between(trainer: TorchTrainer, exact: TorchTrainer, sessions: Sequence[Session]) -> float:
    """How far two trainers' log-probabilities of the trained tokens are apart, at most."""
    forests = forests_of(sessions)
    pairs = zip(trainer.logprobs(forests), exact.logprobs(forests), forests, strict=True)
    return max(float((one - other)[torch.as_tensor(row.weight) > 0].abs().max()) for one, other, row in pairs)


async def print_mismatch(
    name: str, engine: Engine, drawn: Mapping[str, dict[str, Any]], path: Path, sessions: int
) -> None:
    """Print a row for each way of drawing."""
    trainer, exact = TorchTrainer(path), TorchTrainer(path)
    exact.model.double()
    for case, own in drawn.items():
        one, trained, made = await mismatch(engine, trainer, own, sessions)
        if one is None:
            print(f"{name}, {case}: not trained", flush=True)
            continue
        ours, theirs = agreement(exact, made).max, between(trainer, exact, made)
        print(
            f"{name}, {case}: |Δ| at most {one.max:.1e}, {one.mean:.1e} in the mean, of {one.tokens} tokens, "
            f"{trained:.1%} of the sampled ones; from float64 the engine at most {ours:.1e}, the trainer {theirs:.1e}",
            flush=True,
        )


async def seconds(engine: Engine, own: Mapping[str, Any], record: bool, rows: int, tokens: int, seed: int) -> float:
    """The processor time of as many turns at once, for each token."""
    dice = random.Random(seed)
    prompts = [dice.choices(range(engine.capabilities.vocab_size), k=24) for _ in range(rows)]
    wanted = Sampling(max_new_tokens=tokens, **own)
    wanted = replace(wanted, record=((support.NAME, 24),)) if record else wanted
    began = spent()
    turns = [
        collect(engine.generate(f"cost-{seed}-{at}/0", prompt, replace(wanted, seed=1000 * seed + at)))
        for at, prompt in enumerate(prompts)
    ]
    drawn = await asyncio.gather(*turns)
    return (spent() - began) / sum(len(turn.token_ids) for turn in drawn)


def spent() -> float:
    """The processor time of this process and its children, those of servers among them."""
    times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]  # in ticks of 10 ms
    return time.process_time() + sum(one.user + one.system for one in times)


async def cost(
    name: str, engine: Engine, drawn: Mapping[str, dict[str, Any]], repeats: int, rows: int, tokens: int
) -> None:
    """Print what recording costs, by way of drawing."""
    await seconds(engine, {}, False, rows, tokens, 0)
    for case, own in drawn.items():
        kinds = {"recorded": (own, True), "without": (own, False), "full": ({}, False)}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for repeat in range(repeats):
            for kind in sorted(kinds, reverse=bool(repeat % 2)):
                times[kind].append(await seconds(engine, *kinds[kind], rows, tokens, 1 + repeat))
        ratios = [
            statistics.median(one / other for one, other in zip(times["recorded"], times[kind], strict=True))
            for kind in ("without", "full")
        ]
        print(
            f"{name}, {case}: {1e3 * statistics.median(times['recorded']):.2f} ms a token; {ratios[0]:.2f} times as "
            f"much as without the supports, {ratios[1]:.2f} times full support",
            flush=True,
        )


async def measure(given: argparse.Namespace, name: str, path: Path, settings: Mapping[str, Any]) -> None:
    """Print what is asked for of an engine."""
    python = {"python": f".venv-{name}/bin/python"} if name in SEPARATE else {}
    engine = make_engine(ServerConfig(name=name, **{**python, **settings}), path)
    try:
        await collect(engine.generate("first/0", [1, 2, 3], Sampling(max_new_tokens=1)))
        drawn = cases(engine, path)
        drawn = {case: drawn[case] for case in drawn if not given.only or case in (FULL, *given.only)}
        if "mismatch" in given.what:
            await print_mismatch(name, engine, drawn, path, given.sessions)
        if "cost" in given.what:
            drawn.pop(FULL, None)
            await cost(name, engine, drawn, given.repeats, given.rows, given.tokens)
    finally:
        await engine.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=[], help="mismatch, cost, settings of engines; both by default")
    parser.add_argument("--engine", nargs="*", default=["local", "sglang", "vllm"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", nargs="*", default=(), help="these ways of drawing, beside full support")
    parser.add_argument("--sessions", type=int, default=12, help="conversations of three turns for each way of drawing")
    parser.add_argument("--rows", type=int, default=16, help="turns at once, whose cost is measured")
    parser.add_argument("--tokens", type=int, default=32, help="of each of these")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_intermixed_args(argv)
    settings: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_context": 1024, "max_batch": 32}
    settings |= {"start_timeout": 1800} | parse_words(word for word in given.what if "=" in word)
    given.what = [word for word in given.what if "=" not in word] or ["mismatch", "cost"]
    print(machine(), flush=True)
    path = resolve(given.model)
    for name in given.engine:
        asyncio.run(measure(given, name, path, settings))


if __name__ == "__main__":
    main()
