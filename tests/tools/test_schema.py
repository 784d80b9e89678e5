"""What a signature becomes: a schema that a model reads, and a check of what it wrote."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from agentrl.errors import InvalidInput
from agentrl.tools.schema import Signature
from agentrl.tools.tool import Tool, tool


class Point(BaseModel):
    x: int
    y: int = 0


def search(query: str, limit: int = 5, kind: Literal["book", "film"] | None = None) -> str:
    """Find products.

    Looks everywhere.

    Args:
        query: words to look for.
        limit: how many results.
    """
    return f"{query}/{limit}/{kind}"


def test_the_schema_comes_from_type_hints_and_the_docstring():
    schema = Tool.of(search).schema
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "search"
    assert schema["function"]["description"] == "Find products.\nLooks everywhere."
    parameters = schema["function"]["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["query"] == {"type": "string", "description": "words to look for."}
    assert parameters["properties"]["limit"] == {"type": "integer", "default": 5, "description": "how many results."}
    assert {"book", "film"} <= set(str(parameters["properties"]["kind"]).replace("'", " ").split())


def test_no_title_is_repeated_in_the_prompt():
    assert "title" not in str(Tool.of(search).parameters)


def test_a_tool_without_parameters_still_has_an_object_schema():
    assert Tool.of(lambda: "x").parameters == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize("name", ["json", "_hidden", "model_name", "copy", "schema", "title", "self_"])
def test_a_parameter_may_have_any_name(name: str):
    space: dict[str, Any] = {}
    exec(f"def f({name}: int): return {name}", space)
    signature = Signature.of(space["f"])
    assert list(signature.json_schema["properties"]) == [name]
    assert signature.check({name: "3"}) == {name: 3}


def test_nested_models_and_constraints_are_converted_and_checked():
    def plot(points: list[Point], size: Annotated[int, Field(gt=0)] = 1) -> None: ...

    signature = Signature.of(plot)
    assert signature.check({"points": [{"x": 1}]}) == {"points": [Point(x=1)]}
    with pytest.raises(ValidationError) as caught:
        signature.check({"points": [{"x": "no"}], "size": 0})
    words = signature.describe(caught.value)
    assert "points.0.x = 'no'" in words
    assert "size = 0: input should be greater than 0" in words


def test_defaults_that_were_not_given_are_left_to_the_function():
    assert Signature.of(search).check({"query": "q"}) == {"query": "q"}


def test_none_is_taken_where_it_is_the_default_whatever_the_hint_says():
    """The schema offered null, and a model that wrote it was told that an integer is wanted."""

    def book(
        seats: int = None,  # type: ignore[assignment]  # noqa: RUF013
        row: Annotated[str, Field(min_length=1)] = None,  # type: ignore[assignment]  # noqa: RUF013
        place: Point | None = None,
    ) -> str:
        return ""

    signature = Signature.of(book)
    assert signature.check({"seats": None, "row": None, "place": None}) == {"seats": None, "row": None, "place": None}
    with pytest.raises(ValidationError):
        signature.check({"seats": "many"})


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")
def test_a_default_that_is_no_json_is_left_out_of_the_schema():
    """NaN stood in the schema, which is no JSON then: servers and parsers refuse it."""

    def measure(low: float = float("nan"), high: float = float("inf"), at: float = 0.5) -> str:
        return ""

    properties = Signature.of(measure).json_schema["properties"]
    assert properties == {
        "low": {"type": "number"},
        "high": {"type": "number"},
        "at": {"type": "number", "default": 0.5},
    }


def test_what_pydantics_field_and_annotated_say_of_a_parameter_counts():
    """A `Field(…)` as the default was the default itself, so nothing was required; descriptions were lost."""

    def book(
        seats: int = Field(description="how many", ge=1),
        row: str = Field("any", max_length=4),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        hall: Annotated[int, Field(description="which hall", ge=1)] = 1,
        day: Annotated[str, "a weekday"] = "Monday",
    ) -> str:
        return repr((seats, row, tags, hall, day))

    signature = Signature.of(book)
    properties = signature.json_schema["properties"]
    described = {name: each.get("description") for name, each in properties.items()}
    assert described == {"seats": "how many", "row": None, "tags": None, "hall": "which hall", "day": "a weekday"}
    assert signature.json_schema["required"] == ["seats"]
    assert book(**signature.check({"seats": 2})) == "(2, 'any', [], 1, 'Monday')"
    for wrong in ({}, {"seats": 0}, {"seats": 1, "row": "too long"}, {"seats": 1, "hall": 0}):
        with pytest.raises(ValidationError):
            signature.check(wrong)


class Outer:
    class Inner(BaseModel):
        n: int

    def take(self, inner: Inner) -> int:
        return inner.n


def test_a_hint_may_name_a_class_within_the_methods_own_class():
    assert Signature.of(Outer.take).check({"inner": {"n": 1}}) == {"inner": Outer.Inner(n=1)}


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["query", "limit", "kind", "querry"]), st.none() | st.integers() | st.text()))
def test_whatever_passes_the_check_is_what_the_function_can_take(values: dict[str, Any]):
    signature = Signature.of(search)
    try:
        checked = signature.check(values)
    except ValidationError as error:
        words = signature.describe(error)
        checked = None
    if checked is None:
        assert any(name in words for name in ("query", "limit", "kind"))
    else:
        assert set(checked) == set(values)
        assert search(**checked).startswith(str(values["query"]))


def test_a_validation_error_names_what_is_missing_and_the_nearest_known_name():
    signature = Signature.of(search)
    with pytest.raises(ValidationError) as caught:
        signature.check({"querry": "tea"})
    words = signature.describe(caught.value)
    assert "query is missing" in words
    assert "did you mean query?" in words
    assert "known: query, limit, kind" in words


@pytest.mark.parametrize("source", ["def f(*args): ...", "def f(**kw): ...", "def f(a, /): ..."])
def test_parameters_that_can_not_be_given_by_name_are_refused(source: str):
    space: dict[str, Any] = {}
    exec(source, space)
    with pytest.raises(InvalidInput, match="can't be given by name"):
        Signature.of(space["f"])


def test_a_type_hint_that_can_not_be_resolved_is_named():
    def f(a: NoSuchType) -> None: ...  # noqa: F821

    with pytest.raises(InvalidInput, match="NoSuchType"):
        Signature.of(f)


def test_a_type_without_a_json_schema_is_named():
    class Opaque: ...

    @tool
    def f(a: Opaque) -> None:
        """Do."""

    f.__annotations__["a"] = Opaque
    with pytest.raises(InvalidInput, match="JSON schema"):
        Tool.of(f)
