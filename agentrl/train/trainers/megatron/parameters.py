"""A rank's trained parameters and their learning rates: settings by Hugging Face names, on Megatron's parameters.

One parameter of Megatron may stand for several weights, the projections of query, key and value for example. They are
trained alike, so a setting that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from agentrl.errors import ConfigError
from agentrl.models.vision import is_fixed, of_vision
from agentrl.train.trainers.megatron.models import Family
from agentrl.train.trainers.megatron.models.weights import named_parameters
from agentrl.train.trainers.parameter_settings import ParameterConfig
from agentrl.train.trainers.parameters import rate_factor, require_matches
from agentrl.train.trainers.ranks.joined import all_gather

EMBEDDING = "embedding.word_embeddings.weight"
Factors = Mapping[Parameter, float]
"""The factor of the learning rate, by parameter; 1 for those that are missing."""


def rate_factors(models: Sequence[Any], family: Family, config: ParameterConfig) -> Factors:
    """The factors of a rank's trained parameters; gradients of the others are turned off. Collective.

    Call it before the models are wrapped: buffers of gradients are for what is trained.

    Raises:
        ConfigError: a pattern matches no weight of the model, or only some of those that are one parameter here; or
            nothing is left to train.
    """
    if config.vision == "full" and not (config.freeze or config.lr_factors or config.layer_decay != 1.0):
        return {}
    held = list(_list_parameters(models, family))
    names = dict.fromkeys(name for each in all_gather([n for _, _, n in held]) for group in each for name in group)
    require_matches(list(names), config)
    layers, found, problem = models[0].config.num_layers, dict[Parameter, float](), ""
    for parameter, layer, own in held:
        factors = {
            name: None if is_fixed(name, config.vision) else rate_factor(name, layers - 1 - layer, config)
            for name in own
        }
        factor, *others = dict.fromkeys(factors.values())
        if others:
            problem = problem or ", ".join(f"{name}: {_describe(value)}" for name, value in factors.items())
        parameter.requires_grad_(factor is not None)
        found[parameter] = factor or 0.0
    if problems := [each for each in all_gather(problem) if each]:
        raise ConfigError(
            "trainer.freeze and lr_factors: these weights are one parameter in trainer=megatron, and can't be trained "
            f"differently: {problems[0]}"
        )
    if not any(all_gather(any(found.values()))):
        raise ConfigError(f"trainer.freeze={list(config.freeze)} leaves no parameter to train")
    for model in models:
        if model.pre_process:  # recomputed layers and a pipeline's stages have gradients only where their input has one
            model.embedding.register_forward_hook(_with_gradient)
    return {parameter: factor for parameter, factor in found.items() if factor}


def with_vision_rate(
    factors: Factors, models: Sequence[Any], family: Family, config: ParameterConfig, rate: float
) -> Factors:
    """The factors with those of tower and projector for `config.vision_lr`, where the others' learning rate is this."""
    if config.vision_lr is None or not rate:
        return factors
    times = config.vision_lr / rate
    seen = (p for p, _, own in named_parameters(models, family) if p.requires_grad and of_vision(own[0]))
    return {**factors, **{parameter: factors.get(parameter, 1.0) * times for parameter in seen}}


def _list_parameters(models: Sequence[Any], family: Family) -> Iterator[tuple[Parameter, int, tuple[str, ...]]]:
    """As `named_parameters`, with the copy of a tied embedding that is the head on a pipeline's last stage."""
    yield from named_parameters(models, family)
    for model in models:
        if model.post_process and not model.pre_process and model.share_embeddings_and_output_weights:
            yield model.shared_embedding_or_output_weight(), -1, family.outside[EMBEDDING].names()


def _with_gradient(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
    return output.requires_grad_()


def _describe(factor: float | None) -> str:
    return "frozen" if factor is None else f"{factor:g} · lr"
