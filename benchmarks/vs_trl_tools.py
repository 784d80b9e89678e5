"""A task of several turns with a tool against TRL's environments: `python -m benchmarks.vs_trl tools [STEPS] [ROUNDS]`.

Both train the same tiny model, which has imitated `env=calculator` for a while, on the same word problems: two to four
calls of a calculator whose results are carried on, then the answer. TRL plays them through its `environment_factory`,
with the same tool, the same story and the same reward; it shows the tool by the schema that agentrl shows, so prompts
are equal token by token. Both draw 8 samples on each of 8 problems a step at temperature 1, with at most 24 tokens a
turn, 400 a session and 7 turns; otherwise settings and clocks are those of `benchmarks.vs_trl`. The aim is at least 4
times as fast at equal or better reward.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import agentrl
from agentrl.envs.builtin.calculator import Calculator
from agentrl.errors import ToolError
from agentrl.types import Message, Node, Session, Task
from benchmarks.machine import machine
from benchmarks.vs_trl import GROUPS, PACKAGES, SAMPLES, StepClock, differences, print_sides, take_turns, trl_settings

STEPS, ROUNDS, RATE = 12, 1, 5e-4
WARM_STEPS = 180
TURN_TOKENS, SESSION_TOKENS, TURNS = 24, 400, 7
AIM = 4.0


def build_model(folder: Path, steps: int = WARM_STEPS) -> Path:
    """A tiny model that has imitated the calculator's demonstrator."""
    settings = {"warm_start.steps": steps, "eval.tasks": 1, "rollout.groups_per_step": 1, "rollout.group_size": 2}
    agentrl.train("calculator", run_dir=str(folder), steps=1, metrics=[], **settings)
    return folder / "checkpoints" / "step-000000"


def shown_tools() -> list[dict[str, Any]]:
    """The calculator as a prompt shows it."""
    return Calculator().tools.schemas()


def ours(model: str, steps: int, seed: int) -> dict[str, Any]:
    """Train with agentrl; rewards, seconds and processor seconds by step."""
    clock, began = StepClock(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = agentrl.train(
            "calculator",
            display=clock,
            model=model,
            steps=steps,
            seed=seed,
            run_dir=f"{folder}/run",
            metrics=[],
            algo={"lr": RATE, "betas": (0.9, 0.95), "normalize": "rollout", "schedule": "constant"},
            rollout={
                **{"groups_per_step": GROUPS, "group_size": SAMPLES, "temperature": 1.0},
                **{"turn_tokens": TURN_TOKENS, "session_tokens": SESSION_TOKENS},
            },
            eval={"tasks": 1},
            **{"warm_start.steps": 0, "engine.device": "cpu", "trainer.device": "cpu"},
        )
    return {
        "rewards": [row["reward/mean"] for row in result.metrics],
        "seconds": [row["time/step"] for row in result.metrics],
        "cpu": differences(began, clock.ends),
        "calls": [row.get("count/tool_calls", 0.0) / (GROUPS * SAMPLES) for row in result.metrics],
    }


class Story:
    """The calculator's world as TRL's environments are written: `reset`, tools, `get_reward`."""

    def __init__(self) -> None:
        self._env = Calculator()
        self._messages: list[Message] = []

    def reset(self, number: int, **_: Any) -> None:
        """Begin a problem; its question is the dataset's prompt."""
        self._env.reset(problem(number))

    def calculator(self, expression: str) -> str:
        """One operation on two numbers; then the story goes on.

        Args:
            expression: such as 12*7
        """
        try:
            return self._env.calculator(expression)
        except ToolError as error:
            return str(error)


@functools.cache
def problem(number: int) -> Task:
    """A training problem by its number."""
    return next(itertools.islice(Calculator().tasks("train"), number, None))


def score(completions: list[list[dict[str, Any]]], number: list[int], **_: Any) -> list[float]:
    """The environment's own reward of each completion, for TRL."""
    rewards, env = [], Calculator()
    for messages, which in zip(completions, number, strict=True):
        last = messages[-1]
        answer = str(last.get("content") or "") if last["role"] == "assistant" else ""
        env.reset(problem(which))
        node = Node(0, None, Message(role="assistant", content=answer), [0], [True], [0.0])
        rewards.append(env.correct(Session("s", problem(which), nodes=[node])))
    return rewards


def theirs(model: str, steps: int, seed: int) -> dict[str, Any]:
    """Train with TRL; rewards, seconds and processor seconds by step."""
    sys.path.append(str(PACKAGES))
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer  # type: ignore[import-not-found]
    from trl.chat_template_utils import qwen3_template  # type: ignore[import-not-found]

    ends: list[float] = []
    used: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())
            used.append(time.process_time())

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = qwen3_template  # its tool calls are written as Qwen's are
    numbers = list(range(steps * GROUPS))
    prompts = [[{"role": "user", "content": problem(number)["story"][0]}] for number in numbers]
    with tempfile.TemporaryDirectory() as folder:
        settings = trl_settings(
            folder,
            steps,
            seed,
            learning_rate=RATE,
            max_completion_length=SESSION_TOKENS,
            generation_kwargs={"max_new_tokens": TURN_TOKENS},
            max_tool_calling_iterations=TURNS - 1,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=tokenizer,
            reward_funcs=score,
            environment_factory=Story,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts, "number": numbers}),
            callbacks=[Clock()],
        )
        trainer._env_tools = {None: shown_tools()}  # by agentrl's schema, so that prompts are equal
        began = time.perf_counter(), time.process_time()
        trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    times = {"seconds": differences(began[0], ends), "cpu": differences(began[1], used)}
    calls = [row["tools/call_frequency"] for row in rows]
    return {"rewards": [row["reward"] for row in rows], **times, "calls": calls}


def main(words: list[str]) -> None:
    """Measure both sides, and print the ratio."""
    steps, rounds = [int(word) for word in words] + [STEPS, ROUNDS][len(words) :]
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "imitation")
        results = take_turns("benchmarks.vs_trl_tools", model, steps, rounds)
    print(f"  calls of a tool in a session, trl: {results['trl'][-1]['calls'][-1]:.2f}", end="")
    print(f", agentrl: {results['agentrl'][-1]['calls'][-1]:.2f}")
    print_sides(results)
    print(f"  aim: at least {AIM} at equal or better reward")


if __name__ == "__main__":
    measured = (ours if sys.argv[1] == "agentrl" else theirs)(sys.argv[2], *map(int, sys.argv[3:5]))
    Path(sys.argv[5]).write_text(json.dumps(measured))
