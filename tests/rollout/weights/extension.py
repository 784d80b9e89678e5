"""SGLang's extension, and what it changes: a model with its loader, and an updater."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import agentrl

EXTENSION = Path(agentrl.__file__).parent / "rollout/engines/servers/sglang_extension"


@pytest.fixture(scope="module", name="module")
def load_extension() -> Any:
    """SGLang's extension, which needs no SGLang to be imported."""
    sys.path.insert(0, str(EXTENSION))
    try:
        return importlib.import_module("agentrl_sglang_weights")
    finally:
        sys.path.remove(str(EXTENSION))


class Loader(torch.nn.Module):
    """A model as servers have them, with two matrices in one parameter.

    Args:
        habit: what its loader, or whoever keeps a view of a parameter, does beside copying.
    """

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.zeros(48, 16), requires_grad=False)
        self.one = torch.nn.Parameter(torch.zeros(40 if habit == "pad" else 32, 16), requires_grad=False)
        self.habit, self.loads = habit, 0
        self.seen = self.one.t() if habit == "view" else None

    def load_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        self.loads += 1
        for name, tensor in named:
            place = self.one if name == "one" else self.both.data.narrow(0, 16 * (name == "second"), tensor.shape[0])
            place[: len(tensor)].data.copy_(tensor * 2 if self.habit == "double" else tensor)
            place[len(tensor) :].data.fill_(0)
        if self.habit == "sum":
            self.total = self.both.sum()


def make_updater(module: Any, model: Loader) -> Any:
    """Return SGLang's updater with the extension's changes, as far as they load."""

    class Updater:
        def get_model(self) -> Loader:
            return model

        def get_model_runner(self) -> Any:
            return SimpleNamespace(is_draft_worker=False)

        def load_weights_from_distributed(self, named: Any) -> tuple[bool, str]:
            model.load_weights(named)
            return True, "loaded"

        def update_weights_from_tensor(self, named: Any, load_format: None) -> tuple[bool, str]:
            model.load_weights(named)
            return True, "loaded"

        def end_weight_update(self, **given: Any) -> None:
            if model.habit == "scale":
                model.one.data.mul_(3)
            if model.habit == "pack":
                model.one.data = model.one.data.t().contiguous().t()

    module.place_again(Updater)
    return Updater()


def named_parts(number: int, order: str) -> tuple[torch.Tensor, list[tuple[str, torch.Tensor]]]:
    """Return memory of one broadcast, and the weights of a version that lie in it in this order."""
    rows = {"first": 16, "second": 32, "one": 32}
    flat = torch.randn(80, 16, generator=torch.Generator().manual_seed(number))
    pieces = flat.split([rows[name] for name in order.split()])
    return flat, [*zip(order.split(), pieces, strict=True)]
