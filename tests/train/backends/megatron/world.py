"""One pool of worker processes for all tests of Megatron.

Importing torch and Megatron takes seconds: one process does (`preload`), and workers are forked from it. A worker
changes torch for good (`cpu.install`) and belongs to one process group at a time, so nothing of this happens in the
test process. `World.run` makes the first `size` workers a gloo world in the parallel layout that
a call wants, sends each of them the function and its arguments, and returns what each rank answered. Worlds of
different sizes share workers; groups are made anew only where the size or the layout changes.

A function is named by import path ("tests.….work:function"), so that the test process need not import Megatron.
Every wait has a deadline: after a failure the pool is killed, and the next call starts a fresh one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

PRELOAD = "tests.train.backends.megatron.preload"
SECONDS = 400.0
"""How long a call may take, starting workers included; below these tests' own limit, so that the failure is named."""

REGROUPINGS = 10
"""How often workers change their layout before new ones take over: every group that something still holds keeps some
sixty threads of gloo's, and thousands of them starve everybody."""

GRACE = 5.0
"""How long the other ranks may go on after one has failed: usually they wait for it in vain."""


@dataclass(frozen=True)
class Layout:
    """A world's parallel sizes; what is left of it is data parallelism."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual: int | None = None


class WorkerFailed(AssertionError):
    """A rank raised, or died, or did not answer in time."""


class World:
    """The pool."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="world-")
        self._workers: list[tuple[Any, Connection]] = []
        self._calls = 0
        self._now: tuple[int, Layout] | None = None
        self._regroupings = 0

    def run(self, function: str, *args: Any, size: int = 1, **layout: Any) -> list[Any]:
        """Call `function(*args)` on each rank of a world of `size` and return their answers, by rank."""
        deadline = time.monotonic() + SECONDS
        wanted = size, Layout(**layout)
        if wanted != self._now and self._regroupings == REGROUPINGS:
            self.close()
        fresh = wanted != self._now
        self._now = wanted
        self._regroupings += fresh
        self._start(size)
        self._calls += 1
        job = pickle.dumps((function, args, *wanted, fresh, f"{self._folder.name}/{self._calls}"))
        for _, pipe in self._workers[:size]:
            pipe.send_bytes(job)
        return self._answers(function, size, deadline)

    def _answers(self, function: str, size: int, deadline: float) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: list[str] = []
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._workers[:size])}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                failures.append(f"no answer from ranks {sorted(waiting.values())}")
                break
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type,call-overload]
                try:
                    fine, answer = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    fine, answer = False, "the process died"
                if fine:
                    answers[rank] = answer
                else:
                    failures.append(f"rank {rank} of {size}: {answer}")
                    deadline = min(deadline, time.monotonic() + GRACE)
        if failures:
            self.close()
            raise WorkerFailed(f"{function}\n" + "\n".join(failures))
        return [answers[rank] for rank in range(size)]

    def _start(self, size: int) -> None:
        # A process that has looked for a GPU can't be forked to use one.
        context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
        multiprocessing.set_forkserver_preload([PRELOAD])
        while len(self._workers) < size:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(len(self._workers), theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def close(self) -> None:
        """Kill the workers; the next call starts others."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
        for process, _ in self._workers:
            process.join(10)
        self._workers.clear()
        self._regroupings, self._now = 0, None


@contextlib.contextmanager
def open_world() -> Iterator[World]:
    """A pool, killed at the end."""
    world = World()
    try:
        yield world
    finally:
        world.close()


def _work(rank: int, pipe: Connection) -> None:
    importlib.import_module(PRELOAD)  # where it was not forked
    torch.set_num_threads(1)
    while True:
        try:
            function, args, size, layout, fresh, store = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            if fresh:  # for all ranks or for none: a rank that sat out a smaller world still has its old groups
                _regroup(rank, size, layout, Path(store))
            module, _, name = function.partition(":")
            answer = True, getattr(importlib.import_module(module), name)(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))


def _regroup(rank: int, size: int, layout: Layout, store: Path) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        gc.collect()  # models in reference cycles hold their groups
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1234, te_rng_tracker=False, force_reset_rng=True)
