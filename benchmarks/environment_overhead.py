"""What an environment's turn costs beside model and tool: `python -m benchmarks.environment_overhead`.

One small environment, in each library's own words: count to eight by calls of the tool `add`, then say so; nine turns.
The model answers at once, so all the time is the library's.

- overhead: the time from the model's answer to its next question in the same episode (parsing the call, running the
  tool, answering, the session's tree), one episode after the other.
- turns a second: of `--episodes` episodes at once in one process. verifiers (its own ToolEnv, rubric and rollout, with
  a client that answers at once) is measured in one process with ours, by the Python that `make adapters` has made, the
  two in turn. So is inspect_ai (its own generate() with tools, scorer and log), by CPU seconds. Gymnasium's
  SyncVectorEnv of the same rules, 64 at once, passes numbers and no messages, for scale.
- `--many` sessions that are all open at the same time.

Tokens, engines and the store are not in it: `benchmarks.driver_cost` measures a run's whole turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import agentrl
from agentrl.common import garbage
from agentrl.envs.episode import play
from agentrl.types import Message, Session, Status, Task
from benchmarks.machine import machine

ROOT = Path(__file__).parents[1]
VERIFIERS, ADAPTERS = (ROOT / f".venv-adapters{name}" / "bin" / "python" for name in ("-verifiers", ""))
GOAL = 8
TURNS = GOAL + 1
"""Calls of the tool, and the final answer."""
QUESTION = f"Count to {GOAL}."
AT_ONCE = 64


class Counting(agentrl.Env):
    """Count to eight by ones."""

    max_turns = TURNS + 1

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        """One task."""
        return [{"id": "count"}]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The opening."""
        self.count = 0
        return QUESTION

    @agentrl.tool(quick=True)
    def add(self, number: int) -> str:
        """Add to the count.

        Args:
            number: how much.
        """
        self.count += number
        return str(self.count)

    @agentrl.reward
    def right(self, session: Session) -> float:
        """Whether the final answer is the goal."""
        return float(session.answer == str(GOAL))


def answer(env: agentrl.Env, messages: Sequence[Message]) -> Message:
    """The model: a call of the tool until the goal is reached."""
    if messages[-1].text == str(GOAL):
        return Message(role="assistant", content=str(GOAL))
    return env.call("add", number=1)


def overhead(episodes: int) -> None:
    """Print the median of the seconds between an answer and the next question."""
    gaps: list[float] = []
    answered: float | None = None

    def timed(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        nonlocal answered
        if answered is not None:
            gaps.append(time.perf_counter() - answered)
        said = answer(env, messages)
        answered = time.perf_counter() if said.tool_calls else None
        return said

    async def one_by_one() -> None:
        for _ in range(episodes):
            await play(Counting(), Task(id="count"), timed)

    asyncio.run(one_by_one())
    p50, *_, p99 = (statistics.quantiles(gaps, n=100)[rank] for rank in (49, 98))
    print(f"overhead of a turn: p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms (aim: p50 at most 0.3 ms)", flush=True)


async def ours(episodes: int) -> None:
    """Play so many at once, with the garbage collector as a run has it."""
    with garbage.collect_less_often():
        sessions = await asyncio.gather(*(play(Counting(), Task(id="count"), answer) for _ in range(episodes)))
    assert {(session.status, session.score) for session in sessions} == {(Status.COMPLETED, 1.0)}


def many(sessions: int) -> None:
    """Print what so many take that are all open when the first of them takes its second turn."""
    begun = 0
    everybody = asyncio.Event()

    async def together(env: agentrl.Env, messages: Sequence[Message]) -> Message:
        nonlocal begun
        if len(messages) == 1:
            begun += 1
            if begun == sessions:
                everybody.set()
            await everybody.wait()
        return answer(env, messages)

    async def all_of_them() -> None:
        await asyncio.gather(*(play(Counting(), Task(id="count"), together) for _ in range(sessions)))

    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with garbage.collect_less_often():
        asyncio.run(all_of_them())
    seconds, kib = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rate = sessions * TURNS / seconds
    print(f"{sessions} sessions at once: {rate:.0f} turns/s, {kib / sessions:.1f} KiB a session", flush=True)


def turns_per_second(
    episodes: int,
    play_all: Callable[[int], Coroutine[Any, Any, None]],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The rate of one round."""
    began = clock()
    asyncio.run(play_all(episodes))
    return episodes * TURNS / (clock() - began)


def beside_verifiers(episodes: int, rounds: int) -> None:
    """Print both rates, and the median of their ratio."""
    import verifiers as vf
    from datasets import Dataset
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, ToolCall

    class Model(Client):  # type: ignore[misc]
        """The same answers, as the library's client."""

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            done = prompt[-1].content == str(GOAL)
            call = None if done else [ToolCall(id="call", name="add", arguments='{"number": 1}')]
            said = ResponseMessage(
                content=str(GOAL) if done else "", tool_calls=call, finish_reason="stop", is_truncated=False
            )
            return Response(id="x", created=0, model="m", message=said)

    Model.__abstractmethods__ = frozenset()

    class Counted(vf.StatefulToolEnv):  # type: ignore[misc]
        """The same rules; the library hands its tools the episode's state."""

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **_: Any) -> Any:
            state["count"] = state.get("count", 0) + tool_args["number"]
            return {**tool_args, "count": state["count"]}

    async def add(number: int, count: int) -> str:
        """Add to the count.

        Args:
            number: how much.
            count: the new count.
        """
        return str(count)

    def right(completion: Any) -> float:
        return float(completion[-1]["content"] == str(GOAL))

    rows = Dataset.from_list([{"question": QUESTION, "answer": str(GOAL)}])
    env = Counted(dataset=rows, max_turns=TURNS + 1, rubric=vf.Rubric(funcs=[right]))
    env.add_tool(add, args_to_skip=["count"])
    (task,) = env.get_dataset().to_list()

    async def one() -> None:
        state = await env.rollout(dict(task), Model(None), "m", {})
        await env.rubric.score_rollout(state)
        assert state["reward"] == 1.0, state

    async def theirs(episodes: int) -> None:
        await asyncio.gather(*(one() for _ in range(episodes)))

    pairs = [[turns_per_second(episodes, play_all) for play_all in (ours, theirs)] for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(one / two for one, two in pairs)
    print(f"{episodes} episodes at once, turns/s: agentrl {mine:.0f}, verifiers {vf.__version__} {other:.0f}")
    print(f"ratio {ratio:.1f} (aim: at least 5)", flush=True)


def beside_inspect(episodes: int, rounds: int) -> None:
    """Print both rates by CPU seconds, and the median of their ratio."""
    import inspect_ai
    from inspect_ai import Task as Evaluation
    from inspect_ai import eval_async
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool
    from inspect_ai.util import store

    @tool(name="add")
    def adding() -> Tool:
        async def add(number: int) -> str:
            """Add to the count.

            Args:
                number: how much.
            """
            store().set("count", store().get("count", 0) + number)
            return str(store().get("count"))

        return add

    def said(messages: Any, *_: Any) -> Any:
        if messages[-1].text == str(GOAL):
            output = ModelOutput.from_content("mockllm/model", str(GOAL))
        else:
            output = ModelOutput.for_tool_call("mockllm/model", "add", {"number": 1})
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it counts tokens itself
        return output

    async def theirs(episodes: int) -> None:
        with tempfile.TemporaryDirectory() as logs:
            task = Evaluation(
                dataset=[Sample(id=n, input=QUESTION, target=str(GOAL)) for n in range(1, episodes + 1)],
                solver=[use_tools(adding()), generate()],
                scorer=match(location="exact"),
            )
            model = get_model("mockllm/model", custom_outputs=said, memoize=False)
            limits: dict[str, Any] = {"max_samples": episodes, "max_connections": episodes}
            (log,) = await eval_async(task, model=model, log_dir=logs, **limits)
            assert log.status == "success", log.error
            assert log.results is not None
            assert log.results.scores[0].metrics["accuracy"].value == 1.0

    asyncio.run(theirs(1))  # loads what it needs
    pairs = [[turns_per_second(episodes, side, time.process_time) for side in (ours, theirs)] for _ in range(rounds)]
    mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(one / two for one, two in pairs)
    what = f"turns a CPU second: agentrl {mine:.0f}, inspect_ai {inspect_ai.__version__} {other:.0f}"
    print(f"{episodes} episodes at once, {what}\nratio {ratio:.1f} (aim: at least 5)", flush=True)


def gymnasium_vector(rounds: int) -> None:
    """Print the steps per second of Gymnasium's own vector environment."""
    import gymnasium
    from gymnasium import spaces

    class Rules(gymnasium.Env[int, int]):  # type: ignore[misc]
        """Add one until the goal is reached."""

        observation_space, action_space = spaces.Discrete(GOAL + 2), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
            """Begin at 0."""
            self.count = 0
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            """Add; the last step ends it."""
            self.count += 1
            return self.count, float(self.count == GOAL), self.count == TURNS, False, {}

    vector = gymnasium.vector.SyncVectorEnv([Rules] * AT_ONCE)
    vector.reset(seed=0)
    actions, steps, rates = [1] * AT_ONCE, 2000, []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(steps):
            vector.step(actions)
        rates.append(AT_ONCE * steps / (time.perf_counter() - began))
    print(f"Gymnasium {gymnasium.__version__}, SyncVectorEnv of {AT_ONCE}: {statistics.median(rates):.0f} steps/s")


def elsewhere(python: Path, part: str) -> None:
    """Measure a part by another environment's Python, where that is there."""
    if not python.exists():
        print(f"{part}: not measured, since {python.relative_to(ROOT)} is not there: make adapters")
        return
    command = [str(python), "-m", "benchmarks.environment_overhead", *sys.argv[1:], "--part", part]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)


def main() -> None:
    """Measure all, or one part by the Python that this is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=("verifiers", "gymnasium", "inspect"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part == "verifiers":
        return beside_verifiers(given.episodes, given.rounds)
    if given.part == "inspect":
        return beside_inspect(given.episodes, given.rounds)
    if given.part == "gymnasium":
        return gymnasium_vector(given.rounds)
    print(machine(), flush=True)
    overhead(given.episodes)
    many(given.many)
    elsewhere(VERIFIERS, "verifiers")
    elsewhere(ADAPTERS, "inspect")
    elsewhere(ADAPTERS, "gymnasium")
    print(machine())


if __name__ == "__main__":
    main()
