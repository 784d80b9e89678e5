"""Tools of any shape are declared as each family's own reference declares them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.types import Message
from tests.sessions.renderers.references import REFERENCES
from tests.sessions.renderers.test_conformance import renderer_of

DECLARED = [
    family
    for family, reference in REFERENCES.items()
    if FAMILIES[family].expresses.tools and any(case.tools and case.declared for case in reference.cases)
]
NAMES = ("alpha", "Beta", "gamma_2", "ключ", "delta")
WORDS = ("Find things.", "Füge hinzu", "a {b} <c> \"d\" 'e'", "one\n\ntwo", "x")


def schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A property, as pydantic might describe it."""
    kind = rng.choice(("string", "integer", "number", "boolean", "array", "object") if depth < 2 else ("string",))
    made: dict[str, Any] = {"type": kind}
    if rng.random() < 0.6:
        made["description"] = rng.choice(WORDS)
    if rng.random() < 0.1:
        made["title"] = "Name"
    if rng.random() < 0.1:
        made["nullable"] = True
    if kind == "string" and rng.random() < 0.4:
        made["enum"] = rng.sample(("red", "grün", "blue"), 2)
    if kind != "object" and "enum" not in made and rng.random() < 0.4:
        made["default"] = {"string": "a", "integer": 5, "number": 0.5, "boolean": False, "array": [1, "b"]}[kind]
    if kind == "array":
        made["items"] = schema(rng, depth + 1)
    if kind == "object":
        made |= properties(rng, depth + 1)
    return made


def properties(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 3))
    given = {name: schema(rng, depth) for name in names}
    return {"properties": given, "required": rng.sample(names, rng.randint(1, len(names)))}


def tool(rng: random.Random, name: str) -> dict[str, Any]:
    parameters = {"type": "object", **properties(rng)}
    return {"type": "function", "function": {"name": name, "description": rng.choice(WORDS), "parameters": parameters}}


TOOLS = 120


@pytest.mark.slow
@pytest.mark.parametrize("family", DECLARED)
def test_tools_of_any_shape_are_declared_as_the_reference_declares_them(family: str) -> None:
    renderer = renderer_of(family)
    whole = REFERENCES[family].make(renderer.tokenizer)
    messages = [Message(role="system", content="Be kind."), Message(role="user", content="Hello.")]
    if family == "mistral":
        messages = messages[1:]
    for seed in range(TOOLS):
        rng = random.Random(f"{family}/{seed}")
        tools = [tool(rng, name) for name in ("search", "add_2")[: rng.randint(1, 2)]]
        ours = [token for ids in renderer.render(messages, tools=tools) for token in ids]
        ours += renderer.generation_prompt()
        theirs = whole(messages, tools, True)
        decode = renderer.tokenizer.decode
        assert ours == theirs, f"{tools}\n{decode(ours)}\n--- reference ---\n{decode(theirs)}"
