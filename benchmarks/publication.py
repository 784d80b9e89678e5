"""What a publication costs: by each transport, against the bare copy of as many bytes, and the engine's own reload.

One real SGLang server, and this process as the trainer. The model is a random Llama of 0.4 B parameters made on the
spot (`--shape` takes 135 M or 1 B, `--model` another): what costs the same for any model, calls over HTTP, weighs on it
more than on a real one. In each round every baseline is measured beside what it is compared with, so that a busy
machine slows both; medians of the rounds' ratios are reported. Between writing and loading or reading the disk may
finish what it has, on every side, and the engine samples a few tokens, as it does in a run until it is paused. Neither
is counted; they would fall on whoever comes next. A disk publication and a plain reload take turns in being first.

- disk: writing the same bytes to plain files and reading them back, over writing a snapshot and the engine's
  loading it. Nobody calls fsync: a publication need not survive the machine.
- delta: the same writing and reading of all bytes, over a publication in which 1 % of all elements changed, anywhere;
  and how many times fewer bytes it writes.
- distributed: the same buckets broadcast over gloo into another process's memory, over a publication.
- ipc: the same bytes copied into a bucket of shared memory and out of it again, over a publication.
  Both bare copies end in memory that is in use and as large as the weights, as any copy of weights does. Beside them
  are ratios to a copy that ends in one bucket's memory again and again, which stays in the processor's cache.
- pause: the milliseconds of each publication's pause beyond the copy that it can't do without: for disk and delta the
  server's plain reload, for the others, which send while they pause, the bare copy. At most 50.
- reload: the server's own `/update_weights_from_disk` of a folder that transformers' `save_pretrained` has just
  written, under the time from the pause to the resume of a disk publication, which is what the engine loses; and both
  of them together, under the whole publication.

Every transport publishes the same weights in a round, other ones in the next, to a server that has loaded the folder's
again: it ends with an error where the server's checksums of what they left differ, or are those of the round before.

Run as `python -m benchmarks.publication [--shape 400m] [--model MODEL] [--dtype bfloat16] [--rounds 5] [--python P]`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentrl.config import WEIGHTS, FleetConfig
from agentrl.models import resolve
from agentrl.models.tiny import TinyShape, build
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.fleet.member import Member
from agentrl.rollout.weights import group, make_publisher
from agentrl.rollout.weights.buckets import Named, buckets
from agentrl.rollout.weights.publisher import Publisher
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.types import Engine, Sampling, collect
from benchmarks.machine import machine

SHAPES = {
    "135m": TinyShape(layers=38, width=576, heads=9, kv_heads=3, mlp=1536),
    "400m": TinyShape(layers=16, width=1536, heads=12, kv_heads=4, mlp=4096),
    "1b": TinyShape(layers=22, width=2048, heads=16, kv_heads=4, mlp=5632),
}
"""Random Llamas, by about how many parameters they have."""
HOST = "127.0.0.1"
TIMEOUT = 600.0


def plain_disk(payload: list[memoryview], folder: Path) -> float:
    """Seconds for writing and reading back the same bytes."""
    began = time.perf_counter()
    for number, piece in enumerate(payload):
        with (folder / str(number)).open("wb", buffering=0) as file:
            view = piece
            while view:
                view = view[file.write(view) :]
    written = time.perf_counter() - began
    os.sync()
    began = time.perf_counter()
    sink = bytearray(max(map(len, payload)))
    for number, piece in enumerate(payload):
        with (folder / str(number)).open("rb", buffering=0) as file:
            got = 0
            while got < len(piece):
                got += file.readinto(memoryview(sink)[got : len(piece)])
    return written + time.perf_counter() - began


def places(memory: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Return memory for pieces of these sizes: one behind the other, or all of them at its beginning."""
    return [*memory.split(sizes)] if len(memory) == sum(sizes) else [memory[:size] for size in sizes]


def shared_copy(payload: list[torch.Tensor], sink: torch.Tensor, kept: torch.Tensor) -> float:
    """Seconds for copying the same bytes into shared memory, and out of it into memory in use.

    Args:
        payload: the bytes, in pieces.
        sink: as large as all of them, or as the largest, which then all end in.
        kept: the shared memory, as large as the largest.
    """
    began = time.perf_counter()
    for piece, there in zip(payload, places(sink, [*map(len, payload)]), strict=True):
        there.copy_(kept[: len(piece)].copy_(piece))
    return time.perf_counter() - began


def new_shared(size: int) -> torch.Tensor:
    """Return so many bytes of shared memory."""
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size, device="cpu"))


class BareReceiver:
    """A process that takes broadcasts and does nothing with them.

    Args:
        sizes: of the broadcasts of a round.
        rounds: how often they come.
        total: bytes of the memory that they end in: as much as all of them, or as the largest.
    """

    def __init__(self, sizes: list[int], rounds: int, total: int) -> None:
        store = group.meeting_at(HOST)
        arguments = [str(store.port), str(rounds), str(total), *map(str, sizes)]
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.publication", "--receive", *arguments])
        self.group = group.join(store, 0, 2, f"bare-{store.port}", "gloo", TIMEOUT)

    def send(self, payload: list[torch.Tensor]) -> float:
        """Seconds for broadcasting all pieces; the last is answered, so that it has arrived."""
        began = time.perf_counter()
        for piece in payload:
            group.send(self.group, piece, TIMEOUT)
        torch.distributed.broadcast(torch.zeros(1), src=1, group=self.group)
        return time.perf_counter() - began

    def close(self) -> None:
        """End the process, which may still expect rounds, and leave its group."""
        self.process.kill()
        self.process.wait()
        group.leave(self.group)


def receive(port: int, rounds: int, total: int, sizes: list[int]) -> None:
    """The bare receiver's main."""
    memory = places(torch.zeros(total, dtype=torch.uint8), sizes)
    joined = group.join(group.store_at(HOST, port), 1, 2, f"bare-{port}", "gloo", TIMEOUT)
    for _ in range(rounds):
        for piece in memory:
            torch.distributed.broadcast(piece, src=0, group=joined)
        torch.distributed.broadcast(torch.zeros(1), src=1, group=joined)


async def publication(publisher: Publisher, member: Member, weights: list[Named], version: int) -> tuple[float, float]:
    """Seconds of a whole publication, and of the pause in it."""
    staged = await timed(lambda: publisher.stage(weights, version))
    await settle(member.engine)
    began = time.perf_counter()
    outcome = await publisher.send({member.name: member}, version)
    assert not outcome.broken, outcome
    return staged + time.perf_counter() - began, outcome.paused


async def settle(engine: Engine) -> None:
    """Let the disk finish, and the engine be at work again: what stands idle is cold."""
    await asyncio.to_thread(os.sync)
    await collect(engine.generate("settle/0", [1, 2, 3, 4], Sampling(max_new_tokens=8)))


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def plain_reload(engine: Any, model: Any, folder: Path) -> tuple[float, float]:
    """Seconds of transformers' own saving, and of the server's loading it."""
    saved = await timed(lambda: asyncio.to_thread(model.save_pretrained, folder))
    await settle(engine)
    return saved, await timed(lambda: engine.client.update_from_disk(str(folder), 0, flush=True))


@dataclass(frozen=True)
class Sides:
    """What is compared: an engine with weights in two versions, a publisher for each transport, and bare copies.

    Attributes:
        member: the engine, as a publisher sees it.
        versions: two sets of weights, of which 1 % of all elements differ, in the order in which a trainer has them.
        flat: the first of them in buckets, uint8; its tensors and the model's lie in them.
        model: transformers', with the first of them.
        publishers: by the transport's name.
        bare: a process that takes broadcasts of these buckets.
        cached: one that takes them into one bucket's memory.
        sink: memory that a bare copy ends in.
        kept: shared memory that it goes through.
    """

    member: Member
    versions: tuple[list[Named], list[Named]]
    flat: list[torch.Tensor]
    model: Any
    publishers: dict[str, Publisher]
    bare: BareReceiver
    cached: BareReceiver
    sink: torch.Tensor
    kept: torch.Tensor

    @classmethod
    def make(cls, folder: Path, engine: Any, args: argparse.Namespace) -> Sides:
        """Read the weights, change some, and make a publisher for each transport."""
        dtype, dice = getattr(torch, args.dtype), torch.Generator().manual_seed(0)
        model, weights, whole = read_model(folder, dtype)
        changed = [
            (name, torch.where(torch.rand(tensor.shape, generator=dice) < 0.01, tensor * 1.01 + 1e-3, tensor).to(dtype))
            for name, tensor in weights
        ]
        sizes = [bucket.nbytes for bucket in buckets(weights, args.bucket_mb << 20)]
        flat = [*whole.split(sizes)]
        print(f"{sum(sizes) / 1e6:.0f} MB of weights in {len(flat)} buckets", flush=True)
        common = {"dtype": args.dtype, "keep": False, "verify": False}
        broadcasts = {"backend": "gloo", "bucket_mb": args.bucket_mb}
        settings: dict[str, dict[str, Any]] = {
            "disk": {"transport": "disk"},
            "delta": {"transport": "disk", "delta": True},
            "distributed": {"transport": "distributed", **broadcasts},
            "ipc": {"transport": "ipc", "bucket_mb": args.bucket_mb},
        }
        publishers = {
            name: make_publisher(WEIGHTS.build({**own, **common}), folder, engine.config)
            for name, own in settings.items()
        }
        bare, cached = (BareReceiver(sizes, args.rounds + 1, total) for total in (sum(sizes), max(sizes)))
        sink, kept = torch.zeros(sum(sizes), dtype=torch.uint8), new_shared(max(sizes))
        member = Member("engine", engine, FleetConfig())
        return cls(member, (weights, changed), flat, model, publishers, bare, cached, sink, kept)


def read_model(folder: Path, dtype: torch.dtype) -> tuple[Any, list[Named], torch.Tensor]:
    """Return transformers' model, its tensors in its order, and their bytes; all three lie in the same memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    stored = dict(read_snapshot(folder))
    names = [name for name in model.state_dict() if name in stored]
    sizes = [stored[name].numel() * dtype.itemsize for name in names]
    whole, weights = torch.empty(sum(sizes), dtype=torch.uint8), list[Named]()
    for name, place in zip(names, whole.split(sizes), strict=True):
        weights.append((name, place.view(dtype).view(stored[name].shape).copy_(stored.pop(name))))
    model.load_state_dict(dict(weights), assign=True, strict=False)
    model.tie_weights()
    return model, weights, whole


async def one_round(sides: Sides, number: int, where: Path, versions: Iterator[int]) -> tuple[dict[str, float], str]:
    """Measure everything once, and compare what the transports left in the engine.

    Returns:
        Seconds by name, and the engine's checksum.

    Raises:
        SystemExit: transports left different weights.
    """
    weights, saved = sides.versions[number % 2], where / "saved"
    engine: Any = sides.member.engine
    took: dict[str, float] = {}
    left: dict[str, str] = {}

    async def publish(name: str) -> None:
        if saved.exists():  # what another transport brought would hide that this one brings nothing
            await engine.client.update_from_disk(str(saved), 0, flush=True)
        took[name], took[f"{name} pause"] = await publication(
            sides.publishers[name], sides.member, weights, next(versions)
        )
        left[name] = await sides.member.receiver.checksum()

    async def reload() -> None:
        took["save"], took["reload"] = await plain_reload(engine, sides.model, saved)

    payload = [memoryview(piece.numpy()) for piece in sides.flat]  # type: ignore[arg-type]  # arrays are buffers
    took["plain disk"] = await asyncio.to_thread(plain_disk, payload, where)
    both = [partial(publish, "disk"), reload]
    for work in reversed(both) if number % 2 else both:
        await work()
    await publish("delta")
    took["cached broadcast"] = await asyncio.to_thread(sides.cached.send, sides.flat)
    took["bare broadcast"] = await asyncio.to_thread(sides.bare.send, sides.flat)
    await publish("distributed")
    largest = sides.sink[: max(map(len, sides.flat))]
    took["cached copy"] = await asyncio.to_thread(shared_copy, sides.flat, largest, sides.kept)
    took["shared copy"] = await asyncio.to_thread(shared_copy, sides.flat, sides.sink, sides.kept)
    await publish("ipc")
    if len(set(left.values())) > 1:
        raise SystemExit(f"round {number}: the transports left different weights in the engine: {left}")
    return took, left["disk"]


COPIES = {"disk": "reload", "delta": "reload", "distributed": "bare broadcast", "ipc": "shared copy"}
"""What of a publication the pause can't do without, by transport."""


def ratios_of(took: dict[str, float]) -> dict[str, float]:
    """The ratios of a round, and the pauses' milliseconds beyond the copy."""
    whole, reload, least = took["disk"], took["reload"], "(aim: at least 0.8)"
    return {
        f"disk: plain write+read / publication {least}": took["plain disk"] / whole,
        f"delta: plain write+read of all bytes / publication {least}": took["plain disk"] / took["delta"],
        f"distributed: bare broadcast / publication {least}": took["bare broadcast"] / took["distributed"],
        "distributed: bare broadcast into one bucket's memory / publication": took["cached broadcast"]
        / took["distributed"],
        f"ipc: bare copy by shared memory / publication {least}": took["shared copy"] / took["ipc"],
        "ipc: bare copy into one bucket's memory / publication": took["cached copy"] / took["ipc"],
        **{
            f"ms of a {name} publication's pause beyond {copy} (aim: at most 50)": 1e3
            * (took[f"{name} pause"] - took[copy])
            for name, copy in COPIES.items()
        },
        "pause of a disk publication / the engine's plain reload (aim: at most 1.2)": took["disk pause"]
        / took["reload"],
        "whole disk publication / save_pretrained + reload (aim: at most 1.2)": whole / (took["save"] + reload),
    }


async def measure(folder: Path, engine: Any, args: argparse.Namespace) -> dict[str, list[float]]:
    """Every ratio, round by round; the last one leaves the engine with the folder's weights.

    Raises:
        SystemExit: transports left different weights, or weights that did not change.
    """
    sides = Sides.make(folder, engine, args)
    ratios: dict[str, list[float]] = {}
    versions, before = itertools.count(engine.version() + 1), ""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for number in reversed(range(args.rounds + 1)):  # the first round warms up and is not counted
                took, left = await one_round(sides, number, Path(scratch), versions)
                if left == before:
                    raise SystemExit(f"round {number}: the engine has the weights of the round before")
                print("  " + ", ".join(f"{name} {value:.3f} s" for name, value in took.items()), flush=True)
                if before:
                    for name, value in ratios_of(took).items():
                        ratios.setdefault(name, []).append(value)
                before = left
        written = sides.publishers["delta"].transport.staged_bytes  # type: ignore[attr-defined]
        ratios["delta: times fewer bytes (aim: at least 10)"] = [sum(map(len, sides.flat)) / written]
    finally:
        for publisher in sides.publishers.values():
            await publisher.close()
        sides.bare.close()
        sides.cached.close()
    return ratios


async def run(args: argparse.Namespace) -> None:
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "model"
        folder = resolve(args.model) if args.model else build(made, ["a few words"], shape=SHAPES[args.shape])
        await compare(folder, args)
    print(machine())


async def compare(folder: Path, args: argparse.Namespace) -> None:
    """Measure with one model, and print medians."""
    config = ServerConfig(
        name="sglang", device="cpu", dtype=args.dtype, python=args.python, server={"max_total_tokens": 20000}
    )
    engine: Any = make_engine(config, folder)
    try:
        await engine.start()
        ratios = await measure(folder, engine, args)
    finally:
        await engine.close()
    for name, values in ratios.items():
        print(f"{name}: median {statistics.median(values):.2f} of {', '.join(f'{value:.2f}' for value in values)}")


def main() -> None:
    if sys.argv[1:2] == ["--receive"]:
        port, rounds, total, *sizes = map(int, sys.argv[2:])
        receive(port, rounds, total, sizes)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="400m", choices=SHAPES, help="of a random Llama")
    parser.add_argument("--model", help="a name or a folder, in place of a random Llama")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket-mb", type=int, default=31, help="of broadcasts and shared memory")
    default = Path(__file__).resolve().parents[1] / ".venv-sglang" / "bin" / "python"
    parser.add_argument("--python", default=str(default) if default.exists() else None)
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
