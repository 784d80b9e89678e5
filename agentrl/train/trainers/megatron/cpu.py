"""Megatron-core on a machine without a GPU: redirects its CUDA calls to the CPU.

Megatron-core runs its layers, its schedules and its distributed optimizer in plain torch; some
thirty places need a GPU: they query the current device, allocate on "cuda", keep a CUDA generator's state, synchronise,
or test a tensor's type by the name `torch.cuda.FloatTensor`. `install` replaces all of these for the whole process, so
that the code tested on gloo is the code that runs on nccl, line for line.

What was given up: `install` changes torch itself, for good, so use it only in processes of their own (the
trainer's ranks, or a test's). It does nothing where there is a GPU, and nothing the second time. Tensors keep the
device `cpu`: only requests are redirected.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _device

FACTORIES = (
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like", "rand", "rand_like",
    "randint", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
"""The functions that allocate; a `device` of CUDA becomes the CPU, and pinning is dropped, since it needs a driver."""

CPU = torch.device("cpu")
_installed = False


def install() -> bool:
    """Redirect Megatron-core's CUDA calls to the CPU, in this process; returns whether there is no GPU.

    Call it before the first import of `megatron.core`.
    """
    global _installed
    if torch.cuda.is_available():
        return False
    if not _installed:
        _installed = True
        _redirect_allocations()
        _redirect_runtime()
        _redirect_tests()
        _redirect_megatron()
    return True


def _redirect_allocations() -> None:
    _device._device_constructors()  # cache what `with torch.device(…)` applies to, before it is replaced
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor, module = torch.Tensor, torch.nn.Module
    tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    tensor.record_stream = lambda self, *_: None  # type: ignore[method-assign]
    module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    moved, new_empty = tensor.to, tensor.new_empty

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and _is_cuda(args[0]):
            args = (CPU, *args[1:])
        return moved(self, *args, **_without_cuda(kwargs))

    tensor.to = to  # type: ignore[method-assign,assignment]
    tensor.new_empty = lambda self, *a, **k: new_empty(self, *a, **_without_cuda(k))  # type: ignore[method-assign]


def _redirect_runtime() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *_: (0, 0)
    cuda.memory_allocated = cuda.max_memory_allocated = cuda.memory_reserved = lambda *_: 0
    for name in ("synchronize", "empty_cache", "set_device", "ipc_collect"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.Stream, cuda.Event = CpuStream, CpuStream
    cuda.current_stream = cuda.default_stream = lambda *_: CpuStream()
    cuda.stream = _in_stream


def _redirect_tests() -> None:
    named = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = named(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.") if isinstance(answer, str) else answer

    torch.Tensor.type = type_  # type: ignore[method-assign,assignment]


def _redirect_megatron() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def get(device: Any = None, clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
        return torch.get_rng_state()

    def restore(state: torch.Tensor, device: Any = None, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state, random._set_cuda_rng_state = get, restore
    token_dispatcher.maybe_move_tensor_to_cpu = _to_host
    moe_utils.te_general_gemm = None  # without TransformerEngine it is a placeholder that is called


def _to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Megatron fetches the sizes of an all-to-all from the GPU as arrays; gloo wants them as such, too."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


class CpuStream:
    """A stream or an event on a CPU, where everything runs in order."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: Any) -> None:
        """Return at once: nothing runs elsewhere."""

    wait_event = wait_stream

    def record_event(self, _: Any = None) -> CpuStream:
        """Return an event that is already completed."""
        return self

    def synchronize(self) -> None:
        """Return at once: nothing is pending."""

    wait = record = synchronize

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuStream)

    def __hash__(self) -> int:
        return 0


@contextlib.contextmanager
def _in_stream(_: Any) -> Iterator[None]:
    yield


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        return factory(*args, **_without_cuda(kwargs))

    return create


def _without_cuda(kwargs: dict[str, Any]) -> dict[str, Any]:
    if _is_cuda(kwargs.get("device")):
        kwargs["device"] = CPU
    kwargs.pop("pin_memory", None)
    return kwargs


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")
