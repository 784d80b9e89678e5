"""Layers that carry a state along the row: linear attention, state-space models, short convolutions.

transformers writes what such a layer carries (the last inputs of a convolution, a recurrent state) into a cache that
belongs to one sequence. Here the layer's own forward is called with a cache in its place that begins with given states
and hands out the final ones, written by nobody in place, so that gradients flow through them. Whoever lays out tokens
(the trainer's forests, the local engine's steps) says by a `Plan` which tokens are computed together and what each
sequence continues. No layer is replaced and none of its mathematics is written again.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from agentrl.errors import InvalidInput

_KEEPS = frozenset(("update_conv_state", "update_recurrent_state"))
_CACHE = ("cache_params", "past_key_values")


@dataclass(slots=True)
class State:
    """What a layer carries from one token to the next, of some sequences side by side.

    Attributes:
        conv: a convolution's last inputs, [sequences, channels, kernel], by the number that the layer gives them.
        recurrent: recurrent states, [sequences, ...], likewise.
    """

    conv: dict[int, Tensor] = field(default_factory=dict)
    recurrent: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[tuple[State, int]]) -> State:
        """Sequences picked from others: (where from, which one)."""

        def join(kind: str) -> dict[int, Tensor]:
            names = getattr(parts[0][0], kind)
            return {name: torch.cat([getattr(state, kind)[name][at : at + 1] for state, at in parts]) for name in names}

        return cls(join("conv"), join("recurrent"))

    def one(self, at: int) -> State:
        """A copy of one sequence's."""
        return State(
            {name: value[at : at + 1].clone() for name, value in self.conv.items()},
            {name: value[at : at + 1].clone() for name, value in self.recurrent.items()},
        )


class _Cache:
    """transformers' cache as such a layer uses it (`Cache.update_conv_state` and the like), for one call of a layer."""

    def __init__(self, state: State | None) -> None:
        self.state = State() if state is None else state

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.state.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.state.recurrent.get(state_idx)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return state_idx in self.state.conv or state_idx in self.state.recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        return True  # a layer that is told so leaves the convolution's state as it is

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


class Plan(Protocol):
    """Which tokens a layer computes together, and what each sequence of them continues."""

    def __call__(self, mixer: Mixer, hidden: Tensor) -> Tensor:
        """A layer's outputs for a whole row: [1, T, d] -> [1, T, d]."""
        ...


class Mixer:
    """Stands before the forward of a layer that carries a state.

    Attributes:
        name: the layer's place in its model.
        layer: its number there.
        plan: how to compute the row at hand; None is as transformers does.
        continues: whether several tokens can be computed from where others ended.
    """

    def __init__(self, name: str, module: nn.Module, width: int) -> None:
        self.name, self.forward = name, module.forward
        self.layer = int(cast(Any, module).layer_idx)
        self.plan: Plan | None = None
        taken = inspect.signature(module.forward).parameters
        self.cache = next((known for known in _CACHE if known in taken), None)
        self.continues = self.cache is not None and self._continues(next(module.parameters()), width)

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """In place of the layer's forward."""
        if self.plan is None:
            return self.forward(hidden_states, *args, **kwargs)
        return self.plan(self, hidden_states)

    def compute(self, hidden: Tensor, state: State | None = None, *, keep: bool = True) -> tuple[Tensor, State]:
        """Run the layer over sequences of one length.

        Args:
            hidden: [sequences, length, d].
            state: what they continue, and may be overwritten where the length is 1; None is nothing.
            keep: whether the final states are wanted.

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
            raise InvalidInput(f"{self.name} carries a state and returns more than its outputs")
        return out, cache.state

    @torch.enable_grad()
    def _continues(self, like: Tensor, width: int) -> bool:
        """Tried: the outputs of several tokens must depend on every state that is handed over."""
        hidden = torch.ones(1, 3, width, dtype=like.dtype, device=like.device)
        try:
            _, state = self.compute(hidden)
            handed = [value.detach().requires_grad_() for value in (*state.conv.values(), *state.recurrent.values())]
            names = iter(handed)
            given = State({name: next(names) for name in state.conv}, {name: next(names) for name in state.recurrent})
            out, _ = self.compute(hidden, given)
            felt = torch.autograd.grad(out.float().sum(), handed, allow_unused=True)
        except (RuntimeError, ValueError, TypeError, AttributeError):  # of layers that know no other length than 1
            return False
        return bool(handed) and all(value is not None for value in felt)


def take_over(model: nn.Module) -> list[Mixer]:
    """Put a `Mixer` before each of a transformers model's layers that carries a state; those that there are."""
    for name, module in model.named_modules():
        if _keeps_state(type(module)):
            width = int(cast(Any, model).config.get_text_config().hidden_size)
            module.forward = Mixer(name, module, width)
    return mixers_of(model)


def mixers_of(model: nn.Module) -> list[Mixer]:
    """Those that `take_over` has put into a model, or into what it is a copy of."""
    found = (module.__dict__.get("forward") for module in model.modules())
    return [one for one in found if isinstance(one, Mixer)]


def follow(model: nn.Module, plan: Plan | None) -> None:
    """Compute the model's next row, forward and backward, by a plan."""
    for mixer in mixers_of(model):
        mixer.plan = plan


def _keeps_state(kind: type) -> bool:
    """Whether a class of modules keeps states in transformers' cache: its own code asks the cache to."""
    functions = (inspect.unwrap(value) for base in kind.__mro__ for value in vars(base).values() if callable(value))
    return issubclass(kind, nn.Module) and any(
        _KEEPS & set(function.__code__.co_names) for function in functions if hasattr(function, "__code__")
    )
