"""What the tiny model learns in other libraries' games: `python -m benchmarks.games [NAME ...]`.

Needs gymnasium and textarena. Each game is trained by the command that docs/adapters.md has, but for KuhnPoker, whose
rival plays an equilibrium: a bet of TextArena's KuhnPoker adds nothing to the pot, so it is one to bet and never to
fold. By symmetry it is worth 0: nobody comes above that in the mean, and who folds stays below. Printed are the
held-out rewards before and after training.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl.train.display.console import Display
from agentrl.types import Message
from benchmarks.machine import machine

GAMES: dict[str, dict[str, Any]] = {
    "frozen_lake": {
        "env": {
            "name": "gymnasium:FrozenLake-v1",
            "is_slippery": False,
            "actions": ["left", "down", "right", "up"],
            "observe": "ansi",
        },
    },
    "tic_tac_toe": {
        "env": {"name": "textarena:TicTacToe-v0"},
        "agents": {"player_1": "rival"},
        "policies": {"rival": "demonstrator"},
    },
    "kuhn_poker": {
        "env": {"name": "textarena:KuhnPoker-v0"},
        "agents": {"player_1": "rival"},
        "policies": {"rival": f"{Path(__file__).resolve()}:equilibrium"},
    },
}


def equilibrium(env: Any, messages: Sequence[Message]) -> str:
    """A move in TextArena's KuhnPoker: bet, and call what the other bets."""
    return "[call]" if "[call]" in messages[-1].text.rpartition("Your available actions are:")[2] else "[bet]"


def main() -> None:
    """Train the games, and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"games ({', '.join(GAMES)}); all by default")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    given = parser.parse_args()
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        for name, seed in itertools.product(given.names or GAMES, range(given.seeds)):
            began = time.perf_counter()
            with (Path(folder) / "log").open("w") as log:
                run_dir = str(Path(folder) / f"{name}-{seed}")
                display = Display(Console(file=log))
                result = agentrl.train(**GAMES[name], seed=seed, run_dir=run_dir, display=display)
            assert result.before is not None
            assert result.after is not None
            before, after = result.before, result.after
            print(
                f"{name} seed {seed}: {before.mean:.3f} [{before.low:.3f}, {before.high:.3f}] after the warm start -> "
                f"{after.mean:.3f} [{after.low:.3f}, {after.high:.3f}] after {len(result.metrics)} steps; "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
