"""Boxes in images: how they are written, how alike two are, and their scale where a processor resizes the image."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import orjson

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge, in pixels."""
SIDES = 4
HALF = 0.5
"""The intersection over union beyond which a box is the right one."""
_BOX = re.compile(r"\[(\d{1,9}),\s*+(\d{1,9}),\s*+(\d{1,9}),\s*+(\d{1,9})\]")


def box_of(value: Any) -> Box | None:
    """Return the four finite numbers of a box, given as a list or as its text; None where it is no box."""
    if isinstance(value, list | tuple) and len(value) == 1:  # the only one of a list of right answers
        value = value[0]
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Sequence) or len(value) != SIDES:
        return None
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in value):
        return None
    return float(value[0]), float(value[1]), float(value[2]), float(value[3])


def first_box(text: str) -> Box | None:
    """Return the first [x1, y1, x2, y2] of a text, whose numbers are whole; None where there is none."""
    found = _BOX.search(text)
    return box_of([int(number) for number in found.groups()]) if found else None


def only_box(text: str) -> Box | None:
    """Return the box of an answer, behind the reasoning; None where there are several, each of them a guess."""
    answer = text.rpartition("</think>")[2]
    found = first_box(answer)
    return found if box_end(answer, max(box_end(answer, 0), 0)) < 0 else None


def box_end(text: str, start: int) -> int:
    """Return where the first box of a text at or behind `start` ends; -1 where there is none."""
    found = _BOX.search(text, start)
    return found.end() if found else -1


def overlap(one: Box, other: Box, least: float = 0.0) -> float:
    """Return the intersection over union of two boxes; 0 where they share no more than `least` pixels in a direction.

    The usual measure has 0 there. VLM-R1's function counts pixels in another way, which comes to 1.
    """
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if min(width, height) <= least:
        return 0.0
    return width * height / (_area(one) + _area(other) - width * height)


def resized(width: int, height: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Return the width and height to which Qwen2-VL's and Qwen2.5-VL's processor resizes an image.

    Multiples of `factor` (the pixels of a token's side), with `least` to `most` pixels, near the image's own
    (`smart_resize` of transformers' Qwen2VLImageProcessor).
    """
    across, down = (max(factor, round(side / factor) * factor) for side in (width, height))
    if across * down > most:
        by = math.sqrt(width * height / most)
        across, down = (max(factor, math.floor(side / by / factor) * factor) for side in (width, height))
    elif across * down < least:
        by = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * by / factor) * factor for side in (width, height))
    return across, down


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
