"""A chain against each of its parts, at equal tokens: `python -m benchmarks.chain [--seeds N] [--small]`.

The chain is imitation, preferences of a group's sessions (`dpo`), and reinforcement (`grpo`), each stage from the one
before. Each part is one of these algorithms alone, from the same base model, for as many steps as it takes to sample
and train as many tokens as the chain did in all. What is compared is the mean reward of held-out sessions.

The world asks for one of four words by a question, in a sentence that a random model never says. So reinforcement and
preferences from the base have nothing to compare: every session scores 0, which the figures show. The demonstrations
are right in a third of their rows, so that imitation alone stays there.

It ends with 1 where a part sampled and trained fewer tokens than the chain, where reinforcement from the base trained
any, or, but for `--small`, where the chain does not end above each part at each seed. `--small` takes a few steps, and
measures the chain alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl.models import tiny
from agentrl.train.display.console import Display
from benchmarks.machine import machine

THINGS = (
    *("sky", "grass", "snow", "coal", "sea", "leaf", "milk", "night", "berry", "moss", "salt", "ink"),
    *("fern", "chalk", "soot", "lake", "plum", "rice", "tar", "pine", "swan", "crow", "jade", "iris"),
)
WORDS = ("blue", "green", "white", "black")
RIGHT = 0.34
"""The share of demonstrations that are right."""
ROWS = 960
STEPS = {"imitate": 40, "prefer": 4, "reinforce": 48}
SMALL = {"imitate": 3, "prefer": 1, "reinforce": 1}
FEW = 12
"""Groups of a small step."""
ALGORITHMS = {"imitate": "sft", "prefer": "dpo", "reinforce": "grpo"}
RATES = {"imitate": 3e-3, "prefer": 3e-4, "reinforce": 4e-4}
"""At a rate of 1e-3 `grpo` rises and falls again."""
UPDATES = {"imitate": 1, "prefer": 1, "reinforce": 4}
PIECE = 2
"""A part takes this many times more steps, again and again, until it has had the chain's tokens."""


class Colours(agentrl.Env):
    """Say which of four words belongs to a thing."""

    max_turns = 1

    def tasks(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """The same questions in each split: what is held out are the sessions."""
        yield from ({"thing": thing} for thing in THINGS)

    async def reset(self, task: agentrl.Task, *, seed: int | None = None) -> str:
        """Ask."""
        self.thing = task.data["thing"]
        return question(self.thing)

    @agentrl.reward
    def right(self, session: Any) -> float:
        """1 for the whole sentence with the right word."""
        return float(session.nodes[-1].message.text.strip() == answer(self.thing, colour(self.thing)))


@dataclass(frozen=True)
class Tokens:
    """Tokens that runs sampled and trained."""

    sampled: float = 0.0
    trained: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.sampled + self.trained

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.sampled + other.sampled, self.trained + other.trained)


def colour(thing: str) -> str:
    """The word that belongs to a thing: by a hash, so that nothing else says it."""
    return WORDS[hashlib.sha256(thing.encode()).digest()[0] % len(WORDS)]


def question(thing: str) -> str:
    """What a task asks."""
    return f"Which word is for {thing}?"


def answer(thing: str, word: str) -> str:
    """The sentence that is rewarded where the word is right."""
    return f"The word for {thing} is {word}."


def demonstrations(file: Path, seed: int) -> Path:
    """Write the demonstrations, of which a third are right."""
    chance = random.Random(seed)
    rows = []
    for number in range(ROWS):
        thing = THINGS[number % len(THINGS)]
        wrong = [word for word in WORDS if word != colour(thing)]
        word = colour(thing) if chance.random() < RIGHT else chance.choice(wrong)
        rows.append({"question": question(thing), "answer": answer(thing, word)})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def base_model(folder: Path, seed: int) -> Path:
    """A model of random weights, with a tokenizer made from all sentences."""
    texts = [
        tiny.render([{"role": "user", "content": question(t)}, {"role": "assistant", "content": answer(t, w)}])
        for t in THINGS
        for w in WORDS
    ]
    return tiny.build(folder, texts, seed=seed)


class Bench:
    """One seed's runs."""

    def __init__(self, folder: Path, seed: int, steps: dict[str, int], groups: int = len(THINGS)) -> None:
        self.folder, self.seed, self.steps, self.groups = folder, seed, steps, groups
        self.data = demonstrations(folder / "demonstrations.jsonl", seed)
        self.held_out = demonstrations(folder / "held_out.jsonl", seed + 1000)
        self.base = base_model(folder / "base", seed)

    def settings(self, stage: str) -> dict[str, Any]:
        """A stage's settings, the same in the chain and alone."""
        algo = {"name": ALGORITHMS[stage], "lr": RATES[stage], "minibatches": UPDATES[stage]}
        own: dict[str, Any] = {"algo": algo, "steps": self.steps[stage]}
        data = {"data": {"name": str(self.data), "held_out": str(self.held_out)}}
        return own | (data if stage == "imitate" else {"env": "Colours"})

    def common(self, name: str) -> dict[str, Any]:
        """Settings of all runs."""
        return {
            "seed": self.seed,
            "run_dir": str(self.folder / name),
            "rollout": {"groups_per_step": self.groups, "group_size": 8, "turn_tokens": 16, "session_tokens": 256},
            "eval": {"tasks": len(THINGS)},
            "warm_start": {"steps": 0},
            "weights": {"probe_tokens": 0, "start_tokens": 0},
            "checkpoint_every": 1000,
            "allow_no_signal": True,
        }

    def train(self, name: str, **settings: Any) -> Any:
        """Train without a display."""
        with (self.folder / f"{name}.log").open("a") as log:
            return agentrl.train(**settings, display=Display(Console(file=log)))

    def chain(self) -> tuple[Path, Tokens, dict[str, Path]]:
        """The chain's policy, its tokens, and the policies of its stages."""
        stages = {name: self.settings(name) for name in self.steps}
        result = self.train("chain", **self.common("chain"), model=str(self.base), stages=stages)
        ends = {name: stage.checkpoint for name, stage in result.stages.items()}
        return result.checkpoint, sum((tokens_of(self.folder / "chain" / name) for name in stages), Tokens()), ends

    def part(self, stage: str, total: float) -> tuple[Path, Tokens]:
        """A stage's algorithm alone from the base, until it has had as many tokens."""
        run = self.folder / stage
        own = self.settings(stage)
        result = self.train(stage, **self.common(stage), **own, model=str(self.base))
        while (found := tokens_of(run)).total < total:
            steps = len(result.metrics)
            wanted = min(PIECE * steps, int(steps * total / max(found.total, 1)) + 1)
            result = self.train(stage, resume=str(run), steps=max(wanted, steps + 1))
        return result.checkpoint, found

    def reward(self, model: Path, n: int) -> Any:
        """The reward of sampled sessions of a policy."""
        shape = {"rollout": {"turn_tokens": 16, "session_tokens": 256}, "eval": {"tasks": len(THINGS), "n": n}}
        with (self.folder / "evaluations.log").open("a") as log:
            run = self.folder / f"eval-{hashlib.sha256(str(model).encode()).hexdigest()[:8]}"
            return agentrl.evaluate(
                "Colours",
                model=str(model),
                run_dir=str(run),
                seed=self.seed,
                **shape,
                display=Display(Console(file=log)),
            )


def tokens_of(run: Path) -> Tokens:
    """The tokens that a run sampled and trained; one that reads its sessions samples none."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reads = (run / "held_out.jsonl").exists()
    sampled = 0.0 if reads else sum(row["signal/sampled"] for row in rows)
    return Tokens(sampled, sum(row["signal/trained"] for row in rows))


def compare(folder: Path, seed: int, *, small: bool) -> list[str]:
    """Train the chain and its parts with a seed; prints a table, and returns what does not hold."""
    began = time.monotonic()
    bench = Bench(folder, seed, SMALL, FEW) if small else Bench(folder, seed, STEPS)
    n = 1 if small else 16
    policy, chain_tokens, ends = bench.chain()
    measured = {} if small else {"the base": bench.base, **{f"after the stage {k}": v for k, v in ends.items()}}
    measured["the chain"] = policy
    tokens, wrong = {"the chain": chain_tokens}, []
    for stage, algorithm in ALGORITHMS.items():
        name = f"{algorithm} alone"
        measured[name], tokens[name] = bench.part(stage, chain_tokens.total)
        if tokens[name].total < chain_tokens.total:
            wrong.append(f"{name} had {tokens[name].total:,.0f} tokens, the chain {chain_tokens.total:,.0f}")
    measured.pop(f"after the stage {stage}", None)  # which is the chain's
    rewards = {name: bench.reward(model, n) for name, model in measured.items() if not small or model is policy}
    wrong += [
        f"seed {seed}: {name} ends at {rewards[name].mean:.3f}, not below the chain"
        for name in tokens
        if not small and name != "the chain" and rewards[name].mean >= rewards["the chain"].mean
    ]
    if tokens["grpo alone"].trained:
        wrong.append(
            f"seed {seed}: grpo from the base trained {tokens['grpo alone'].trained:,.0f} tokens: it is not flat"
        )
    for name in measured:
        spent = f"{tokens[name].sampled:,.0f} | {tokens[name].trained:,.0f}" if name in tokens else "| "
        print(f"| {seed} | {name} | {rewards[name].summary if name in rewards else ''} | {spent} |", flush=True)
    print(f"seed {seed}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return wrong


def main() -> None:
    """Compare with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--small", action="store_true", help="a few steps, to show that like is compared with like")
    given = parser.parse_args()
    agentrl.register("Colours", Colours)
    print(machine(), "| seed | policy | reward | sampled tokens | trained tokens |", "|---|---|---|---|---|", sep="\n")
    wrong: list[str] = []
    for seed in range(given.first, given.first + given.seeds):
        with TemporaryDirectory() as folder:
            wrong += compare(Path(folder), seed, small=given.small)
    print("\n".join(wrong) or "all holds")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
