"""What checking answers costs: sessions with mathematical answers through `rewards.NAME=math`, as a run has it.

    python -m benchmarks.scoring [--small] [--rounds 3]

Rates are scored sessions a second, by this process and by two reward workers, deadlines, checks and transfers
included. The baseline of each round is `exact_match` on the same sessions in the same places, which compares strings:
`ratio` is the rate of math over it, and says what the comparison itself costs. `--small` takes few sessions, and ends
with an error where right and wrong answers are not told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

from agentrl import cluster
from agentrl.common.concurrency import concurrently
from agentrl.config import RunConfig
from agentrl.envs.base import Env
from agentrl.envs.context import context_of
from agentrl.rollout.workers.reward_workers import open_reward_workers
from agentrl.types import Message, Node, Session, Status, Task

ANSWERS = (
    ("\\frac{{{n}}}{{4}}", "{n}/4"),
    ("{n},\\!000", "{n}000"),
    ("\\left( {n}, \\frac12 \\right]", "({n},\\frac{{1}}{{2}}]"),
    ("\\{{ 3, {n} \\}}", "\\{{{n},3\\}}"),
    ("x = {n}^\\circ", "{n}"),
    ("{n}\\text{{ cm}}", "{n}"),
)
"""What a model writes, and the same as a data set has it."""
REASONING = "We add the two sides, and find that {n} is what is left over. " * 8
REWARDS = ("math", "exact_match")
AT_ONCE = 64


def sessions(count: int) -> list[Session]:
    """Sessions with answers of several kinds; of each third one the answer is wrong."""
    made = []
    for n in range(count):
        said, right = (each.format(n=100 + n % 800) for each in ANSWERS[n % len(ANSWERS)])
        text = f"{REASONING.format(n=n)}\\boxed{{{'wrong' if n % 3 == 0 else said}}}"
        nodes = [
            Node(0, None, Message(role="user", content=f"Problem {n}."), list(range(40)), [False] * 40, [0.0] * 40),
            Node(1, 0, Message(role="assistant", content=text), list(range(200)), [True] * 200, [-0.5] * 200),
        ]
        task = Task(id=f"t{n}", data={"answer": right})
        made.append(Session(f"s{n}", task, nodes=nodes, status=Status.COMPLETED))
    return made


async def rate(reward: str, workers: int, made: Sequence[Session]) -> tuple[float, int]:
    """Scored sessions a second, and how many were right."""
    added = {"r": {"name": reward, **({} if reward == "math" else {"extract": "boxed"})}}
    config = RunConfig.model_validate({"env": "calculator", "rewards": added, "cluster": {"rewards": workers}})
    slots = asyncio.Semaphore(AT_ONCE)
    async with open_reward_workers(Env, config) as (make_env, _):
        ((_, compute),) = context_of(make_env()).added_rewards

        async def scored(session: Session) -> float:
            async with slots:
                return float(await compute(session))

        await concurrently(map(scored, made[:8]))
        began = time.perf_counter()
        values = await concurrently(map(scored, made))
        return len(made) / (time.perf_counter() - began), int(sum(values))


async def measure(count: int, rounds: int) -> None:
    """Print the rates and ratios.

    Raises:
        SystemExit: the answers that are right are not those that were planted.
    """
    made = sessions(count)
    planted = sum(n % 3 != 0 for n in range(count))
    for workers in (0, 2):
        found: list[tuple[float, ...]] = []
        for _ in range(rounds):
            (math, right), (plain, _) = [await rate(reward, workers, made) for reward in REWARDS]
            if right != planted:
                raise SystemExit(f"{right} answers are right, and {planted} were planted")
            found.append((math, plain))
        math, plain = (statistics.median(each) for each in zip(*found, strict=True))
        where = f"{workers} reward workers" if workers else "this process"
        print(f"{where}: math {math:,.0f} a second, exact_match {plain:,.0f}, ratio {math / plain:.2f}")


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few sessions")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with cluster.opened(RunConfig.model_validate({"env": "calculator"}).cluster, None):
        asyncio.run(measure(60 if args.small else 6000, 1 if args.small else args.rounds))


if __name__ == "__main__":
    main()
