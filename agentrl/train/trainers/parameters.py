"""A model's trained parameters, their learning rates, and the optimizer of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from agentrl.errors import ConfigError
from agentrl.models.vision import is_fixed, of_vision
from agentrl.train.trainers.lora import is_adapter, layer_weight
from agentrl.train.trainers.lora_full import FULL_RATE, choose_names, full_names
from agentrl.train.trainers.parameter_settings import ParameterConfig

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """A trained parameter: `factor` of the learning rate, and whether Muon updates it and not AdamW."""

    tensor: nn.Parameter
    factor: float = 1.0
    muon: bool = False


def trained_parameters(
    model: nn.Module, config: ParameterConfig, *, optimizer: str = "adamw", vision: str = "full", seen: float = 1.0
) -> list[TrainedParameter]:
    """The parameters that are trained, in the model's order; gradients of the others are turned off.

    Of a model with an adapter only the adapter's are, each by the settings of its layer's weight, and modules in full.
    `optimizer` and `vision` are the torch trainer's settings, and `seen` is a factor of the learning rate of tower and
    projector.

    Raises:
        ConfigError: a pattern matches no parameter, or nothing is left to train.
    """
    require_matches([name for name, _ in model.named_parameters() if not is_adapter(name)], config)
    found = list(_list_trained(model, config, optimizer, vision, seen))
    if not found:
        raise ConfigError(f"trainer.freeze={list(config.freeze)} leaves no parameter to train")
    return found


def require_matches(names: Sequence[str], config: ParameterConfig) -> None:
    """Raise ConfigError where a pattern matches none of a model's weights."""
    for setting, patterns in (("freeze", config.freeze), ("lr_factors", tuple(config.lr_factors))):
        choose_names(f"trainer.{setting}", patterns, names, "parameters")


def rate_factor(name: str, above: int, config: ParameterConfig) -> float | None:
    """The factor of a weight's learning rate; None: it is not trained.

    Args:
        name: in Hugging Face files.
        above: how many decoder layers are above its own; above an embedding are all of them.
        config: the trainer's settings.
    """
    if any(fnmatchcase(name, pattern) for pattern in config.freeze):
        return None
    factor = next((f for pattern, f in config.lr_factors.items() if fnmatchcase(name, pattern)), 1.0)
    return float(factor * config.layer_decay ** max(0, above))


def _list_trained(
    model: nn.Module, config: ParameterConfig, optimizer: str, vision: str, seen: float
) -> Iterator[TrainedParameter]:
    ends = {id(module.weight) for module in _ends(model)}
    named = list(model.named_parameters())
    if any(is_adapter(name) for name, _ in named) and any(is_fixed(name, "frozen") for name, _ in named):
        raise ConfigError("lora.rank: adapters of vision-language models are not trained yet; train them whole")
    layers = {name: int(found[1]) for name, _ in named if (found := LAYER.search(name)) and not of_vision(name)}
    depth = 1 + max(layers.values(), default=-1)
    embedding = id(model.get_input_embeddings().weight)  # type: ignore[operator]
    adapter, full = any(is_adapter(name) for name, _ in named), set(full_names(model))
    for name, tensor in named:
        layer = -1 if id(tensor) == embedding else layers.get(name, depth)
        factor = rate_factor(layer_weight(name), depth - 1 - layer, config)
        if (adapter and not is_adapter(name) and name not in full) or is_fixed(name, vision):
            factor = None
        tensor.requires_grad_(factor is not None)
        if factor is None:
            continue
        muon = optimizer == "muon" and tensor.ndim == 2 and id(tensor) not in ends
        yield TrainedParameter(tensor, factor * (seen if of_vision(name) else FULL_RATE if name in full else 1.0), muon)


def _ends(model: nn.Module) -> list[nn.Module]:
    """Embedding and head, whose rows are tokens."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    return [end for end in ends if end is not None]
