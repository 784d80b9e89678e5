"""What `benchmarks.vs_trl` compares is the same on both sides: prompts, a tool's answers, rewards; without TRL."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.builtin.calculator import Calculator
from agentrl.models.tiny import build, render
from agentrl.sessions.renderers import get_renderer
from agentrl.types import Message
from benchmarks import vs_trl, vs_trl_tools


def test_both_sides_of_the_tool_task_begin_with_the_same_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tools, question = vs_trl_tools.shown_tools(), vs_trl_tools.problem(3)["story"][0]
    messages = [{"role": "user", "content": question}]
    folder = build(tmp_path / "model", [render(messages, tools)] * 20)
    renderer = get_renderer(folder)
    rendered = renderer.render([Message(role="user", content=question)], tools=tools)
    ours = [*itertools.chain(*rendered), *renderer.generation_prompt()]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert ours == tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("number", range(4))
def test_the_world_that_trl_plays_answers_and_rewards_as_the_environment_does(number: int) -> None:
    task, story, env = vs_trl_tools.problem(number), vs_trl_tools.Story(), Calculator()
    story.reset(number=number, prompt="as the dataset has it")
    env.reset(task)
    messages: list[dict[str, Any]] = []
    amount = str(task["start"])
    for sign, other in task["steps"]:
        answer = env.calculator(f"{amount}{sign}{other}")
        assert story.calculator(f"{amount}{sign}{other}") == answer
        amount = answer.split(". ")[0]
        messages += [{"role": "assistant", "content": ""}, {"role": "tool", "content": answer}]
    right, wrong = ({"role": "assistant", "content": text} for text in (amount, f"{amount}7"))
    given = [[*messages, right], [*messages, wrong], messages]
    assert vs_trl_tools.score(given, [number] * 3) == [1.0, 0.0, 0.0]
    assert "one operation" in story.calculator("a cake")


def test_a_prompt_has_the_digits_that_it_is_asked_for_and_a_forest_saves_the_ratio_of_tokens() -> None:
    bare = sum(c.isdigit() for c in vs_trl.question(5, 0))
    for digits in (1, 64, 150):
        lines = -(-digits // vs_trl.LINE)
        assert sum(c.isdigit() for c in vs_trl.question(5, digits)) == bare + digits + lines, "a number before each"
    assert [round(vs_trl.token_ratio(prompt), 1) for prompt in vs_trl.AIMS] == [1.7, 4.1, 6.3, 7.4]
