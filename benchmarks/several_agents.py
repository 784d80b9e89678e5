"""What the examples of several agents come to: `python -m benchmarks.several_agents [demand relay hiding] [--seeds N]`.

Each is trained by the tiny model from its own YAML file. Beside the rewards by agent or team before and after training,
on held-out tasks, it prints for `hiding` how often the most frequent place was chosen in the first and in the last
steps of training: 0.33 is unpredictable, 1 is a collapse.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import agentrl
from agentrl.overrides import read_yaml
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.types import MAIN
from benchmarks.machine import machine

FOLDER = Path(__file__).parents[1] / "examples" / "several_agents"
NAMES = ("demand", "relay", "hiding")
STEPS = 5
"""At each end of the training, in which choices are counted."""


def favourites(run: Path, steps: int) -> dict[str, tuple[float, float]]:
    """By agent the share of the learner's most frequent answer, in the first and in the last steps."""
    first: dict[str, Counter[str]] = {}
    last: dict[str, Counter[str]] = {}
    with Store(run / "sessions.db", read_only=True) as store:
        for session in store.sessions():
            where = first if (session.step or 0) < STEPS else last if (session.step or 0) >= steps - STEPS else None
            if session.phase != "train" or where is None:
                continue
            for node in (node for node in session.nodes if node.sampled and node.policy == MAIN):
                where.setdefault(node.agent, Counter())[node.message.text.strip()] += 1

    def share(counts: Counter[str]) -> float:
        return max(counts.values()) / counts.total()

    return {agent: (share(counts), share(last[agent])) for agent, counts in first.items() if agent in last}


def run(name: str, seed: int, folder: Path) -> list[str]:
    """Train one example at one seed; what it came to, in lines."""
    settings = read_yaml(FOLDER / f"{name}.yaml")
    settings["env"] = str(FOLDER / Path(settings["env"]).name)
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        display = Display(Console(file=log))
        result = agentrl.train(**settings, seed=seed, run_dir=str(folder / f"{name}-{seed}"), display=display)
    assert result.before is not None
    before, after = result.before.metrics, result.after.metrics
    rewards = [key for key in before if key.startswith("reward/") and "/" in key.removeprefix("reward/")]
    lines = [f"{name:7} seed {seed}  {time.perf_counter() - began:4.0f} s"]
    lines += [f"  {key.removeprefix('reward/'):14} {before[key]:6.3f} -> {after[key]:6.3f}" for key in rewards]
    if name == "hiding":
        chosen = favourites(result.path, settings["steps"]).items()
        lines += [f"  {agent:6} favourite {first:6.3f} -> {last:6.3f}" for agent, (first, last) in chosen]
        ratings = [row["elo/learner"] for row in result.metrics if "elo/learner" in row]
        lines.append(f"  Elo when versions were kept: {', '.join(f'{rating:+.0f}' for rating in ratings)}")
    return lines


def main() -> None:
    """Train the examples, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"examples ({', '.join(NAMES)}); all by default")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    given = parser.parse_args()
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        for name in given.names or NAMES:
            for seed in range(given.seeds):
                print("\n".join(run(name, seed, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
