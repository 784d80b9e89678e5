"""A perfect agent's steps in a task of the retail world, from the task's reference actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.envs.builtin.retail.data import Database, Record
from agentrl.types import Task

WRITES = ("cancel_", "modify_", "return_", "exchange_")
"""The beginnings of the names of tools that change the database."""
IDENTIFIES = "find_user_id_"
TRANSFER = "transfer_to_human_agents"
TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
REFUSED = "our policy does not allow it"
DONE = "That is all done, as far as possible. Is there anything else?"
WHO = "Please tell me your email, or your full name and zip code."
"""Asked first: an agent that imitates this can look up only what it was told."""
Step = str | Mapping[str, Any]
"""A message to the customer, or a tool call with `name` and `arguments`."""


def script(task: Task, database: Database) -> list[Step]:
    """The agent's messages in order: ask who it is, look things up, ask to confirm, act, and say the rest."""
    actions: list[Mapping[str, Any]] = task["actions"]
    writes = [action for action in actions if action["name"].startswith(WRITES)]
    reads = [action for action in actions if action not in writes and action["name"] != TRANSFER]
    reads.sort(key=lambda action: not action["name"].startswith(IDENTIFIES))  # the others keep their order
    customer = _customer(actions, database)
    steps: list[Step] = []
    if customer is not None and not any(action["name"].startswith(IDENTIFIES) for action in reads):
        steps.append(_identify(customer))
    steps += reads
    if any(not isinstance(step, str) and step["name"].startswith(IDENTIFIES) for step in steps):
        steps.insert(0, WHO)
    if writes:
        plan = "; ".join(f"{action['name']}({_words(action['arguments'])})" for action in writes)
        steps += [f"I will do the following: {plan}. Do you confirm (yes/no)?", *writes]
    refusal = f"Unfortunately that is not possible: {REFUSED}. " if must_refuse(task) else ""
    answers = (
        f"{refusal}Here is what you wanted to know: {', '.join(task['communicate'])}. "
        if task["communicate"]
        else refusal
    )
    if any(action["name"] == TRANSFER for action in actions):
        summary = {"summary": "The request is beyond what I can do."}
        return [*steps, {"name": TRANSFER, "arguments": summary}, f"{answers}{TRANSFERRED}"]
    return [*steps, f"{answers}{DONE}"]


def must_refuse(task: Task) -> bool:
    """Return whether a wish of the customer is forbidden; where no task says so, if nothing is done or said for it."""
    actions = [action["name"] for action in task["actions"]]
    nothing = not any(name.startswith(WRITES) or name == TRANSFER for name in actions) and not task["communicate"]
    return bool(task.data.get("refuse", nothing))


def _customer(actions: list[Mapping[str, Any]], database: Database) -> Record | None:
    """The user whom the actions are about."""
    for action in actions:
        order = database.orders.get(action["arguments"].get("order_id", ""), {})
        user_id = str(action["arguments"].get("user_id") or order.get("user_id"))
        if user_id in database.users:
            return database.users[user_id]
    return None


def _identify(user: Record) -> Step:
    arguments = {**user["name"], "zip": user["address"]["zip"]}
    return {"name": f"{IDENTIFIES}by_name_zip", "arguments": arguments}


def _words(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {', '.join(each) if isinstance(each, list) else each}" for key, each in arguments.items())
