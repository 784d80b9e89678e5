"""What a publication costs: against the disk, against a bare broadcast, against the engine's own reload.

One real SGLang server, and this process as the trainer. The model is a random Llama of 0.4 B parameters made on the
spot (`--shape` takes 135 M or 1 B, `--model` another): what costs the same for any model, calls over HTTP, weighs on it
more than on a real one. In each round every baseline is measured beside what it is compared with, so that a busy
machine slows both; medians of the rounds' ratios are reported. Between writing and loading or reading the disk may
finish what it has, on every side, and the engine samples a few tokens, as it does in a run until it is paused. Neither
is counted; they would fall on whoever comes next. A disk publication and a plain reload take turns in being first.

- disk: writing the same bytes to plain files and reading them back, over writing a snapshot and the engine's
  loading it. Nobody calls fsync: a publication need not survive the machine.
- distributed: the same buckets broadcast over gloo to a process that does nothing with them, over a publication.
- delta: bytes written after 1 % of all elements changed, anywhere, against the whole.
- pause: the milliseconds of a disk publication's beyond the server's plain reload: at most 50.
- reload: the server's own `/update_weights_from_disk` of a folder that transformers' `save_pretrained` has just
  written, under the time from the pause to the resume of a disk publication, which is what the engine loses; and both
  of them together, under the whole publication.

Run as `python -m benchmarks.publication [--shape 400m] [--model MODEL] [--dtype bfloat16] [--rounds 5] [--python P]`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentrl.config import WEIGHTS, WeightsConfig
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
BUCKET_MB = 128
HOST = "127.0.0.1"
TIMEOUT = 600.0


def plain_disk(payload: list[bytes], folder: Path) -> float:
    """Seconds for writing and reading back the same bytes."""
    began = time.perf_counter()
    for number, piece in enumerate(payload):
        with (folder / str(number)).open("wb", buffering=0) as file:
            view = memoryview(piece)
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


class BareReceiver:
    """A process that takes broadcasts and forgets them."""

    def __init__(self, sizes: list[int], rounds: int) -> None:
        store = group.meeting_at(HOST)
        arguments = [str(store.port), str(rounds), *map(str, sizes)]
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.publication", "--receive", *arguments])
        self.group = group.join(store, 0, 2, "bare", "gloo", TIMEOUT)
        self.sizes = sizes

    def send(self, payload: list[torch.Tensor]) -> float:
        """Seconds for broadcasting all pieces; the last is answered, so that it has arrived."""
        began = time.perf_counter()
        for piece in payload:
            group.send(self.group, piece, TIMEOUT)
        torch.distributed.broadcast(torch.zeros(1), src=1, group=self.group)
        return time.perf_counter() - began


def receive(port: int, rounds: int, sizes: list[int]) -> None:
    """The bare receiver's main."""
    joined = group.join(group.store_at(HOST, port), 1, 2, "bare", "gloo", TIMEOUT)
    for _ in range(rounds):
        for size in sizes:
            torch.distributed.broadcast(torch.empty(size, dtype=torch.uint8), src=0, group=joined)
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


async def measure(folder: Path, engine: Any, args: argparse.Namespace) -> dict[str, list[float]]:
    """Every ratio, round by round."""
    from transformers import AutoModelForCausalLM

    from agentrl.config import FleetConfig

    member = Member("engine", engine, FleetConfig())
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    weights = [(name, tensor.to(dtype)) for name, tensor in read_snapshot(folder)]
    total = sum(tensor.nbytes for _, tensor in weights)
    flat = [bucket.flat() for bucket in buckets(weights, BUCKET_MB << 20)]
    payload = [piece.numpy().tobytes() for piece in flat]
    print(f"{total / 1e6:.0f} MB of weights in {len(flat)} buckets", flush=True)
    bare = BareReceiver([len(piece) for piece in flat], args.rounds + 1)
    common = {"dtype": args.dtype, "keep": False, "verify": False}
    broadcasts = {"transport": "distributed", "backend": "gloo", "bucket_mb": BUCKET_MB}
    disk = make_publisher(WeightsConfig(transport="disk", **common), folder, engine.config)
    wire = make_publisher(WEIGHTS.build({**broadcasts, **common}), folder, engine.config)
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        for number in range(args.rounds + 1):  # the first round warms up and is not counted
            version = 2 * number + 1
            raw = await asyncio.to_thread(plain_disk, payload, where)
            sides = [
                partial(publication, disk, member, weights, version),
                partial(plain_reload, engine, model, where / "saved"),
            ]
            took = {side: await sides[side]() for side in ((1, 0) if number % 2 else (0, 1))}
            (whole, paused), (saved, reload) = took[0], took[1]
            sent = await asyncio.to_thread(bare.send, flat)
            broadcast, _ = await publication(wire, member, weights, version + 1)
            row = {
                "disk: plain write+read / publication (aim: at least 0.8)": raw / whole,
                "distributed: bare broadcast / publication (aim: at least 0.8)": sent / broadcast,
                "ms of a disk publication's pause beyond the plain reload (aim: at most 50)": 1e3 * (paused - reload),
                "pause of a disk publication / the engine's plain reload (aim: at most 1.2)": paused / reload,
                "whole disk publication / save_pretrained + reload (aim: at most 1.2)": whole / (saved + reload),
            }
            seconds = {"plain disk": raw, "disk": whole, "pause": paused, "reload": reload, "save": saved}
            seconds |= {"bare broadcast": sent, "distributed": broadcast}
            print("  " + ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()), flush=True)
            if number:
                for name, value in row.items():
                    ratios.setdefault(name, []).append(value)
    await disk.close()
    await wire.close()
    bare.process.wait(60)
    return ratios


async def delta_traffic(folder: Path, dtype: torch.dtype) -> float:
    """How many times less a change of 1 % writes than the whole."""
    from agentrl.rollout.weights.transports import DeltaTransport

    dice = torch.Generator().manual_seed(0)
    weights = [(name, tensor.to(dtype)) for name, tensor in read_snapshot(folder)]
    transport = DeltaTransport(folder, None, BUCKET_MB << 20)
    await transport.stage(weights, 1)
    whole = transport.staged_bytes
    changed = [
        (name, torch.where(torch.rand(tensor.shape, generator=dice) < 0.01, tensor * 1.01 + 1e-3, tensor).to(dtype))
        for name, tensor in weights
    ]
    seconds = await timed(lambda: transport.stage(changed, 2))
    print(f"delta of a 1 % change: {transport.staged_bytes / 1e6:.1f} of {whole / 1e6:.0f} MB, {seconds:.2f} s")
    found = whole / transport.staged_bytes
    await transport.close()
    return found


async def run(args: argparse.Namespace) -> None:
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "model"
        folder = resolve(args.model) if args.model else build(made, ["a few words"], shape=SHAPES[args.shape])
        await compare(folder, args)
    print(machine())


async def compare(folder: Path, args: argparse.Namespace) -> None:
    """Measure with one model, and print medians."""
    less = await delta_traffic(folder, getattr(torch, args.dtype))
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
    print(f"delta: {less:.1f} times less traffic (aim: at least 10)")


def main() -> None:
    if sys.argv[1:2] == ["--receive"]:
        port, rounds, *sizes = map(int, sys.argv[2:])
        receive(port, rounds, sizes)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="400m", choices=SHAPES, help="of a random Llama")
    parser.add_argument("--model", help="a name or a folder, in place of a random Llama")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=5)
    default = Path(__file__).resolve().parents[1] / ".venv-sglang" / "bin" / "python"
    parser.add_argument("--python", default=str(default) if default.exists() else None)
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
