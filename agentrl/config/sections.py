"""Building blocks of the configuration's sections: frozen, typed, chosen by name, or owned by a plug-in."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import core_schema

from agentrl.common.imports import load
from agentrl.config.secrets import declared_values, know, own_values, public
from agentrl.errors import ConfigError, UnknownName, UntrustedCode
from agentrl.types import LEAST_TEMPERATURE

if TYPE_CHECKING:
    from agentrl.registry import Registry


def _check_temperature(value: float) -> float:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError(f"must be 0 (greedy), or at least {LEAST_TEMPERATURE}, below which engines draw otherwise")
    return value


Fraction = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=0), AfterValidator(_check_temperature)]
Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
_log = logging.getLogger(__name__)
_told: set[tuple[type, str]] = set()


class Section(BaseModel):
    """A frozen part of the configuration; unknown keys are errors, and so are numbers that are not finite.

    Attributes:
        renamed: earlier names of fields, which are accepted and logged.
        only_with: conditions, of others of its settings, without which settings have no effect, by the settings' names;
            `agentrl.config.unused.read_condition` says how they are written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    renamed: ClassVar[Mapping[str, str]] = {}
    only_with: ClassVar[Mapping[str, str]] = {}

    def model_post_init(self, context: Any) -> None:
        """Let this process know the secrets, to keep them out of what others write (`secrets.scrub`)."""
        know(own_values(self))
        know(declared_values(self), declared=True)

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Do so also where the section came from another process."""
        super().__setstate__(state)
        know(own_values(self))
        know(declared_values(self), declared=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        shown = public(self)
        yield from ((name, shown.get(name, value)) for name, value in super().__repr_args__() if name is not None)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Build what validates a plug-in's own settings with its module: what is wrong with them is said there.

        That of agentrl's own is built where it is first needed (`defer_build`): a command needs few of them.
        """
        if not cls.__module__.startswith("agentrl."):
            cls.model_rebuild()

    @model_validator(mode="before")
    @classmethod
    def _truth_values_are_no_numbers(cls, data: Any) -> Any:
        """Refuse true and false where a number is expected, by reading them as text: pydantic takes true for 1."""
        if not isinstance(data, Mapping) or not any(isinstance(value, bool) for value in data.values()):
            return data
        return {name: str(value).lower() if cls._is_wrong(name, value) else value for name, value in data.items()}

    @model_validator(mode="before")
    @classmethod
    def _empty_is_not_left_out(cls, data: Any) -> Any:
        """Refuse an empty text for one of agentrl's own that may be left out: `resume=$RUN` of an unset variable."""
        for name in data if isinstance(data, Mapping) and cls.__module__.startswith("agentrl.") else ():
            field = cls.model_fields.get(name) if data[name] == "" else None
            if field is not None and _kinds(field.annotation) == {str, type(None)}:
                raise ValueError(_describe_empty(name))
        return data

    @model_validator(mode="before")
    @classmethod
    def _accept_earlier_names(cls, data: Any) -> Any:
        """Read a setting by its earlier name; both names at once are refused: which is meant is not known."""
        old = cls.renamed.keys() & data.keys() if isinstance(data, Mapping) else ()
        for name in old:
            new = cls.renamed[name]
            if new in data:
                raise ValueError(f"{name} is called {new} now, and both are given: give {new} alone")
            if (cls, name) not in _told:
                _told.add((cls, name))
                _log.warning("the setting %s is called %s now", name, new)
        return {cls.renamed.get(name, name): value for name, value in data.items()} if old else data

    @classmethod
    def _is_wrong(cls, name: str, value: Any) -> bool:
        field = cls.model_fields.get(name)
        kinds = _kinds(field.annotation) if field is not None and isinstance(value, bool) else set()
        return bool not in kinds and bool(kinds & {int, float})

    @classmethod
    def completed(cls, config: Section | None, name: str) -> Self:
        """A plug-in's settings: missing ones, all with None or those that a base class lacks, get their defaults."""
        if config is None:
            return cls.model_validate({"name": name})
        return config if isinstance(config, cls) else cls.model_validate(config.model_dump())


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation allows at its top."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {annotation}


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""The path of a file or folder, in which `~` stands for the user's."""
NAMED = BeforeValidator(_by_name)
LISTED = BeforeValidator(_as_list)
"""Of a tuple of texts: one text alone is a tuple of one."""


def _describe_empty(key: str) -> str:
    return f"{key}='' is empty; give it a value, or leave it out"


def named_folder(settings: Mapping[str, Any], key: str) -> str | None:
    """Return the folder that settings name which are not validated yet, with `~` as the user's; None: they name none.

    Raises:
        ConfigError: the name is empty, as that of an unset variable is.
    """
    name = settings.get(key)
    if name == "":
        raise ConfigError(_describe_empty(key))
    return None if name is None else os.path.expanduser(str(name))


def name_section(key: str, said: str) -> str:
    """Return what is wrong with a plug-in with its section as it was given: `policies.b.trainer`, not `trainer`.

    Args:
        key: the section's dotted key.
        said: names the plug-in's kind, or the setting by which the kind is usually chosen.
    """
    above, _, last = key.rpartition(".")
    if not above or said.startswith(key):
        return said
    if said.startswith(f"{above}.NAME"):
        return key + said.removeprefix(f"{above}.NAME")
    return f"{above}.{said}" if said.startswith((f"{last}=", f"{last}.")) else f"{key}: {said}"


@functools.cache
def _by_name_only(base: type[BaseModel]) -> type[BaseModel]:
    return type(f"{base.__name__}ByName", (base,), {"model_config": ConfigDict(extra="allow"), "__module__": __name__})


class _UnknownPlugin(UnknownName, ValueError):
    """An UnknownName to which pydantic adds the place of its section."""


@dataclass(frozen=True)
class OfPlugin:
    """Marks a section that belongs to a plug-in: its class is the chosen plug-in's own `settings`.

    The section's field type is what all plug-ins of the kind have.

    Attributes:
        registry: the import path of the kind's `Registry`: this layer imports nothing from those above it.
        key: the section's field that names the plug-in.
        preset: the plug-in of a section that names none, and settings of it that are other than its own defaults; None:
            what the kind's settings have as default.
    """

    registry: str
    key: str = "name"
    preset: Mapping[str, Any] | None = None

    def plugins(self) -> Registry[Any]:
        """The registry itself."""
        found: Registry[Any] = load(self.registry, self.registry)
        return found

    def chosen(self, section: Any) -> str:
        """The name of the plug-in that a section (a name, a mapping, or a built one) chooses.

        '' where it names none, and the kind has no default.
        """
        if isinstance(section, str):
            return section
        name = section.get(self.key) if isinstance(section, Mapping) else getattr(section, self.key, None)
        if isinstance(name, str):
            return name
        if self.preset is not None:
            return str(self.preset[self.key])
        field = self.plugins().base.model_fields[self.key]
        return "" if field.is_required() else str(field.default)

    def settings(self, section: Any) -> type[BaseModel]:
        """The class of the settings of the plug-in that a section chooses.

        Where only names are wanted (`agentrl.common.imports.names_only`), a plug-in that is an import path has the
        settings of its kind, and any others.
        """
        registry, chosen = self.plugins(), self.chosen(section)
        try:
            return registry.settings(chosen) if chosen else registry.base
        except UntrustedCode:
            return _by_name_only(registry.base)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Build the section by the plug-in's class, and write all of its fields out again."""
        return core_schema.no_info_before_validator_function(self.build, handler(source))

    def build(self, section: Any) -> Any:
        """The section (a name, a mapping, or one of the base class) as an instance of the plug-in's own class.

        Raises:
            UnknownName: there is no such plug-in.
            ValueError: it names none, and there is no default.
            ValidationError: it does not have these settings.
        """
        if isinstance(section, str) and self.key != "name":
            return section  # no section, as the validation of its fields says
        if not self.chosen(section):
            registry = self.plugins()
            raise ValueError(f"no {registry.kind} is named; {registry.setting}=path/to/file.py:Class names one")
        try:
            own = self.settings(section)
        except UnknownName as error:
            setting = self.plugins().setting
            said = str(error)  # a section that a plug-in's name is only a part of does not name it
            by_key = self.key == "name" or said.startswith(f"{setting}=")
            raise _UnknownPlugin(said if by_key else f"{setting}: {said}") from None
        if isinstance(section, own):
            return section
        if isinstance(section, BaseModel):  # of the base class: copy what was set
            section = {name: getattr(section, name) for name in section.model_fields_set}
        section = _by_name(section)
        if isinstance(section, Mapping) and self.preset and self.chosen(section) == self.preset[self.key]:
            section = {**self.preset, **section}
        return own.model_validate(section) if isinstance(section, Mapping) else section
