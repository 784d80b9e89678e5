"""The retail world: tasks that can be solved, tools that keep the database whole, and a verdict on what was done."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.builtin.retail.customer import PATIENCE, YES, Customer
from agentrl.envs.builtin.retail.data import Database
from agentrl.envs.builtin.retail.expert import REFUSED, WRITES
from agentrl.envs.builtin.retail.generate import LEVELS, made_tasks, made_world
from agentrl.envs.builtin.retail.records import fold
from agentrl.envs.builtin.retail.store import TOOLS, RetailStore
from agentrl.envs.check import check_env
from agentrl.envs.episode import DEMONSTRATOR, play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, ToolError
from agentrl.types import FunctionCall, Message, Status, Task, ToolCall

DATABASE = made_world(0).database
SAMPLE = list(islice(made_tasks("train", None, 0), 60))


def verdict(task: Task, actions: Sequence[dict[str, Any]]) -> bool:
    """Whether the database after these actions is the one that the task asks for."""
    done, reference = RetailStore(DATABASE), RetailStore(DATABASE)
    done.apply(actions)
    reference.apply(task["actions"])
    return done.same_as(reference)


def saying(*texts: str) -> Any:
    def policy(env: Env, messages: Sequence[Message]) -> Message:
        said = sum(message.role == "assistant" for message in messages)
        return Message(role="assistant", content=texts[min(said, len(texts) - 1)])

    return policy


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_solves_the_made_tasks_of_every_level_and_no_call_of_its_is_refused(level: int):
    for task in islice(make("retail", level=level).tasks("eval"), 12):
        session = await play(make("retail", level=level), task)
        assert (session.reward, session.status, session.counters["tool_errors"]) == (1, Status.COMPLETED, 0), task


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_names_nothing_and_refuses_nothing_but_by_what_it_was_told_and_looked_up(level: int):
    """It knew emails and items that nobody had told: imitated, that is guessing."""
    for task in islice(make("retail", level=level).tasks("train"), 12):
        session = await play(make("retail", level=level), task)
        heard = ""
        for node in session.nodes:
            heard += "" if node.message.role == "assistant" else node.message.text
            for call in node.message.tool_calls or ():
                values = json.loads(call.function.arguments).values()
                words = [word for value in values for word in (value if isinstance(value, list) else [value])]
                assert not [word for word in words if word not in heard], task
            if REFUSED in node.message.text:
                assert set(re.findall(r'"status": ?"(\w+)"', heard)) & {"processed", "delivered"}, task


@pytest.mark.slow
async def test_about_half_of_the_demonstrations_do_nothing_and_the_same_ones_each_time():
    tasks = list(islice(make("retail", level=1).tasks("train"), 16))
    rewards = [[(await play(make("retail"), task, DEMONSTRATOR)).reward for task in tasks] for _ in range(2)]
    assert rewards[0] == rewards[1]
    assert 4 <= sum(map(float, rewards[0])) <= 12


async def test_the_tools_that_are_named_are_enough_for_the_expert_and_fewer_are_refused():
    named = (
        "find_user_id_by_email",
        "find_user_id_by_name_zip",
        "get_order_details",
        "cancel_pending_order",
        "modify_pending_order_address",
    )
    env = make("retail", level=1, tools=named)
    assert set(env.tools.names) == set(named)
    for task in islice(env.tasks("eval"), 6):
        assert (await play(make("retail", level=1, tools=named), task)).reward == 1
    for tools, words in ((named[1:], "lacks find_user_id_by_email"), ((*named, "fly"), "env.tools = 'fly'")):
        with pytest.raises(ConfigError, match=words):
            make("retail", level=1, tools=tools)


@pytest.mark.slow
async def test_the_expert_solves_every_task_of_tau2_bench(shared_data: Path):
    folder = shared_data / "tau2_retail"
    tasks = [task for split in ("train", "eval") for task in make("retail", path=folder).tasks(split)]
    assert len(tasks) == 114
    for task in tasks:
        session = await play(make("retail", path=folder), task)
        assert (session.reward, session.status) == (1, Status.COMPLETED), task.id


def test_no_customer_is_in_two_splits():
    def orders(split: str) -> set[str]:
        tasks = islice(made_tasks(split, None, 0), 300)
        named = {call["arguments"].get("order_id", "") for task in tasks for call in task["actions"]}
        return {DATABASE.orders[order]["user_id"] for order in named - {""}}

    assert not orders("train") & orders("eval")


@pytest.mark.slow
def test_one_more_change_or_one_less_is_wrong_and_one_that_is_taken_back_is_right():
    address = {"address1": "1 A", "address2": "", "city": "B", "state": "C", "country": "D", "zip": "1"}
    changing = [task for task in SAMPLE if any(call["name"].startswith(WRITES) for call in task["actions"])]
    assert len(changing) > 20
    for task in changing:
        user = next(iter(DATABASE.users.values()))
        move = {"name": "modify_user_address", "arguments": {"user_id": user["user_id"], **address}}
        back = {"name": "modify_user_address", "arguments": {"user_id": user["user_id"], **user["address"]}}
        assert verdict(task, task["actions"])
        assert not verdict(task, [call for call in task["actions"] if not call["name"].startswith(WRITES)])
        assert not verdict(task, [*task["actions"], move])
        assert verdict(task, [*task["actions"], move, back])


WORDS = (
    *(*islice(DATABASE.orders, 6), *islice(DATABASE.users, 3), "", "paypal_1", "no longer needed", "#W0"),
    *(item["item_id"] for order in islice(DATABASE.orders.values(), 3) for item in order["items"]),
    *(method for user in islice(DATABASE.users.values(), 3) for method in user["payment_methods"]),
)
PENDING = [order for order in DATABASE.orders.values() if order["status"] == "pending"][:10]
ACTIONS = [call for task in SAMPLE for call in task["actions"] if call["name"].startswith(WRITES)]
ACTIONS += [
    {
        "name": "modify_pending_order_items",  # no made task asks for it
        "arguments": {
            "order_id": order["order_id"],
            "item_ids": [order["items"][0]["item_id"]],
            "new_item_ids": [next(iter(DATABASE.products[order["items"][0]["product_id"]]["variants"]))],
            "payment_method_id": order["payment_history"][0]["payment_method_id"],
        },
    }
    for order in PENDING
]
PARAMETERS = {each.name: each.parameters["properties"] for each in make("retail").tools if each.name in TOOLS}
BEFORE = copy.deepcopy((DATABASE.orders, DATABASE.users))


def attempt(name: str, given: dict[str, Any]) -> None:
    """Call a tool; one that is refused has changed nothing."""
    store = RetailStore(DATABASE)
    try:
        getattr(store, name)(**given)
    except ToolError:
        assert store.changed == {"users": {}, "orders": {}}


@pytest.mark.slow
def test_a_refused_call_changes_nothing_and_no_call_changes_the_shared_database():
    """Calls of real tasks, with each argument another's."""
    for action in ACTIONS:
        name, given = action["name"], action["arguments"]
        for key, word in itertools.product(given, WORDS[::4]):
            attempt(name, {**given, key: [word] if isinstance(given[key], list) else word})
        attempt(name, given)
        assert (DATABASE.orders, DATABASE.users) == BEFORE


@pytest.mark.slow
@given(st.data())
def test_calls_of_any_words_change_nothing_where_they_are_refused(data: st.DataObject):
    name, word = data.draw(st.sampled_from(TOOLS)), st.sampled_from(WORDS)
    kinds = {"array": st.lists(word, max_size=3)}
    attempt(name, {key: data.draw(kinds.get(schema.get("type"), word)) for key, schema in PARAMETERS[name].items()})


def test_a_gift_card_pays_and_is_refunded_at_once_and_must_cover_what_it_pays():
    gift = {"source": "gift_card", "id": "gift_card_1", "balance": 10.0}
    card = {"source": "credit_card", "id": "card_1", "brand": "visa", "last_four": "1"}
    variants = {
        key: {"item_id": key, "options": {"size": key}, "available": key != "c", "price": price}
        for key, price in (("a", 20.0), ("b", 25.5), ("c", 1.0), ("d", 99.0))
    }
    item = {"name": "Hat", "product_id": "p", "item_id": "a", "price": 20.0, "options": {"size": "a"}}
    paid = {"transaction_type": "payment", "amount": 40.0, "payment_method_id": "card_1"}
    order = {
        "order_id": "o",
        "user_id": "u",
        "items": [item, dict(item)],
        "status": "pending",
        "payment_history": [paid],
    }
    user = {"user_id": "u", "payment_methods": {"gift_card_1": gift, "card_1": card}}
    store = RetailStore(Database({"p": {"variants": variants}}, {"u": user}, {"o": order}))
    for wrong in (["d", "b"], ["c", "b"], ["b"], ["a", "b"], ["x", "b"]):
        with pytest.raises(ToolError):
            store.modify_pending_order_items("o", ["a", "a"], wrong, "gift_card_1")
    with pytest.raises(ToolError, match="has 2 of item 'a', not 3"):
        store.modify_pending_order_items("o", ["a"] * 3, ["b"] * 3, "gift_card_1")
    changed = store.modify_pending_order_items("o", ["a"], ["b"], "gift_card_1")
    assert [(each["item_id"], each["price"]) for each in changed["items"]] == [("b", 25.5), ("a", 20.0)]
    assert store.get("users", "u")["payment_methods"]["gift_card_1"]["balance"] == 4.5
    with pytest.raises(ToolError, match="only a pending one can be cancelled"):
        store.cancel_pending_order("o", "no longer needed")
    assert gift["balance"] == 10.0


def test_items_that_are_modified_together_keep_their_own_price_in_whatever_order_they_are_named():
    shown = {"name": "Hat", "product_id": "p", "options": {}}
    variants = {key: {"item_id": key, "options": {"is": key}, "available": True, "price": 1.0} for key in "abcd"}
    items = [{**shown, "item_id": key, "price": 1.0} for key in "ab"]
    order = {"order_id": "o", "user_id": "u", "items": items, "status": "pending", "payment_history": []}
    user = {"user_id": "u", "payment_methods": {"m": {"source": "paypal", "id": "m"}}}
    database = Database({"p": {"variants": variants}}, {"u": user}, {"o": order})
    one, other = RetailStore(database), RetailStore(database)
    one.modify_pending_order_items("o", ["a", "b"], ["c", "d"], "m")
    other.modify_pending_order_items("o", ["b", "a"], ["d", "c"], "m")
    assert one.same_as(other)
    assert [item["options"] for item in one.get("orders", "o")["items"]] == [{"is": "c"}, {"is": "d"}]


SCENARIO = {
    "reason": "You want to return the lamp. If the agent asks for confirmation, return the chair as well. "
    "You want the refund on your gift card.",
    "known": "You are Ann Lee in zip code 10001.",
    "unknown": "You don't remember your email.",
    "instructions": "You are in a hurry.",
}


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        (["Your email, please?"], ["I am Ann Lee in zip code 10001. I don't remember my email."]),
        (["I will return it. Do you confirm (yes/no)?"] * 2, ["Return the chair as well.", YES]),
        (["To which payment method should the refund go?"], ["I want the refund on my gift card."]),
        (["What is the order number?"], ["I don't remember the order number."]),
        (["Is there anything else?"], [None]),
        (["Your return was processed."], [None]),
        (["Unfortunately that is not possible."], [None]),
        ([""] * (PATIENCE + 1), [*["Are you still there?"] * PATIENCE, None]),
    ],
)
def test_the_customer_tells_its_scenario_in_the_first_person_where_it_is_asked(asked: list[str], answers: list[str]):
    customer = Customer(SCENARIO)
    assert customer.opening() == "I want to return the lamp. I want the refund on my gift card."
    assert [customer.answer(text) for text in asked] == answers


async def test_an_agent_that_lets_the_customer_wait_gets_nothing_also_where_nothing_was_to_be_changed():
    task = next(task for task in SAMPLE if not any(call["name"].startswith(WRITES) for call in task["actions"]))
    waiting = await play(make("retail"), task, saying(""))
    refusing = await play(make("retail"), task, saying("Unfortunately that is not possible."))
    assert (waiting.status, waiting.reward) == (Status.TRUNCATED, 0)
    assert refusing.rewards["database"] == 1


def forbidden() -> Task:
    """A task in which nothing may be changed."""
    return next(
        task
        for task in SAMPLE
        if task["refuse"] and not any(action["name"].startswith(WRITES) for action in task["actions"])
    )


async def test_saying_that_it_is_done_or_refusing_without_a_look_up_is_worth_nothing_where_nothing_may_be_changed():
    """One sentence got half of level 1."""
    task = forbidden()
    looks_up = Message(role="assistant", tool_calls=[ToolCall(id="1", function=function_of(task["actions"][0]))])
    other = {**task["actions"][0], "name": "get_user_details", "arguments": {"user_id": next(iter(DATABASE.users))}}
    of_another = Message(role="assistant", tool_calls=[ToolCall(id="1", function=function_of(other))])
    refusal = "Unfortunately that is not possible."
    for messages, wanted in (
        (["It is done."], 0),
        ([refusal], 0),
        ([looks_up, "It is done."], 0),
        ([of_another, refusal], 0),
        ([looks_up, refusal], 1),
    ):
        assert (await play(make("retail"), task, writing(*messages))).reward == wanted, messages


def function_of(action: dict[str, Any]) -> FunctionCall:
    return FunctionCall(name=action["name"], arguments=json.dumps(action["arguments"]))


def writing(*messages: str | Message) -> Any:
    def policy(env: Env, conversation: Sequence[Message]) -> Message:
        said = messages[min(sum(message.role == "assistant" for message in conversation), len(messages) - 1)]
        return Message(role="assistant", content=said) if isinstance(said, str) else said

    return policy


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_at_most_a_fifth_of_the_tasks_of_any_level_change_nothing(level: int | None):
    tasks = list(islice(made_tasks("train", level, 0), 600))
    still = sum(not any(call["name"].startswith(WRITES) for call in task["actions"]) for task in tasks)
    assert still <= len(tasks) / 5


async def test_what_has_to_be_said_counts_with_commas_in_numbers_and_not_unsaid():
    task = SAMPLE[0].model_copy(update={"data": {**SAMPLE[0].data, "actions": [], "communicate": ["1250.5"]}})
    said = await play(make("retail"), task, saying("It costs $1,250.50. Anything else?"))
    unsaid = await play(make("retail"), task, saying("It costs $1,25.00. Anything else?"))
    assert (said.reward, unsaid.reward) == (1, 0)


async def test_a_policy_that_plays_the_customer_knows_the_scenario_and_the_agent_hears_only_what_it_says():
    env = make("retail", customer="policy")
    task = SAMPLE[0]
    openings = await calls.openings(env, task, seed=0)
    assert task["scenario"]["reason"] in openings["customer"][0].text
    assert task["scenario"]["known"] not in openings["agent"][0].text
    asks = await calls.step(env, Message(role="assistant", content="Cancel it.", name="customer"))
    assert [message.text for message in asks.others["agent"]] == ["Cancel it."]
    looks = await calls.step(env, env.call("list_all_product_types").model_copy(update={"name": "agent"}))
    assert (looks.next, looks.messages[0].role) == (("agent",), "tool")
    answers = await calls.step(env, Message(role="assistant", content="No.", name="agent"))
    assert (answers.next, answers.others["customer"][0].text) == (("customer",), "No.")
    ends = await calls.step(env, Message(role="assistant", content="###STOP###", name="customer"))
    assert ends.terminated
    session = await play(make("retail", customer="policy"), task)
    assert session.agent_rewards == {"agent": 1.0, "customer": None}


@pytest.mark.slow
def test_a_folder_without_a_file_or_of_another_layout_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"missing: db\.json"):
        make("retail", path=tmp_path)
    for name in ("db.json", "tasks.json", "split_tasks.json", "policy.md"):
        (tmp_path / name).write_text(json.dumps([]))
    with pytest.raises(ConfigError, match="don't have tau2-bench's layout"):
        make("retail", path=tmp_path)
    with pytest.raises(ConfigError, match=r"env\.level = 4: allowed are 1, 2, 3"):
        make("retail", level=4)


@given(st.text("aZ. éÅİﬀ\u0301", max_size=12))
def test_names_are_compared_without_case_and_accents(text: str):
    """Also those in ASCII, which take a shorter way."""
    assert fold(text) == fold(f"{text}\u0301") == fold(text.upper().lower()) or not text.isascii()
    assert fold(f"Zoë {text}") == fold(f"ZOE {text}")


@pytest.mark.slow
def test_it_keeps_the_contract_also_with_tau2_benchs_data(shared_data: Path):
    assert check_env("retail", hostile=20, scored=8) == []
    assert check_env("retail", path=str(shared_data / "tau2_retail"), tasks=1, scored=8) == []
    assert check_env("retail", customer="policy", tasks=1, scored=8) == []
