"""What two tiny policies learn together: `python -m benchmarks.teams [NAME ...] [--seeds N] [--small]`.

Each world of `agentrl.envs.builtin.teams` is trained by two policies with trainers of their own, from a warm start that
imitates any choice. Printed is the mean reward by step against the world's optimum, the step from which 0.9 of it is
reached, and how far the weights of both have moved. Besides:

- `speaker_listener` is trained again with either policy frozen as it was after the warm start. The team must stay at or
  under the best response to the frozen one, which is computed from its weights by enumeration.
- `hide_and_seek` has no optimum to climb to: it prints by how much its players could be exploited, on the average of
  their choices in the second half of training and at the end, by exact best responses.
- `debate` prints how often the majority is right in the second round, and one debater in the first.
- `critic` is no world of these: it prints what critics of joint paths explain, and what the agents' own do, where
  neither agent sees what both can earn (`benchmarks.central_critic`).

It ends with 1 where a claim does not hold. `--small` takes two steps, to show that everything runs, and claims nothing.
With `--keep FOLDER` runs stay there, and the same command goes on with those that did not come to their last step.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from safetensors.torch import load_file

import agentrl
from agentrl.envs.builtin.teams.base import ChoiceWorld
from agentrl.envs.builtin.teams.exact import Strategy, best_response, exploitability
from agentrl.envs.registry import make
from agentrl.overrides import merge, spread
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.train.driver.result import TrainResult
from agentrl.train.record.state import part
from agentrl.types import MAIN, Message
from benchmarks import central_critic
from benchmarks.machine import machine

CRITIC = "critic"
"""The name of the comparison of critics."""
OTHER = "other"
ENOUGH = 0.9
"""Of the optimum."""
EXPLOITED = 0.1
"""Of the payoffs' range, for both players together."""
ERRORS = 3
"""Standard errors that a mean reward may be above a bound."""


@dataclass(frozen=True)
class World:
    """How a world is trained: the agents of the second policy, and settings besides its recipe."""

    others: tuple[str, ...]
    settings: Mapping[str, Any]


HELD = {"algo.name": "rloo", "algo.kl_coef": 0.3, "algo.reference_decay": 0.93, "steps": 60}
"""Held by a mean of what it was, neither policy chases the other, and both come nearer to the equilibrium."""
WORLDS: Mapping[str, World] = {
    "joint_length": World(("long",), {}),
    "speaker_listener": World(("listener",), {"algo.kl_coef": 0.03}),
    "hide_and_seek": World(("seeker",), HELD),
    "allocation": World(("worker_2",), {}),
    "debate": World(("bob", "cid"), {}),
    "planner_worker": World(("worker",), {"eval.tasks": 128}),
    "grid_transport": World(("arm_0_1",), {}),
}
SMALL: dict[str, Any] = {
    "steps": 2,
    "warm_start": {"steps": 2, "batch": 8, "demos": 8},
    "rollout": {"groups_per_step": 2, "group_size": 2},
    "eval": {"tasks": 2, "n": 1},
}


def train(name: str, seed: int, folder: Path, more: Mapping[str, Any]) -> TrainResult:
    """Train a world once, or go on where that was ended."""
    world = WORLDS[name]
    common = {
        "env": name,
        "seed": seed,
        "eval.tasks": 6,
        "keep_checkpoints": 9,
        "checkpoint_every": 10,
        "run_dir": str(folder),
        **{f"agents.{agent}": OTHER for agent in world.others},
    }
    settings: dict[str, Any] = {}
    for each in (common, world.settings, more):
        settings = merge(settings, spread(each))
    if any(folder.glob("checkpoints/step-*")):
        settings = {"resume": str(folder)}
    elif folder.exists():
        shutil.rmtree(folder)  # ended before there was anything to go on from
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        return agentrl.train(**settings, display=Display(Console(file=log)))


def rewards_of(result: TrainResult) -> list[float]:
    """The mean reward of each step."""
    return [row["reward/mean"] for row in result.metrics]


def strategy_of(world: ChoiceWorld, folders: Mapping[str, Path]) -> Strategy:
    """The chance of each option by the weights of each agent's policy: its tokens and the turn's end."""
    import torch
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    models = {folder: (get_renderer(folder), load(folder)) for folder in {*folders.values()}}

    @cache
    def chances(agent: str, seen: tuple[str, ...]) -> Mapping[str, float]:
        renderer, model = models[folders[agent]]
        told = [Message(role="user", content=text) for text in seen]
        prompt = [*(token for each in renderer.render(told) for token in each), *renderer.generation_prompt()]
        found = {}
        for option in world.options(agent):
            turn = renderer.turn(Message(role="assistant", content=option))
            with torch.no_grad():
                logits = model(torch.tensor([prompt + turn])).logits[0, len(prompt) - 1 : -1].float()
            chosen = logits.log_softmax(-1).gather(1, torch.tensor(turn)[:, None])
            found[option] = float(chosen.sum().exp())
        return found

    return chances


def played(run: Path, world: ChoiceWorld, first: int) -> Strategy:
    """The frequency of each agent's choices in the training steps from `first` on, whatever it was told."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with Store(run / "sessions.db", read_only=True) as store:
        for session in store.sessions():
            if session.phase == "train" and (session.step or 0) >= first:
                for node in (node for node in session.nodes if node.sampled):
                    counts[node.agent][world.read(node.agent, node.message.text)] += 1

    def chances(agent: str, seen: tuple[str, ...]) -> Mapping[str, float]:
        total = counts[agent].total()
        return {option: counts[agent][option] / total for option in world.options(agent)}

    return chances


def checkpoint(run: Path, which: int) -> Path:
    """The first or the last checkpoint of a run."""
    return sorted((run / "checkpoints").glob("step-*"))[which]


def of_policies(name: str, checkpoint: Path) -> dict[str, Path]:
    """Each agent's weights in a checkpoint of two policies."""
    others = WORLDS[name].others
    return {agent: part(checkpoint, OTHER if agent in others else MAIN) for agent in make(name).agents}


def moved(run: Path, small: bool) -> Iterator[tuple[bool, str]]:
    """By how much the farthest of each policy's weights is from where the warm start left it."""
    far = {}
    for policy in (MAIN, OTHER):
        first, last = (load_file(part(checkpoint(run, which), policy) / "model.safetensors") for which in (0, -1))
        far[policy] = max(float((last[name] - tensor).abs().max()) for name, tensor in first.items())
    yield (
        small or min(far.values()) > 0,
        "weights moved by " + ", ".join(f"{by:.2g} ({policy})" for policy, by in far.items()),
    )


def curve(rewards: list[float], optimum: float, small: bool) -> Iterator[tuple[bool, str]]:
    """How a team's reward rises to its optimum, as the mean of three steps; the last sixth of all has to be there."""
    best = [fmean(rewards[max(0, step - 2) : step + 1]) / optimum for step in range(len(rewards))]
    last = rewards[-max(1, len(rewards) // 6) :]
    ended = fmean(last) / optimum
    reached = next((step + 1 for step, share in enumerate(best) if share >= ENOUGH), None)
    shares = " ".join(f"{share:.2f}" for share in best[:: max(1, len(best) // 12)])
    text = f"{ended:.3f} of the optimum in the last {len(last)} steps; {ENOUGH} from step {reached}; {shares}"
    yield small or ended >= ENOUGH, text


def frozen_ones(name: str, seed: int, run: Path, more: Mapping[str, Any], small: bool) -> Iterator[tuple[bool, str]]:
    """What a team comes to where either policy stays as it was after the warm start."""
    world: Any = make(name)
    start = checkpoint(run, 0)
    (listener,) = WORLDS[name].others
    (speaker,) = set(world.agents) - {listener}
    fixed = strategy_of(world, of_policies(name, start))
    for learner, other in ((speaker, listener), (listener, speaker)):
        bound = best_response(world, learner, fixed)
        model = part(start, OTHER if other == listener else MAIN)
        alone = {f"agents.{other}": OTHER, f"agents.{learner}": MAIN, f"policies.{OTHER}.model": str(model)}
        result = train(name, seed, run.with_name(f"{run.name}-{learner}"), {**more, **alone})
        rewards = rewards_of(result)
        last = rewards[-max(1, len(rewards) // 4) :]
        sessions = sum(row["sessions/count"] for row in result.metrics[-len(last) :])
        error = (fmean(last) * (1 - fmean(last)) / max(sessions, 1)) ** 0.5
        holds = fmean(last) <= bound + ERRORS * error
        text = f"{other} frozen: {fmean(last):.3f} in the last {len(last)} steps, best response {bound:.3f}"
        yield small or (holds and bound < world.optimum / 2), text


def exploited(name: str, run: Path, steps: int, small: bool) -> Iterator[tuple[bool, str]]:
    """What a best response gains against the average of the second half of training, and against the last policies."""
    world: Any = make(name)
    average = played(run, world, steps // 2)
    gain = exploitability(world, average)
    last = exploitability(world, strategy_of(world, of_policies(name, checkpoint(run, -1))))
    shares = {agent: {o: round(p, 2) for o, p in average(agent, ()).items()} for agent in world.agents}
    yield small or gain < EXPLOITED, f"exploitability {gain:.3f} of the average, {last:.3f} of the last; {shares}"


def measured(name: str, seed: int, folder: Path, small: bool) -> Iterator[tuple[bool, str]]:
    """Train a world with both policies, and say what came of it."""
    more = SMALL if small else {}
    if name == CRITIC:
        yield from central_critic.compare(seed, folder, small, more)
        return
    both = {f"policies.{OTHER}.trainer": "torch"}
    began = time.monotonic()
    result = train(name, seed, folder / f"{name}-{seed}", {**more, **both})
    run, rewards, rows = result.path, rewards_of(result), result.metrics
    yield True, f"{len(rewards)} steps, {time.monotonic() - began:.0f} s"
    yield from moved(run, small)
    if name == "hide_and_seek":
        yield from exploited(name, run, len(rewards), small)
    else:
        optimum: float = getattr(make(name), "optimum", 1.0)
        yield from curve(rewards, optimum, small)
    if name == "planner_worker" and result.before and result.after:  # of the others, all situations are trained
        yield True, f"held-out tasks: {result.before.summary} after the warm start, {result.after.summary} at the end"
    if name == "speaker_listener":
        yield from frozen_ones(name, seed, run, more, small)
    if name == "debate":
        several = fmean(row["reward/majority_right"] for row in rows)
        one = fmean(row["reward/one_right"] for row in rows)
        yield small or several > one, f"over all steps the majority is right in {several:.3f}, one alone in {one:.3f}"


def main() -> int:
    """Train the worlds, print what they came to, and return 1 where a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join((*WORLDS, CRITIC))}; all by default")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--small", action="store_true", help="two steps of each, to show that runs come to their ends")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where runs stay, and go on from")
    given = parser.parse_args()
    print(machine(), flush=True)
    failed = False
    with TemporaryDirectory() as scratch:
        folder: Path = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in given.names or (*WORLDS, CRITIC):
            for seed in range(given.first, given.first + given.seeds):
                for holds, text in measured(name, seed, folder, given.small):
                    failed |= not holds
                    print(f"{name} seed {seed}: {text}{'' if holds else '  FAILS'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
