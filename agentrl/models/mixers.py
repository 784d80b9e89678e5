"""Layers with a recurrent state: linear attention, state-space models, short convolutions.

transformers stores the state of such a layer (the last inputs of a convolution, a recurrent state) in a cache that
belongs to one sequence. Here the layer's own forward is called with a cache that begins with given states and returns
the final ones, without writing in place, so that gradients flow through them. The caller that arranges tokens in a row
(the trainer's forests, the local engine's steps) defines by a `StatePlan` which tokens are computed together and which
state each sequence continues from. No layer is replaced and none of its mathematics is written again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from agentrl.errors import InvalidInput

_STATE_METHODS = frozenset(("update_conv_state", "update_recurrent_state"))
_CACHE = ("cache", "cache_params", "past_key_values")
"""Names that layers have for the cache: the first since transformers 5.24."""


@dataclass(slots=True)
class LayerState:
    """The state of a layer, which it carries from one token to the next, for a batch of sequences.

    Attributes:
        conv: a convolution's last inputs, [sequences, channels, kernel], by the layer's own `state_idx`.
        recurrent: recurrent states, [sequences, ...], likewise.
    """

    conv: dict[int, Tensor] = field(default_factory=dict)
    recurrent: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def concatenate(cls, parts: Sequence[tuple[LayerState, int]]) -> LayerState:
        """A batch of sequences taken from other batches, as (state, index in it)."""

        def join(kind: str) -> dict[int, Tensor]:
            names = getattr(parts[0][0], kind)
            return {name: torch.cat([getattr(state, kind)[name][at : at + 1] for state, at in parts]) for name in names}

        return cls(join("conv"), join("recurrent"))

    def one(self, at: int) -> LayerState:
        """A copy of one sequence's state."""
        return LayerState(
            {name: value[at : at + 1].clone() for name, value in self.conv.items()},
            {name: value[at : at + 1].clone() for name, value in self.recurrent.items()},
        )


class _Cache:
    """transformers' cache as such a layer uses it (`Cache.update_conv_state` and the like), for one call of a layer."""

    def __init__(self, state: LayerState | None) -> None:
        self.state = LayerState() if state is None else state

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.state.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.state.recurrent.get(state_idx)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return state_idx in self.state.conv or state_idx in self.state.recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        return True  # then a layer leaves the convolution's state as it is

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Returns the inputs with those before them; the last `conv_kernel_size` are kept, zeros before the first."""
        before = self.state.conv.get(state_idx)
        whole = conv_states if before is None else torch.cat((before.to(conv_states.dtype), conv_states), -1)
        size = conv_kernel_size or (whole.shape[-1] if before is None else before.shape[-1])
        short = max(0, size - whole.shape[-1])
        self.state.conv[state_idx] = nn.functional.pad(whole[..., -size:], (short, 0))
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.state.recurrent[state_idx] = recurrent_states
        return recurrent_states


class StatePlan(Protocol):
    """Computes a layer: which tokens together, and from which state each sequence of them continues."""

    def __call__(self, mixer: Mixer, hidden: Tensor) -> Tensor:
        """A layer's outputs for a whole row: [1, T, d] -> [1, T, d]."""


class Mixer:
    """Wraps the forward of a layer that has a recurrent state.

    Attributes:
        name: the layer's module path in its model.
        layer: its index there.
        plan: how to compute the next row; None is as transformers does.
        continues: whether several tokens can be computed from a given state.
    """

    def __init__(self, name: str, module: nn.Module, width: int) -> None:
        self.name, self.forward = name, module.forward
        self.layer = int(cast(Any, module).layer_idx)
        self.plan: StatePlan | None = None
        taken = inspect.signature(module.forward).parameters
        self.cache = next((known for known in _CACHE if known in taken), None)
        self.continues = self.cache is not None and self._continues(next(module.parameters()), width)

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Called instead of the layer's forward."""
        if self.plan is None:
            return self.forward(hidden_states, *args, **kwargs)
        return self.plan(self, hidden_states)

    def compute(
        self, hidden: Tensor, state: LayerState | None = None, *, keep: bool = True
    ) -> tuple[Tensor, LayerState]:
        """Run the layer over sequences of one length.

        Args:
            hidden: [sequences, length, d].
            state: what they continue from, which may be overwritten where the length is 1; None is the initial state.
            keep: whether the final states are needed.

        Returns:
            [sequences, length, d], and the final states.

        Raises:
            InvalidInput: the layer returns something else.
        """
        more, cache = dict[str, Any](), _Cache(state)
        if self.cache is not None and (keep or state is not None):
            more[self.cache] = cache
        out = self.forward(hidden, **more)
        if not isinstance(out, Tensor) or out.shape[:2] != hidden.shape[:2]:
            raise InvalidInput(f"{self.name} has a recurrent state and returns more than its outputs")
        return out, cache.state

    @torch.enable_grad()
    def _continues(self, like: Tensor, width: int) -> bool:
        """Tested by gradients: the outputs of several tokens must depend on every state that is passed in."""
        hidden = torch.ones(1, 3, width, dtype=like.dtype, device=like.device)
        try:
            _, state = self.compute(hidden)
            inputs = [value.detach().requires_grad_() for value in (*state.conv.values(), *state.recurrent.values())]
            values = iter(inputs)
            given = LayerState(
                {name: next(values) for name in state.conv}, {name: next(values) for name in state.recurrent}
            )
            out, _ = self.compute(hidden, given)
            gradients = torch.autograd.grad(out.float().sum(), inputs, allow_unused=True)
        except (RuntimeError, ValueError, TypeError, AttributeError):  # layers that support no other length than 1
            return False
        return bool(inputs) and all(value is not None for value in gradients)


def wrap_mixers(model: nn.Module) -> list[Mixer]:
    """Wrap each layer of a transformers model that has a recurrent state in a `Mixer`; returns these."""
    for name, module in model.named_modules():
        if _keeps_state(type(module)):
            width = int(cast(Any, model).config.get_text_config().hidden_size)
            module.forward = Mixer(name, module, width)
    return mixers_of(model)


def mixers_of(model: nn.Module) -> list[Mixer]:
    """The mixers that `wrap_mixers` created in a model, or in the model that it is a copy of."""
    found = (module.__dict__.get("forward") for module in model.modules())
    return [one for one in found if isinstance(one, Mixer)]


def set_plan(model: nn.Module, plan: StatePlan | None) -> None:
    """Compute the model's next row, forward and backward, by a plan."""
    for mixer in mixers_of(model):
        mixer.plan = plan


def _keeps_state(kind: type) -> bool:
    """True if a class of modules keeps states in transformers' cache: its own code calls the cache's methods."""
    functions = (inspect.unwrap(value) for base in kind.__mro__ for value in vars(base).values() if callable(value))
    return issubclass(kind, nn.Module) and any(
        _STATE_METHODS & set(function.__code__.co_names) for function in functions if hasattr(function, "__code__")
    )
