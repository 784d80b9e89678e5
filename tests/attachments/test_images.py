"""Images as bytes: as they are written, and as earlier stores have them."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from agentrl.attachments import images
from agentrl.errors import InvalidInput


def test_images_that_an_earlier_store_has_are_read_and_cut_ones_refused() -> None:
    frames = np.arange(2 * 4 * 3 * 5, dtype="<f4").reshape(2, 4, 3, 5)
    earlier = struct.pack("<cIIIHH16s", b"I", 7, 6, 2, 3, 5, bytes(16)) + frames.tobytes()
    found = images.unpack(earlier)
    assert (found.token, found.count, found.settings, len(found.frames)) == (7, 12, bytes(16), 2)
    assert all(np.array_equal(one, other) for one, other in zip(found.frames, frames, strict=True))
    again = images.unpack(found.pack())
    assert (again.grids, again.digests()) == (found.grids, found.digests())
    images.KIND.check(earlier, 12)
    for data, says in ((earlier[:-4], "have 2 frames of 3 x 5"), (earlier[:8], "have no header")):
        with pytest.raises(InvalidInput, match=says):
            images.unpack(data)
