"""Attachments of the kind `critic_view`: what a critic sees before a turn and its agent does not, as float32 numbers.

An environment gives them (`Env.critic_view`); the turn's node keeps them, so a batch from the store has the critic's
inputs too. They never become tokens: no engine and no agent gets them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from agentrl.attachments import AttachmentKind
from agentrl.errors import InvalidInput

NAME = "critic_view"
LARGEST = 3.4e38
"""Numbers beyond it are none in float32."""
_BYTES = 4


def pack(numbers: Sequence[float]) -> bytes:
    """The numbers as bytes, little-endian."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def unpack(data: bytes) -> tuple[float, ...]:
    """The numbers.

    Raises:
        InvalidInput: these bytes are no finite float32 numbers.
    """
    if len(data) % _BYTES:
        raise InvalidInput(f"a critic's view of {len(data)} bytes is no whole number of float32 numbers")
    numbers = struct.unpack(f"<{len(data) // _BYTES}f", data)
    if not all(map(math.isfinite, numbers)):
        raise InvalidInput(f"a critic's view has numbers that are not finite: {numbers}")
    return numbers


class CriticView(AttachmentKind):
    """Each turn's view is complete."""

    name = NAME

    def check(self, data: bytes, tokens: int) -> None:
        unpack(data)


KIND = CriticView()
