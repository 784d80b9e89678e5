r"""The rewards of published vision-language recipes: `easyr1_math`, `r1v`, `box_iou`, `box_format`.

Each is what its project computes, so that a run here can be compared with one there, but for one thing: where EasyR1
asks mathruler and VLM-R1 asks math-verify whether two answers are equal, `latex.equal` decides. A model's reasoning
that the renderer has put apart counts as the text <think>…</think> before its answer.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from agentrl.common import pictures
from agentrl.config import RewardConfig
from agentrl.envs.builtin.questions import boxes, latex
from agentrl.envs.rewards import Reward
from agentrl.envs.scoring.texts import MAX_CHARS, field_of, right_answers
from agentrl.errors import ConfigError
from agentrl.types import Session

THOUSANDTHS = 1000.0
_SPACE_BEHIND = re.compile(r"([<>/])\s++")
_SPACE_BEFORE = re.compile(r"(?<!\s)\s++(?=[<>/])")
_TURN = re.compile(r"</think>\s*+<answer>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>")
_ANSWER_LINES = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class AnswerFormatConfig(RewardConfig):
    """The settings of a reward that adds an answer's correctness and its format."""

    reference: str = "answer"
    """The field of the task with the right answer, or a list of right ones; a.b is inside a field."""
    format_weight: float = Field(default=0.1, ge=0, le=1)
    """The format's share of the reward; the answer's is the rest."""


class EasyR1Math(Reward):
    r"""0.9 for a right \boxed{} and 0.1 for the format <think>…</think>…\boxed{…}, as in EasyR1's `math.py`."""

    settings = AnswerFormatConfig
    config: AnswerFormatConfig

    def compute(self, session: Session) -> float:
        """Compare the last box with the right answers; spaces around <, > and / make no difference."""
        text = _SPACE_BEFORE.sub("", _SPACE_BEHIND.sub(r"\1", response(session)))
        said, answers = latex.find_boxed(text), right_answers(session.task, self.config.reference)
        right = said is not None and any(latex.equal(said, answer) for answer in answers)
        return _together(right, boxed_format(text), self.config.format_weight)


class R1VConfig(AnswerFormatConfig):
    """The settings of `r1v`."""

    format_weight: float = Field(default=0.5, ge=0, le=1)


class R1V(Reward):
    """0.5 for a right answer and 0.5 for the format <think>…</think><answer>…</answer>, as in EasyR1's `r1v.py`."""

    settings = R1VConfig
    config: R1VConfig

    def compute(self, session: Session) -> float:
        """Compare what is in the first <answer> of one line, or all of the text where there is none."""
        text = response(session)
        found = _ANSWER.search(text)
        said = (found[1] if found else text).strip()
        right = any(latex.equal(said, answer.strip()) for answer in right_answers(session.task, self.config.reference))
        return _together(right, tagged_format(text), self.config.format_weight)


class BoxConfig(RewardConfig):
    """The settings of `box_iou`."""

    reference: str = "answer"
    """The field of the task with the right box: four numbers in pixels of the image, or their text."""
    rule: Literal["vlm_r1", "ordinary"] = "vlm_r1"
    """The rule: boxes that share no more than a pixel in a direction share nothing, as VLM-R1 counts them, or the usual
    intersection over union."""
    scale: Literal["image", "resized", "thousandths"] = "image"
    """The unit of the model's numbers: pixels of the image; pixels of the image as Qwen2.5-VL's processor resizes it
    (VLM-R1's rule); or thousandths of its sides, as Qwen3-VL writes them."""
    factor: PositiveInt = 28
    """The processor's sides are multiples of this; for `scale=resized`."""
    min_pixels: PositiveInt = 3136
    """The processor's fewest pixels; for `scale=resized`."""
    max_pixels: PositiveInt = 12845056
    """The processor's most pixels; for `scale=resized`."""

    @model_validator(mode="after")
    def _bounds(self) -> BoxConfig:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels={self.min_pixels} is above max_pixels={self.max_pixels}")
        return self


class BoxIoU(Reward):
    """The intersection over union of the box in the answer and the right one, as VLM-R1 computes it."""

    settings = BoxConfig
    config: BoxConfig

    def compute(self, session: Session) -> float:
        """Compare the first [x1, y1, x2, y2] of the first <answer>; 0 where there is none."""
        right = boxes.box_of(field_of(session.task, self.config.reference, "reference"))
        if right is None:
            raise ConfigError(
                f"reference={self.config.reference!r}: task {session.task.id!r} has no box there, which is four numbers"
            )
        found = _ANSWER_LINES.search(response(session))
        said = boxes.first_box(found[1]) if found else None
        if said is None:
            return 0.0
        width, height = self._scales(session)
        x1, y1, x2, y2 = said
        least = 1.0 if self.config.rule == "vlm_r1" else 0.0
        return boxes.overlap((x1 * width, y1 * height, x2 * width, y2 * height), right, least)

    def _scales(self, session: Session) -> tuple[float, float]:
        """By what the model's horizontal and vertical numbers are multiplied, to be pixels of the image."""
        if self.config.scale == "image":
            return 1.0, 1.0
        width, height = _size(session)
        if self.config.scale == "thousandths":
            return width / THOUSANDTHS, height / THOUSANDTHS
        config = self.config
        seen = boxes.resize(width, height, config.factor, config.min_pixels, config.max_pixels)
        return width / seen[0], height / seen[1]


class BoxFormat(Reward):
    """1 where <think>…</think><answer>…{…[x1, y1, x2, y2]…}…</answer> is in the answer, as in VLM-R1."""

    def compute(self, session: Session) -> float:
        text = response(session)
        start = text.find("<think>")
        turn = _TURN.search(text, start) if start >= 0 else None
        opened = text.find("{", turn.end()) if turn else -1
        place = boxes.box_end(text, opened) if opened >= 0 else -1
        closed = text.find("}", place) if place >= 0 else -1
        return float(closed >= 0 and "</answer>" in text[closed:])


def response(session: Session) -> str:
    """Return the newest message of the model, its reasoning included; '' where it is too long."""
    said = [message for message in session.messages if message.role == "assistant"]
    apart = (said[-1].reasoning_content or "") if said else ""
    text = f"<think>{apart}</think>{session.answer}" if apart else session.answer
    return text if len(text) <= MAX_CHARS else ""


def boxed_format(text: str) -> bool:
    r"""Return whether a text is <think>…</think>…\boxed{…}…, with anything in and behind it."""
    if not text.startswith("<think>"):
        return False
    ended = text.find("</think>", len("<think>"))
    box = text.find("\\boxed{", ended) if ended >= 0 else -1
    return box >= 0 and "}" in text[box:]


def tagged_format(text: str) -> bool:
    """Return whether a text begins with <think>, ends with </answer>, and goes from the one to the other in between."""
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    return _TURN.search(text, len("<think>"), len(text) - len("</answer>")) is not None


def _together(right: bool, formed: bool, weight: float) -> float:
    return (1 - weight) * right + weight * formed


def _size(session: Session) -> tuple[int, int]:
    """Width and height of the first image that the model was shown."""
    for message in session.messages:
        for url in message.images:
            found = pictures.picture(url).size
            return int(found[0]), int(found[1])
    raise ConfigError(f"scale: task {session.task.id!r} shows no image, so that nothing can be rescaled to its size")
