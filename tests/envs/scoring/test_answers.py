"""Rewards for answers and their shapes, by name: on any session, whatever the model wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.common import patterns
from agentrl.envs.rewards import make_rewards
from agentrl.envs.scoring.json_schema import Schema
from agentrl.errors import ConfigError
from agentrl.plugins.reward import check_reward
from agentrl.types import Message, Node, Session, Status, Task

OPTIONS: dict[str, dict[str, Any]] = {
    "exact_match": {},
    "f1": {},
    "math": {},
    "choice": {},
    "regex": {"pattern": "a.*b"},
    "json_schema": {"field": "schema"},
    "format": {},
    "length": {"most": 5, "margin": 10},
}
TASK = {"answer": "B", "schema": {"type": "object"}, "choices": ["x", "y"]}


def session(*texts: str, **data: Any) -> Session:
    made = Session("s", Task(id="t", data=data or TASK), status=Status.COMPLETED)
    for place, text in enumerate(("?", *texts)):
        message = Message(role="assistant" if place else "user", content=text)
        made.nodes.append(Node(place, place - 1 if place else None, message, [], [], []))
    return made


async def score(name: str, made: Session, **options: Any) -> Any:
    (reward,) = make_rewards({"r": {"name": name, **options}})
    return await reward(made)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
async def test_every_built_in_reward_keeps_the_contract(name: str) -> None:
    sessions = [
        session(),
        session("B"),
        session('{"a": 1}', "\\boxed{B}"),
        session("<think>a</think><answer>b</answer>"),
    ]
    assert await check_reward(name, sessions, **OPTIONS[name]) == []


@pytest.mark.parametrize(
    ("name", "text", "data", "options", "expected"),
    [
        ("exact_match", "The Beatles.", {"answer": ["beatles", "fab four"]}, {}, 1),
        ("exact_match", "The Beatles.", {"answer": "The Beatles"}, {"normalize": "nothing"}, 0),
        ("exact_match", "a  b", {"answer": "a b"}, {"normalize": "spaces"}, 1),
        ("exact_match", "I think\n<answer>7</answer>", {"answer": 7}, {"extract": "tag:answer"}, 1),
        ("exact_match", "7", {"answer": 7}, {"extract": "tag:answer"}, 0),
        ("exact_match", "so: yes", {"ok": {"is": True}}, {"extract": "after:so:", "reference": "ok.is"}, 0),
        ("exact_match", "so: true", {"ok": {"is": True}}, {"extract": "after:so:", "reference": "ok.is"}, 1),
        ("f1", "red green", {"answer": ["red blue"]}, {}, 0.5),
        ("math", "It is \\boxed{\\frac{1}{2}}", {"answer": "0.5"}, {}, 1),
        ("math", "12 or 13", {"answer": 12}, {}, 0),
        ("choice", "Answer: (B)", {"answer": 1, "choices": ["x", "y"]}, {}, 1),
        ("choice", "\\boxed{b}", {"answer": "y", "choices": ["x", "y"]}, {}, 1),
        ("choice", "Because", {"answer": "B"}, {}, 0),
        ("regex", "see [3]", {}, {"pattern": r"\[\d+\]"}, 1),
        ("regex", "see [3]", {}, {"pattern": r"\[\d+\]", "whole": True}, 0),
        ("regex", "AB", {"p": "ab"}, {"field": "p", "ignore_case": True}, 1),
        ("regex", "sorry", {}, {"pattern": "sorry", "absent": True}, 0),
        ("json_schema", 'Here:\n```json\n{"a": 1}\n```', {"schema": {"required": ["a"]}}, {"field": "schema"}, 1),
        ("json_schema", '{"a": 1', {"schema": {}}, {"field": "schema"}, 0),
        ("format", "<think>a</think>\n<answer>b</answer>", {}, {}, 1),
        ("format", "<think>a</think><answer>b</answer><answer>c</answer>", {}, {}, 0),
        ("format", "<think>a</think>, <answer>b</answer>", {}, {}, 0),
        ("length", "abcdefgh", {}, {"most": 4, "margin": 8}, 0.5),
        ("length", "a b", {}, {"least": 3, "unit": "words"}, 0),
    ],
)
async def test_the_value_is_the_one_that_is_documented(
    name: str, text: str, data: dict[str, Any], options: dict[str, Any], expected: float
) -> None:
    assert await score(name, session(text, **{"id": 1, **data}), **options) == expected


async def test_a_field_that_the_task_lacks_is_named_with_those_that_it_has() -> None:
    with pytest.raises(
        ConfigError, match=r"no such field; did you mean 'answer'\? \(fields: answer, schema, choices\)"
    ):
        await score("exact_match", session("B"), reference="answers")


async def test_a_reward_is_for_the_tasks_that_its_where_chooses_and_for_no_others() -> None:
    for data, expected in (({"kind": "math", "answer": 1}, 1.0), ({"kind": "chat"}, None), ({"other": 1}, None)):
        assert await score("exact_match", session("1", **data), where={"kind": ["math", "logic"]}) == expected
    assert await score("length", session("1", level=3), most=9, where={"level": {"min": 4}}) is None
    with pytest.raises(ConfigError, match=r"rewards.r.where.level=.*must be numbers"):
        make_rewards({"r": {"name": "length", "most": 9, "where": {"level": {"min": "high"}}}})


@pytest.mark.slow
async def test_patterns_of_others_can_not_hold_up_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_PROGRAM", patterns._PROGRAM.replace(f"{patterns.SECONDS}", "0.1"))
    slow = "a" * 40 + "!"
    assert await score("regex", session(slow, p="(a+)+$"), field="p") == 0
    schema = {"items": {"pattern": "^(a+)+$"}}
    assert await score("json_schema", session(f'["{slow}"]', s=schema), field="s") == 0
    with pytest.raises(ConfigError, match="is no regular expression"):
        await score("regex", session("x", p="(("), field="p")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "text"}, "allowed are object"),
        ({"$ref": "https://example.com/s"}, "a place in the same schema"),
        ({"$ref": "#/no"}, "has no '#/no'"),
        ({"properties": {"a": {"unevaluatedItems": False}}}, "#/properties/a has unevaluatedItems"),
        ("{", "no JSON"),
        ({"anyOf": {}}, "of the wrong kind"),
    ],
)
def test_a_schema_that_can_not_be_kept_is_refused_by_place(schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Schema.of(schema, "here")


def test_a_schema_without_end_allows_nothing_in_bounded_time() -> None:
    endless = {"$ref": "#"}
    doubling = {"anyOf": [{"$ref": "#/x"}, {"$ref": "#/x"}], "x": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}
    for schema in (endless, doubling):
        assert not Schema.of(schema, "here").allows({"a": 1})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "a", "ab", ""]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=5,
)
bound = st.integers(0, 3)
keywords: dict[str, Any] = {
    "type": st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null", ["string", "null"]]),
    "enum": st.lists(values, min_size=1, max_size=3),
    "const": values,
    "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
    "uniqueItems": st.booleans(),
    "pattern": st.sampled_from(["a", "^a$"]),
    "multipleOf": st.sampled_from([2, 0.5]),
    **dict.fromkeys(("minimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxProperties"), bound),
}


def with_schemas(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from("abc"), below, max_size=2)
    lists = st.lists(below, min_size=1, max_size=2)
    more = {
        "properties": named,
        "patternProperties": named,
        **dict.fromkeys(("anyOf", "allOf", "oneOf", "prefixItems"), lists),
    }
    ones = dict.fromkeys(
        ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"), below
    )
    return st.fixed_dictionaries({}, optional={**more, **ones})


schemas = st.recursive(st.fixed_dictionaries({}, optional=keywords) | st.booleans(), with_schemas, max_leaves=4)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas, values)
def test_a_value_is_allowed_exactly_where_jsonschema_allows_it(schema: Any, value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert Schema.of(schema, "here").allows(value) == jsonschema.Draft202012Validator(schema).is_valid(value)
