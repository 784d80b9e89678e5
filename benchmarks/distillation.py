"""A tiny student learns from a tiny teacher: `python -m benchmarks.distillation [--seeds N] [--rows …] [--small]`.

The teacher is what reinforcement learning made of an imitation of the calculator's demonstrator, the student that
imitation. Rows are what is learned from (`ROWS`): sampled tokens alone, divergences over the vocabulary and over the
teacher's top k, a teacher behind a URL (with `--sglang`, whose server is started), and the policy itself with the
answer in its prompt. That last one is another policy, of the questions of `benchmarks.chain`, which has imitated
prompts that say the word and prompts that don't: one that has never read such a paragraph has nothing to teach.

Printed are the reverse KL divergence of the student from the teacher, in nats a sampled token, in the first step and in
the mean of the last three, and the held-out rewards. The aim: under 0.05. With `--small` the teacher learned from the
best of the student's own sessions. CI's form, of a quarter of the steps or less, is `tests/train/test_distill.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl.models import tiny
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.train.display.console import Display
from benchmarks import chain, preferences
from benchmarks.machine import machine

ROWS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "forward": {"algo.divergence": "forward", "algo.top_k": None},
    "jsd": {"algo.divergence": "jsd", "algo.top_k": None},
    "top_k": {"algo.divergence": "forward", "algo.top_k": 8},
    "url": {"algo.divergence": "forward", "algo.top_k": 8},
    "privileged": {"algo.divergence": "forward", "algo.teacher": "main", "algo.privileged": "answer"},
}
"""The settings of each row; `url` has the teacher's address besides."""


INFORMED = 2400
"""Demonstrations of the row `privileged`, of which four in five have the word in their prompt."""


def distil(
    student: Path,
    teacher: Path | str,
    folder: Path,
    *,
    row: str = "sampled",
    steps: int = 24,
    seed: int = 0,
    tasks: int = 64,
    groups: int = 64,
    env: str = "calculator",
) -> list[float]:
    """Train the student; prints what came of it, and returns each step's divergence (of the row's own kind)."""
    began = time.perf_counter()
    asked = {} if row == "privileged" else {"policies.teacher.model": str(teacher)}
    with (folder / "log").open("w") as log:
        result = agentrl.train(
            env,
            model=str(student),
            algo="distill",
            steps=steps,
            seed=seed,
            run_dir=str(folder / "run"),
            display=Display(Console(file=log)),
            **{
                "algo.lr": 5e-4,
                "algo.schedule": "linear",
                "rollout.groups_per_step": groups,
                "rollout.group_size": 1,
                "rollout.turn_tokens": 24,
                "rollout.session_tokens": 400,
                "eval.tasks": tasks,
                **asked,
                **ROWS[row],
            },
        )
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    found = [line["distill/reverse_kl"] for line in rows]
    assert result.before is not None
    assert result.after is not None
    print(
        f"{row}, seed {seed}: reverse KL {found[0]:.3f} in the first step, {fmean(found[-3:]):.3f} in the last three "
        f"of {len(rows)}; held-out reward {result.before.mean:.3f} -> {result.after.mean:.3f}; "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return [line.get("distill/divergence", line["distill/reverse_kl"]) for line in rows]


class Told(chain.Colours):
    """The questions of `benchmarks.chain`, whose tasks have the right word besides; a question may say it."""

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """The same questions in each split."""
        yield from ({"thing": thing, "answer": chain.colour(thing)} for thing in chain.THINGS)


def informed(folder: Path, seed: int) -> Path:
    """A policy that says the word that its prompt says, and any word where the prompt says none."""
    chance, rows = random.Random(seed), []
    for number in range(INFORMED):
        thing, word = chain.THINGS[number % len(chain.THINGS)], chance.choice(chain.WORDS)
        told = f"\n\nAdditional information: {word}" if number % 5 else ""
        rows.append({"question": chain.question(thing) + told, "answer": chain.answer(thing, word)})
    data = folder / "informed.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [
        tiny.render([{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}])
        for row in rows
    ]
    model = tiny.build(folder / "informed", texts, seed=seed)
    with (folder / "log").open("w") as log:
        settings = {"algo": {"name": "sft", "lr": 3e-3}, "steps": 60, "data": str(data), "checkpoint_every": 1000}
        run = str(folder / "imitation")
        return Path(
            agentrl.train(model=str(model), run_dir=run, display=Display(Console(file=log)), **settings).checkpoint
        )


@contextmanager
def served(teacher: Path) -> Iterator[str]:
    """The address of an SGLang server on this CPU that has the teacher (`make engines` installs it)."""
    python = Path(__file__).resolve().parents[1] / ".venv-sglang" / "bin" / "python"
    server = {"max_total_tokens": 20000}
    engine: Any = make_engine(ServerConfig(name="sglang", device="cpu", python=str(python), server=server), teacher)
    try:
        asyncio.run(engine.start())
        yield f"{engine.client.url}/v1"
    finally:
        engine.server.kill()


def reinforced(folder: Path) -> tuple[Path, Path]:
    """The calculator's imitation, and what reinforcement learning made of it."""
    with (folder / "log").open("w") as log:
        settings = {"steps": 28, "algo.schedule": "constant", "checkpoint_every": 100}
        display = Display(Console(file=log))
        teacher = agentrl.train("calculator", seed=0, run_dir=str(folder / "teacher"), display=display, **settings)
    assert teacher.after is not None
    print(f"the teacher's held-out reward: {teacher.after.mean:.3f}", flush=True)
    first, last = sorted((folder / "teacher" / "checkpoints").iterdir())
    return first, last


def main() -> None:
    """Train a teacher and students."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="students")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[name for name in ROWS if name != "url"])
    parser.add_argument("--sglang", action="store_true", help="also the row `url`")
    parser.add_argument("--small", action="store_true", help="a teacher that sft made, and half the sessions")
    given = parser.parse_args()
    agentrl.register("Told", Told)
    print(machine(), flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if given.rows == ["privileged"]:
            first = last = folder  # which has no teacher but itself
        elif given.small:
            first = preferences.imitate(folder, 0) / "checkpoints" / "step-000000"
            _, last = preferences.improve(folder, 0, first)
        else:
            first, last = reinforced(folder)
        with served(last) if given.sglang else nullcontext("") as url:
            for row, seed in product([*given.rows, *(["url"] if given.sglang else [])], range(given.seeds)):
                own = folder / f"{row}-{seed}"
                own.mkdir()
                more: dict[str, Any] = {"groups": 32} if given.small else {}
                student = first
                if row == "privileged":
                    student, more["env"] = informed(own, seed), "Told"
                distil(student, url if row == "url" else last, own, row=row, seed=seed, **more)


if __name__ == "__main__":
    main()
