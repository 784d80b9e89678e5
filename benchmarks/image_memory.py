"""Whether images are held once, and let go again: `python -m benchmarks.image_memory [--images 10000] [--steps 2000]`.

First a store gets sessions that show so many different images, each of them in two sessions; its files and their
processed pixels are counted. Then a run of so many steps plays a world that draws a new picture for each task, with
engine and trainer in this process; caches of images, which keep what came last, are made small enough to be full early.
Ends with 1 where the store holds an image twice, or where the run's resident memory grows by more than a tenth from its
second to its last fifth.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import StringIO
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from rich.console import Console

import agentrl
from agentrl.attachments import images
from agentrl.models import image_processor
from agentrl.rollout.engines.local import images as engine_images
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.display.console import Display
from agentrl.types import Message, Session, Status, Task
from benchmarks.machine import machine

SIDE, TOKEN = 32, 7
PER_SESSION = 10
KEPT_BYTES = 1 << 20
GROWTH = 0.1
SETTINGS: dict[str, Any] = {
    **{"env": f"{__file__}:NewPictures", "allow_no_signal": True, "checkpoint_every": 500, "metrics": ()},
    **{"warm_start.steps": 5, "warm_start.demos": 8, "warm_start.batch": 4, "eval.tasks": 1},
    **{"rollout.groups_per_step": 1, "rollout.group_size": 2, "rollout.turn_tokens": 4, "engine.process": "shared"},
}


class NewPictures(agentrl.Env):
    """A picture that no other task has; the reward is some function of the answer's letters."""

    max_turns = 1

    def tasks(self, split: str = "train") -> Iterator[Task]:
        return (Task(id=f"{split}-{number}") for number in count())

    def reset(self, task: Task, *, seed: int | None = None) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [agentrl.image(noise(task.id)), "Which?"]}]

    def demonstrate(self, messages: Sequence[Message]) -> str:
        return "a"

    @agentrl.reward
    def letters(self, session: Session) -> float:
        return sum(map(ord, session.answer)) % 11 / 10


class MemoryDisplay(Display):
    """Notes this process's resident memory, in MiB, behind each step of reinforcement learning."""

    def __init__(self) -> None:
        super().__init__(Console(file=StringIO()))
        self.resident: list[float] = []

    def phase(self, name: str, total: int, label: str, done: int = 0) -> None:
        self.resident.clear()
        super().phase(name, total, label, done)

    def step(self, metrics: Mapping[str, float], curve: float) -> None:
        self.resident.append(psutil.Process().memory_info().rss / 2**20)
        super().step(metrics, curve)


def noise(name: str) -> Any:
    """A picture of random pixels, by a name."""
    from PIL import Image

    rng = np.random.default_rng(list(name.encode()))
    return Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def store_images(file: Path, number: int) -> tuple[int, int]:
    """Store sessions that show so many images, each in two of them; return the files and pixels that are held."""
    with Store(file) as store:
        for first in range(0, number, PER_SESSION):
            shown = [agentrl.image(noise(str(each))) for each in range(first, min(first + PER_SESSION, number))]
            frames = tuple(np.full((4, 2, 2), each, dtype=np.float32) for each in range(first, first + len(shown)))
            seen = images.ImageInputs(TOKEN, bytes(16), frames, ((1, 1),) * len(shown)).pack()
            for sample in range(2):
                session = Session(f"{first}-{sample}", Task(id=str(first)), "g", sample, status=Status.COMPLETED)
                node = tree.add(session, None, Message(role="user", content=list(shown)), [TOKEN] * len(shown))
                node.attachments[images.NAME] = seen
                store.save(session)
    with sqlite3.connect(file) as opened:
        held = [data for (data,) in opened.execute("SELECT data FROM blobs")]
    files = sum(bytes(data).startswith(b"\x89PNG") for data in held)
    return files, len(held) - files


def measure_run(folder: Path, steps: int) -> tuple[float, float]:
    """The run's resident memory in its second and in its last fifth, medians in MiB."""
    display = MemoryDisplay()
    small = (patch.object(module, "_KEPT_BYTES", KEPT_BYTES) for module in (image_processor, engine_images))
    with ExitStack() as patched:
        for each in small:
            patched.enter_context(each)
        agentrl.train(**SETTINGS, steps=steps, display=display, run_dir=str(folder / "run"))
    fifth = max(len(display.resident) // 5, 1)
    early, late = display.resident[fifth : 2 * fifth], display.resident[-fifth:]
    return statistics.median(early), statistics.median(late)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do both, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "sessions.db"
        files, pixels = store_images(file, given.images)
        size = file.stat().st_size / 2**20
        print(
            f"{given.images:,} images, each in two sessions: {files:,} files, {pixels:,} sets of pixels, {size:.1f} MiB"
        )
        before, after = measure_run(Path(folder), given.steps)
    print(f"{given.steps:,} steps: {before:.0f} MiB resident in the second fifth, {after:.0f} in the last")
    if (files, pixels) != (given.images, -(-given.images // PER_SESSION)) or after > before * (1 + GROWTH):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
