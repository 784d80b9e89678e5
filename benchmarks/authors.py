"""Does an author's own environment get better under the defaults? `python -m benchmarks.authors [NAME ...]`.

Every environment of `examples/environments`, or with `--of newcomers` of `benchmarks/newcomers`, is trained by the tiny
model as `agentrl train env=FILE:CLASS` does, at three seeds, with nothing set but the size of the evaluations. The
baseline of each run is its own policy after the warm start, on the same held-out tasks: differences are paired by task.
A run *rose* if the 95 % interval of its mean difference is above 0, and *fell* if it is below. An environment that did
not rise at most of its seeds is followed by what its last such run said, and by the run that this proposes as a
command, measured against the same start. The module ends with exit code 1 if one fell at more than one seed.
"""

from __future__ import annotations

import argparse
import inspect
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import agentrl
from agentrl.errors import AgentRLError
from agentrl.overrides import typed
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.train.display.console import Display
from agentrl.train.driver.api import run_train
from agentrl.train.driver.result import TrainResult
from agentrl.train.driver.setup import complete
from benchmarks.machine import machine

ROOT = Path(__file__).parents[1]
KINDS = ("free_text", "several_tools", "copied_names", "dense_rewards", "fixed_horizon")


@dataclass(frozen=True)
class Result:
    """One run: mean rewards before and after, 95 % bounds of the paired difference, CPU and wall seconds, what it said.

    `start` is the evaluation before training; a run that ended with an error has none.
    """

    name: str
    seed: int
    before: float
    after: float
    low: float
    high: float
    seconds: float
    wall: float
    said: str
    start: Evaluation | None = None

    @property
    def verdict(self) -> str:
        """What the interval says of the difference."""
        return "rose" if self.low > 0 else "fell" if self.high < 0 else "-"

    @property
    def proposal(self) -> list[str]:
        """The words of the command that it proposed; [] where it proposed none."""
        return shlex.split(self.said.rpartition("agentrl train ")[2]) if "agentrl train " in self.said else []

    def __str__(self) -> str:
        change = f"{self.after - self.before:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        means, took = f"{self.before:6.3f} -> {self.after:6.3f}", f"{self.seconds:4.0f} CPU s {self.wall:4.0f} s"
        return f"{self.name:10} seed {self.seed}  {means}  {change}  {took}  {self.verdict}"


def environments(of: str) -> dict[str, str]:
    """The environments that there are: by name, what `env=` is given."""
    if of == "examples":
        paths = sorted((ROOT / "examples" / "environments").glob("*.py"))
        return {path.stem: f"{path}:{path.stem.capitalize()}" for path in paths}
    found = {}
    for kind in KINDS:
        module = import_module(f"benchmarks.newcomers.{kind}")
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, agentrl.Env) and value.__module__ == module.__name__:
                found[name.lower()] = f"{module.__name__}:{name}"
    return found


def run(name: str, env: str, seed: int, folder: Path, **settings: object) -> Result:
    """Train one environment at one seed."""
    chosen = {"eval.tasks": 200, "eval.n": 2, **settings}
    return _measured(
        name,
        seed,
        None,
        lambda show: agentrl.train(env, seed=seed, run_dir=f"{folder}/{name}-{seed}", display=show, **chosen),
    )


def follow(result: Result) -> Result:
    """Run the command that a run proposed, and measure it against the start of that run."""
    words, file = result.proposal, None
    if words[0] == "--config":
        file, words = words[1], words[2:]
    config = complete(typed(words, file))
    return _measured(f"  {result.name}", result.seed, result.start, lambda show: run_train(config, show))


def _measured(name: str, seed: int, start: Evaluation | None, train: Callable[[Display], TrainResult]) -> Result:
    began, clock, said = time.process_time(), time.monotonic(), StringIO()
    try:
        found = train(Display(Console(file=said, width=10_000)))
    except AgentRLError as error:
        took = time.process_time() - began, time.monotonic() - clock
        nothing = float("nan")
        return Result(name, seed, nothing, nothing, nothing, nothing, *took, f"{error}")
    took, start = (time.process_time() - began, time.monotonic() - clock), start or found.before
    assert start is not None
    assert found.after is not None
    _, low, high = found.after.change_from(start)
    lines = [line.strip() for line in said.getvalue().splitlines()]
    first = next((at for at, line in enumerate(lines) if line.startswith("the held-out reward did not rise")), -1)
    told = " ".join(lines[first:-1] if first >= 0 else lines[-1:])
    return Result(name, seed, start.mean, found.after.mean, low, high, *took, told, start)


def summary(results: list[Result]) -> Mapping[str, list[str]]:
    """The names of the environments by what they did at most of their seeds: `rose`, `fell` or `-`."""
    by_name: dict[str, list[str]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result.verdict)
    found: dict[str, list[str]] = {"rose": [], "fell": [], "-": []}
    for name, verdicts in by_name.items():
        often = [verdict for verdict in ("rose", "fell") if 2 * verdicts.count(verdict) > len(verdicts)]
        found[often[0] if often else "-"].append(name)
    return found


def main() -> None:
    """Train each, print each, and say which rose and which fell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="environments; all of them by default")
    parser.add_argument("--of", choices=("examples", "newcomers"), default="examples")
    parser.add_argument("--steps", type=int, help="steps of reinforcement learning; the recipe's by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    settings = {} if arguments.steps is None else {"steps": arguments.steps}
    known = environments(arguments.of)
    print(machine())
    results: list[Result] = []
    with TemporaryDirectory() as folder:
        for name in arguments.names or known:
            for seed in arguments.seeds:
                results.append(run(name, known[name], seed, Path(folder), **settings))
                print(results[-1], flush=True)
            still = [result for result in results[-len(arguments.seeds) :] if result.verdict != "rose"]
            if 2 * len(still) >= len(arguments.seeds):
                print(f"    {still[-1].said}", flush=True)
                if still[-1].proposal:
                    print(follow(still[-1]), flush=True)
    found = summary(results)
    print(f"{sum(map(len, found.values()))} environments, {len(found['rose'])} rose at most of their seeds")
    for verdict in ("-", "fell"):
        print(f"{verdict}: {', '.join(found[verdict]) or 'none'}")
    if found["fell"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
