"""Functions of TRL, verl and its classes through the adapters; `test_functions` runs it beside these libraries.

python originals.py FOLDER PACKAGES…
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path += sys.argv[2:]  # behind .venv's own, whose torch and transformers they use

import trl
import verl
from trl.rewards import get_soft_overlong_punishment, think_format_reward
from verl.utils.reward_score import gsm8k

import agentrl
from agentrl.envs import calls
from agentrl.envs.rewards import make_rewards
from agentrl.types import Session
from tests.envs.adapters.test_functions import MIGRATION, STOPS, one_path, said, trained

long = get_soft_overlong_punishment(4, 2)


async def rewards_are_the_functions_own() -> None:
    """Of TRL on messages and on tokens, of verl on a text."""
    thought = "<think>\nwell\n</think>\nIt is 5. #### 5"
    for text in (thought, "#### 5", "#### 6"):
        row = {"prompt": [{"role": "user", "content": "2+3?"}], "reward_model": {"ground_truth": "5"}}
        session = said(text, row)
        here = f"{__file__}:"
        given = {
            "form": {"name": "trl", "function": "trl.rewards:think_format_reward"},
            "long": {"name": "trl", "function": f"{here}long"},
            "right": {"name": "verl", "function": f"{here}compute_score"},
        }
        found = {each.name: await each(session) for each in make_rewards(given)}
        expected = think_format_reward([[{"role": "assistant", "content": text}]])
        assert found["form"] == expected[0] == float(text == thought)
        assert found["long"] == long([session.nodes[-1].token_ids])[0]
        assert found["right"] == gsm8k.compute_score(text, "5") == float(text.endswith("5"))


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """The own one of verl GSM8K, as its `default_compute_score` calls it."""
    return gsm8k.compute_score(solution_str, ground_truth)


async def a_tool_class_is_created_executed_and_released_in_each_call() -> None:
    env = agentrl.make(f"verl:{MIGRATION / 'tools.yaml'}", path=str(MIGRATION / "rows.jsonl"))
    task = next(iter(env.tasks("train")))
    await calls.reset(env, task, seed=0)
    letter = task["prompt"].split("letter ")[1][0]
    answers = [await calls.step(env, env.call("count_letter", letter=each)) for each in (letter, "ab")]
    assert [each.messages[0].text for each in answers] == [
        task["label"],
        "Error: Error executing tool 'count_letter': give one letter",
    ]
    session = Session("s", task)
    assert env.tool_rewards(session) == 0.1
    assert session.info["tool_rewards"] == [0.1]


def a_loop_of_verl_is_trained(folder: Path) -> None:
    """Its second request goes on from the first one's tokens, and its score is the session's reward."""
    (folder / "loops.py").write_text(LOOP)
    agent = f"verl:{folder / 'loops.py'}:Stopping tokenizer={folder / 'model'} response_length=24"
    for session in trained(folder, agent):
        assert session.reward in (0.0, 1.0)
        one_path(session)


LOOP = f"""
import sys

sys.path.append({str(MIGRATION)!r})
from verl_loop import TwoAnswers


class Stopping(TwoAnswers):
    async def run(self, sampling_params, **kwargs):
        return await super().run({{**sampling_params, "stop": {STOPS!r}}}, **kwargs)
"""

if __name__ == "__main__":
    asyncio.run(rewards_are_the_functions_own())
    asyncio.run(a_tool_class_is_created_executed_and_released_in_each_call())
    a_loop_of_verl_is_trained(Path(sys.argv[1]))
    print(f"trl {trl.__version__}, verl {verl.__version__}")
