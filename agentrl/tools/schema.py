"""A function's signature as data: a pydantic model that checks arguments, and a JSON schema for language models.

Tools and environment constructors both turn a signature into something that can be checked and listed, so
they share this. Fields of the pydantic model are numbered and carry the parameter's name as their alias:
a parameter may then be called anything at all (`json`, `_x`, `model_name`), which pydantic's own fields may not.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from agentrl.common.plain import plain
from agentrl.common.untrusted import safe_repr
from agentrl.errors import InvalidInput, nearest

MAX_SHOWN = 60
"""Characters of a wrong value that an error message repeats."""


class _Untitled(GenerateJsonSchema):
    """A schema without titles, which repeat the field's name and cost tokens in every prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        """A default as JSON; one that is no JSON is left out with pydantic's warning: NaN and infinity are none too."""
        known = plain(dft)  # a number of numpy's
        found = super().encode_default(known if isinstance(known, int | float) else dft)
        try:
            json.dumps(found, allow_nan=False)
        except ValueError as error:
            raise PydanticSerializationError(str(error)) from None
        return found


@dataclass(frozen=True)
class Parameter:
    """One parameter, as it is listed to a user."""

    name: str
    annotation: Any
    default: Any = inspect.Parameter.empty
    description: str = ""
    filled: bool = False
    """True where the callable is given the default too, since it has pydantic's `Field(…)` in its place."""

    @property
    def required(self) -> bool:
        """True if the parameter has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        """The annotation as text."""
        if isinstance(self.annotation, type) and not typing.get_args(self.annotation):
            return self.annotation.__name__
        return str(self.annotation).replace("typing.", "")


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable; `open` where it also takes keywords that it does not name."""

    parameters: tuple[Parameter, ...]
    open: bool = False

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        skip: Iterable[str] = (),
        descriptions: Mapping[str, str] | None = None,
        allow_open: bool = False,
    ) -> Signature:
        """Read a callable's parameters.

        Args:
            function: the callable; a leading `self`, and what a `functools.partial` gives by name, is left out.
            skip: names that the caller does not supply.
            descriptions: one per name, out of the docstring.
            allow_open: whether `**kwargs` is allowed.

        Raises:
            InvalidInput: a parameter can't be given by name, or an annotation can't be resolved.
        """
        where = getattr(function, "__qualname__", repr(function))
        try:
            hints = _hints(find_source(function))
        except Exception as error:
            raise InvalidInput(f"{where}: a type hint can't be resolved: {error}") from None
        given = function.keywords if isinstance(function, functools.partial) else ()
        parameters, is_open, left_out = [], False, {"self", *skip, *given}
        for name, parameter in inspect.signature(function).parameters.items():
            if name in left_out:
                continue
            if parameter.kind is parameter.VAR_KEYWORD and allow_open:
                is_open = True
            elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                description = (descriptions or {}).get(name, "")
                hint, default = hints.get(name, Any), parameter.default
                if filled := isinstance(default, FieldInfo):
                    hint = typing.Annotated[hint, default]
                    default = (
                        parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
                    )
                hint = _with_default(hint, default)
                parameters.append(Parameter(name, hint, default, description or _note(hint), filled))
            else:
                raise InvalidInput(f"{where}: parameter {str(parameter)!r} can't be given by name; spell it out")
        return cls(tuple(parameters), is_open)

    @cached_property
    def names(self) -> list[str]:
        """The parameters' names, in order."""
        return [parameter.name for parameter in self.parameters]

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        for index, parameter in enumerate(self.parameters):
            options: dict[str, Any] = {"alias": parameter.name}
            if not parameter.filled:
                options["default"] = ... if parameter.required else parameter.default
            if parameter.description:
                options["description"] = parameter.description
            fields[f"arg{index}"] = (parameter.annotation, Field(**options))
        config = ConfigDict(
            extra="ignore" if self.open else "forbid", coerce_numbers_to_str=True, arbitrary_types_allowed=True
        )
        return create_model("Arguments", __config__=config, **fields)

    @cached_property
    def json_schema(self) -> dict[str, Any]:
        """The parameters as a JSON schema object, without titles; InvalidInput where a type has none."""
        try:
            schema = self._model.model_json_schema(schema_generator=_Untitled)
        except PydanticUserError as error:
            for one in self.parameters if len(self.parameters) > 1 else ():
                _ = Signature((one,)).json_schema  # names the one that it is
            raise InvalidInput(f"the type of {', '.join(self.names)} has no JSON schema: {error.message}") from None
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, converted to their annotated types.

        Raises:
            ValidationError: pydantic's, with the parameters' own names; `describe` formats it.
        """
        checked = self._model.model_validate(dict(values))
        given = {name: value for name, value in values.items() if name not in self.names} if self.open else {}
        for index, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            if name in values or parameter.filled:
                given[name] = getattr(checked, f"arg{index}")
        return given

    def describe(self, error: ValidationError, prefix: str = "") -> str:
        """A validation error as text: each wrong name, its value, and what is allowed."""
        problems = []
        for item in error.errors(include_url=False):
            name = prefix + ".".join(map(str, item["loc"])) if item["loc"] else "the arguments"
            if item["type"] == "missing":
                problems.append(f"{name} is missing")
            elif item["type"] == "extra_forbidden":
                guess = nearest(str(item["loc"][-1]), self.names)
                hint = f"; did you mean {prefix}{guess}?" if guess else ""
                problems.append(
                    f"{name} = {show_value(item['input'])} is not known{hint} (known: {self._list(prefix)})"
                )
            else:
                message = item["msg"][:1].lower() + item["msg"][1:]
                problems.append(f"{name} = {show_value(item['input'])}: {message}")
        return "; ".join(problems)

    def _list(self, prefix: str) -> str:
        return ", ".join(prefix + name for name in self.names) or "none"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """A callable's type hints, which may name a class that is written within the method's own."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        owner: Any = sys.modules.get(getattr(function, "__module__", None) or "")
        for part in getattr(function, "__qualname__", "").split(".")[:-1]:
            owner = getattr(owner, part, None)
        if not isinstance(owner, type):
            raise
        return typing.get_type_hints(function, localns=dict(vars(owner)), include_extras=True)


def _note(hint: Any) -> str:
    """The text in `Annotated[int, "how many"]`, which many frameworks show as a description."""
    notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((note for note in notes if isinstance(note, str)), "")


def _with_default(hint: Any, default: Any) -> Any:
    """The type of a parameter, which takes None where that is its default: `limit: int = None` is often written."""
    bare = hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
    if default is not None or bare in (Any, object, None, type(None)) or type(None) in typing.get_args(bare):
        return hint
    try:
        return hint | None
    except TypeError:  # what is no type, which pydantic says something of
        return hint


def as_function(target: Any, mark: str) -> Any:
    """The function that a decorator marks, also within a static or a class method.

    Raises:
        InvalidInput: it is none.
    """
    function = target.__func__ if isinstance(target, staticmethod | classmethod) else target
    if inspect.ismethod(function) or not all(hasattr(function, name) for name in ("__dict__", "__qualname__")):
        raise InvalidInput(f"{mark} on {show_value(target)}: a function is wanted, as `def` makes one")
    return function


def find_source(function: Callable[..., Any]) -> Callable[..., Any]:
    """The part of a callable that has its name, docstring and type hints.

    That is the function of a `functools.partial`, and `__call__` of an object.
    """
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.isroutine(function) or isinstance(function, type)
    return function if plain or hasattr(function, "__wrapped__") else type(function).__call__


def show_value(value: Any, most: int = MAX_SHOWN) -> str:
    """A value's repr, cut for messages."""
    text = safe_repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"
