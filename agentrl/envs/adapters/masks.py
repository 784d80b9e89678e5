"""Masks of allowed actions in Gymnasium environments, and the parts of `info` that the agent reads.

A mask is what Gymnasium's own `space.sample(mask=…)` takes: for a Discrete space an array with a 1 for each action that
is allowed, for MultiDiscrete an array for each of its parts. It is in `info`, in a Dict observation, or what a method
of the environment returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from agentrl.envs.adapters.spaces import rounded
from agentrl.errors import ConfigError, EnvError, ToolArguments
from agentrl.tools.schema import shown

Mask = Sequence[Any]
"""For each part of an action an array with a 1 for each value that is allowed; a Discrete space has one part."""


def check_maskable(space: spaces.Space[Any], name: str) -> None:
    """Raise a ConfigError where a space has no masks."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or len(space.shape or ()) > 1:
        raise ConfigError(f"env.mask={name}: actions are {space}: allowed: a Discrete or MultiDiscrete space")


def mask_of(name: str, space: spaces.Space[Any], info: Mapping[str, Any], seen: Any, env: Any) -> Mask:
    """The mask of the actions that are allowed now.

    Args:
        name: the key of `info` or of the observation, or the environment's method.
        space: the actions.
        info: of the last step or reset.
        seen: the observation.
        env: Gymnasium's, unwrapped.

    Raises:
        EnvError: there is none, or it does not fit the space.
    """
    if name in info:
        found = info[name]
    elif isinstance(seen, Mapping) and name in seen:
        found = seen[name]
    elif callable(method := getattr(env, name, None)):
        found = method()
    else:
        raise EnvError(
            f"env.mask={name}: no key of info ({', '.join(info) or 'none'}), no part, no method has that name"
        )
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(size) for size in space.nvec]
    flat = np.concatenate([np.ravel(part) for part in found]) if isinstance(found, tuple | list) else np.ravel(found)
    if flat.size != sum(sizes):
        raise EnvError(f"env.mask={name} has {flat.size} values: {space} takes {sum(sizes)}")
    return np.split(flat.astype(bool), np.cumsum(sizes)[:-1])


def check_allowed(space: spaces.Space[Any], mask: Mask, action: Any, names: Sequence[str]) -> None:
    """Raise ToolArguments where a mask does not allow an action; the message says what it allows."""
    parts = np.ravel(action) - np.ravel(_starts(space))
    if not all(allowed[int(part)] for allowed, part in zip(mask, parts, strict=True)):
        value = names[int(parts[0])] if names else np.asarray(action).tolist()
        raise ToolArguments(f"action = {shown(value)}: allowed now: {allowed_now(space, mask, names)}")


def allowed_now(space: spaces.Space[Any], mask: Mask, names: Sequence[str]) -> str:
    """Describe the actions that a mask allows."""
    starts = np.ravel(_starts(space))
    values = [
        [names[int(place)] if names else str(int(place) + int(start)) for place in np.flatnonzero(allowed)]
        for allowed, start in zip(mask, starts, strict=True)
    ]
    return "; ".join(", ".join(each) or "none" for each in values)


def drawn(space: spaces.Space[Any], mask: Mask) -> Any:
    """A random action that a mask allows; any where it allows none."""
    if not all(allowed.any() for allowed in mask):
        return space.sample()
    arrays = tuple(allowed.astype(np.int8) for allowed in mask)
    return space.sample(mask=arrays[0] if isinstance(space, spaces.Discrete) else arrays)


def told(info: Mapping[str, Any], names: Sequence[str], digits: int) -> list[str]:
    """The values of `info` that an agent is told, each in a line; those that are not there are left out."""
    return [f"{name}: {_written(info[name], digits)}" for name in names if name in info]


def _starts(space: spaces.Space[Any]) -> Any:
    return space.start


def _written(value: Any, digits: int) -> str:
    return value if isinstance(value, str) else json.dumps(_plain(value, digits))


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, digits) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return rounded(value.tolist(), digits)
    return rounded(value, digits) if isinstance(value, bool | int | float | str | None) else str(value)
