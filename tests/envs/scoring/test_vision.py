"""The scorers of published vision recipes give what their projects' own formulas give."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.builtin.questions.boxes import overlap, resized
from agentrl.envs.rewards import make_rewards
from agentrl.envs.scoring.vision import boxed_format, tagged_format
from agentrl.errors import ConfigError
from agentrl.plugins.reward import check_reward
from agentrl.types import Message, Node, Session, Status, Task


def session(text: str, answer: Any, size: tuple[int, int] | None = None, **message: Any) -> Session:
    made = Session("s", Task(id="t", data={"answer": answer}), status=Status.COMPLETED)
    content: Any = "?"
    if size:
        content = [{"type": "image_url", "image_url": {"url": picture(*size)}}, {"type": "text", "text": "?"}]
    messages = [Message(role="user", content=content), Message(role="assistant", content=text, **message)]
    for place, each in enumerate(messages):
        made.nodes.append(Node(place, place - 1 if place else None, each, [], [], []))
    return made


def picture(width: int, height: int) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


async def score(name: str, made: Session, **options: Any) -> Any:
    (reward,) = make_rewards({"r": {"name": name, **options}})
    return await reward(made)


BOX = '<think>there</think><answer>{"bbox_2d": [5, 5, 15, 15]}</answer>'


@pytest.mark.parametrize(
    ("name", "text", "answer", "expected"),
    [
        ("easyr1_math", "<think>a</think> so \\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("easyr1_math", "so \\boxed{0.5}", "1/2", 0.9),
        ("easyr1_math", "<think>a</think> so \\boxed{3}", "1/2", 0.1),
        ("easyr1_math", "< think >a< / think > \\boxed{7}", 7, 1.0),
        ("easyr1_math", "7", "7", 0.0),
        ("r1v", "<think>a</think>\n<answer>7</answer>", "7", 1.0),
        ("r1v", "<think>a</think><answer>8</answer>", "7", 0.5),
        ("r1v", "<answer>7</answer>", "7", 0.5),
        ("r1v", "7", "7", 0.5),
        ("r1v", "<think>a</think><answer>7</answer>.", "7", 0.5),
        ("box_iou", BOX, [0, 0, 10, 10], 25 / 175),
        ("box_iou", BOX, ["[5, 5, 15, 15]"], 1.0),
        ("box_iou", "[5, 5, 15, 15]", [5, 5, 15, 15], 0.0),
        ("box_format", BOX, None, 1.0),
        ("box_format", BOX.replace("{", ""), None, 0.0),
    ],
)
async def test_the_value_is_the_one_of_the_project(name: str, text: str, answer: Any, expected: float) -> None:
    assert await score(name, session(text, answer)) == pytest.approx(expected)


async def test_every_scorer_keeps_the_contract_and_hostile_texts_are_read_once() -> None:
    texts = ["", BOX, "<think></think><answer></answer>", *(part * 30_000 for part in (" ", "<", "<think>", "[1, "))]
    for name in ("easyr1_math", "r1v", "box_iou", "box_format"):
        assert await check_reward(name, [session(text, [0, 0, 10, 10]) for text in texts]) == []


async def test_reasoning_that_the_renderer_put_apart_counts_as_the_format() -> None:
    assert await score("r1v", session("<answer>7</answer>", "7", reasoning_content="a")) == 1.0


def test_boxes_that_share_a_pixels_width_share_nothing_by_the_projects_rule() -> None:
    assert overlap((0, 0, 10, 10), (5, 5, 15, 15), 1) == pytest.approx(0.142857, abs=1e-6)
    assert overlap((0, 0, 10, 10), (9, 0, 19, 10), 1) == 0
    assert overlap((0, 0, 10, 10), (9, 0, 19, 10)) == pytest.approx(0.052632, abs=1e-6)


async def test_a_box_of_the_resized_image_is_scored_in_pixels_of_the_image() -> None:
    """A 100 x 50 image is 112 x 56 pixels for the processor, and a 1000 x 10 one is 1008 x 28."""
    assert resized(100, 50, 28, 3136, 12845056) == (112, 56)
    assert resized(1000, 10, 28, 3136, 12845056) == (1008, 28)
    seen = session("<answer>[56, 28, 112, 56]</answer>", [50, 25, 100, 50], (100, 50))
    assert await score("box_iou", seen, scale="resized") == 1.0
    assert await score("box_iou", seen) < 0.6
    seen = session("<answer>[500, 500, 1000, 1000]</answer>", [50, 25, 100, 50], (100, 50))
    assert await score("box_iou", seen, scale="thousandths") == 1.0
    with pytest.raises(ConfigError, match="shows no image"):
        await score("box_iou", session("<answer>[5, 5, 9, 9]</answer>", [5, 5, 9, 9]), scale="thousandths")


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([28, 32]))
def test_a_resized_image_has_whole_tokens_within_the_bounds_where_the_shape_allows_it(
    width: int, height: int, factor: int
) -> None:
    """The processor refuses images that are 200 times as long as wide."""
    across, down = resized(width, height, factor, 64 * factor * factor, 1280 * factor * factor)
    assert across % factor == down % factor == 0
    if max(width, height) / min(width, height) < 20:
        assert 64 * factor * factor <= across * down <= 1280 * factor * factor


NOISE = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "}", "\\boxed{", " ", "a"]), max_size=2
)
MARKS = (["<think>"], ["</think>"], ["<answer>", "\\boxed{"], ["</answer>", "}"])


@given(st.tuples(*(st.sampled_from([*mark, *mark, ""]) for mark in MARKS)), st.lists(NOISE, min_size=5, max_size=5))
def test_formats_are_those_of_the_projects_expressions(marks: tuple[str, ...], noise: list[list[str]]) -> None:
    text = "".join("".join(between) + mark for between, mark in zip(noise, (*marks, ""), strict=True))
    assert tagged_format(text) == bool(re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL))
    assert boxed_format(text) == bool(re.fullmatch(r"<think>.*</think>.*\\boxed\{.*\}.*", text, re.DOTALL))
