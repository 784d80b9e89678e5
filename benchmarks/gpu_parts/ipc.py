"""Weights by CUDA IPC: what another process reads through our handles is what lies here, bit for bit.

On a CPU the same handles are of shared memory.
"""

from __future__ import annotations

import base64
import io
import pickle
from multiprocessing.connection import Connection

import torch
import torch.multiprocessing as mp

from agentrl.rollout.weights.buckets import buckets
from agentrl.rollout.weights.shared_memory import SharedBuffer
from agentrl.rollout.weights.transports.ipc import FilledBuffer, serialise
from benchmarks.gpu_parts.report import Report

TENSORS, SIZE = 64, 1 << 21


def receive(pipe: Connection) -> None:
    """Another process: read each bucket, answer with its sums, as 64-bit integers of the bits."""
    while (text := pipe.recv()) is not None:
        pairs = pickle.load(io.BytesIO(base64.b64decode(text)))
        pipe.send({name: digest(tensor) for name, tensor in pairs})
        del pairs
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()


def digest(tensor: torch.Tensor) -> int:
    """A sum that any changed bit changes."""
    bits = tensor.contiguous().view(torch.int32).to(torch.int64).flatten()
    return int((bits * torch.arange(1, bits.numel() + 1, device=bits.device)).sum())


def run(report: Report) -> None:
    """Send 512 MB of tensors, and compare."""
    size = SIZE // 1024 if report.small else SIZE
    weights = [(f"w{i}", torch.randn(size, device=report.device)) for i in range(TENSORS)]
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs,), daemon=True)
    process.start()
    wrong, buffer = 0, SharedBuffer()

    def send() -> None:
        nonlocal wrong
        for bucket in buckets(weights, 128 << 20):
            filled = FilledBuffer(buffer.fill(bucket), buffer, last=True)
            ours.send(serialise([filled]))
            if not ours.poll(60):
                raise TimeoutError("the other process did not answer in 60 s")
            answer = ours.recv()
            wrong += sum(answer[name] != digest(tensor) for name, tensor in filled.pairs)

    send()
    report.below(f"tensors that arrived otherwise, of {TENSORS}", float(wrong), 0.0)
    seconds = report.seconds(send, repeats=3, warm=0)
    copied = report.seconds(lambda: [tensor.cpu() for _, tensor in weights], repeats=3, warm=1)
    report.add("time, digests included, of copying the same tensors to the host", seconds / copied)
    ours.send(None)
    process.join(30)
