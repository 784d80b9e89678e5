"""Good actions where Gymnasium tells the whole environment: those with a table `P` of transitions (its toy_text)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

DISCOUNT = 0.99
SWEEPS = 1000
CLOSE = 1e-6
"""By how much a value changes at most in the last sweep."""
SLIPS = 0.5
"""The part of a demonstrator's actions that are random: what imitates it has something left to learn."""

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""Of state and action: the probabilities, next states, rewards and ends."""
_planned: WeakKeyDictionary[Any, Mapping[int, int]] = WeakKeyDictionary()


def planned_action(env: Any, rng: random.Random) -> int | None:
    """An action of an environment with a table of transitions, half of the time the best one; None without a table."""
    table: Table | None = getattr(env, "P", None)
    state = getattr(env, "s", None)
    if table is None or state is None:
        return None
    if rng.random() < SLIPS:
        return rng.choice(sorted(table[int(state)]))
    if (plan := _planned.get(env)) is None:
        plan = _planned[env] = best_actions(table)
    return plan[int(state)]


def best_actions(table: Table) -> dict[int, int]:
    """The best action in each state, by value iteration (Bellman, 1957)."""
    values = dict.fromkeys(table, 0.0)

    def worth(state: int, action: int) -> float:
        return sum(p * (gain + DISCOUNT * values[then] * (not over)) for p, then, gain, over in table[state][action])

    for _ in range(SWEEPS):
        change = 0.0
        for state, actions in table.items():
            value = max(worth(state, action) for action in actions)
            change, values[state] = max(change, abs(value - values[state])), value
        if change < CLOSE:
            break
    return {state: max(actions, key=lambda action: worth(state, action)) for state, actions in table.items()}
