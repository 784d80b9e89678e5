from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError, SandboxError
from agentrl.tools.sandbox.runner.client import RunnerClient
from agentrl.tools.sandbox.runner.transport import ByteStream
from agentrl.tools.sandbox.runner.wire import (
    HEADER,
    PROTOCOL,
    CommandKind,
    Decoder,
    Demultiplexer,
    Flags,
    Frame,
    command,
    frame,
)

FRAMES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(list(Frame)), st.binary(max_size=300)), max_size=20
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=30))
@pytest.mark.slow
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    frames: list[tuple[int, Frame, bytes]], places: list[int]
) -> None:
    stream = b"".join(frame(7, *one) for one in frames)
    decoder = Decoder(7)
    assert [one for piece in cut(stream, places) for one in decoder.feed(piece)] == frames


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=300)), max_size=20), st.lists(st.integers(0, 10_000))
)
def test_dockers_stream_comes_apart_however_it_is_cut(parts: list[tuple[int, bytes]], places: list[int]) -> None:
    stream = b"".join(struct.pack(">BxxxI", kind, len(data)) + data for kind, data in parts)
    demultiplexer = Demultiplexer()
    out = {1: b"", 2: b""}
    for piece in cut(stream, places):
        for kind, data in demultiplexer.feed(piece):
            out[kind] += data
    assert out == {kind: b"".join(data for k, data in parts if k == kind) for kind in (1, 2)}


@given(st.binary(min_size=HEADER.size, max_size=200))
def test_bytes_that_are_not_the_runners_poison_the_stream(noise: bytes) -> None:
    if noise[:8] != struct.pack("<Q", 7):
        with pytest.raises(SandboxError, match="corrupt"):
            list(Decoder(7).feed(noise))


def test_a_length_no_runner_sends_poisons_the_stream_before_anything_is_held() -> None:
    with pytest.raises(SandboxError, match="corrupt"):
        list(Decoder(7).feed(HEADER.pack(7, 1, Frame.OUT, 1 << 30)))


def test_an_unknown_type_poisons_the_stream() -> None:
    with pytest.raises(SandboxError, match="unknown type 99"):
        list(Decoder(7).feed(HEADER.pack(7, 1, 99, 0)))


@pytest.mark.parametrize("argv", [["a\0b"], [b"a\0"]])
def test_an_argument_with_a_nul_is_refused_rather_than_cut(argv: list[str | bytes]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        command(CommandKind.RUN, argv, flags=Flags.NONE)


def test_a_command_that_no_frame_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        command(CommandKind.RUN, ["x" * (2 << 20)])


class OldRunner(ByteStream):
    """Answers the first frame as a runner of an earlier protocol."""

    def send(self, data: bytes) -> None:
        self.on_bytes(frame(HEADER.unpack_from(data)[0], 0, Frame.READY, struct.pack("<II", PROTOCOL - 1, 1)))


async def test_a_runner_of_another_version_is_refused_with_what_to_do() -> None:
    client = RunnerClient(OldRunner())
    with pytest.raises(ConfigError, match="make the image anew"):
        await client.hello(60.0)
    client.close()
