"""From what people type to a typed configuration, and from what is wrong with it to a sentence.

Layers, later ones win: the defaults in `agentrl.config`, an environment's own recipe, a YAML file, the
`key=value` words of the command line. They are merged as plain trees first and validated once, so that a
rule between two fields sees the final values and an error can name the key as the user typed it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config import NAMED, OfPlugin, RunConfig, yaml_settings
from agentrl.config.secrets import without_secrets
from agentrl.config.sections import name_section
from agentrl.errors import AgentRLError, ConfigError, UnknownName, nearest
from agentrl.registry import Registry

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


def parse_words(words: Iterable[str]) -> Tree:
    """A tree from `a.b=value` words; values are YAML scalars or flow collections.

    Raises:
        ConfigError: a word without `=` or with an empty part in its key, or two words for one setting.
    """
    tree: Tree = {}
    given: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.split(".")):
            example = f"env={word if word.isprintable() and not set('= -') & set(word) else 'calculator'}"
            raise ConfigError(f"{word!r} is not a setting; settings look like key=value, for example {example}")
        value = yaml_settings.read_word(text)
        for setting in _leaves(key, value):
            if setting in given:
                raise ConfigError(f"{setting!r} is given twice, as {given[setting]!r} and as {word!r}")
            given[setting] = word
        tree = merge(tree, spread({key: value}))
    return tree


def _leaves(key: str, value: Any) -> Iterator[str]:
    """The settings that a word gives; a section's name goes by the section's own key."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{key}.{name}", below)
    else:
        yield key.removesuffix(".name")


def put(tree: Tree, dotted: str, value: Any) -> None:
    """Set `a.b.c` in a tree; a named section given as plain text becomes {"name": text} on the way."""
    *parents, last = dotted.split(".")
    for parent in parents:
        below = tree.get(parent)
        if not isinstance(below, dict):
            below = {} if below is None else {"name": below}
            tree[parent] = below
        tree = below
    here = tree.get(last)
    if isinstance(here, dict) and not isinstance(value, dict):
        here["name"] = value
    else:
        tree[last] = merge(here, value) if isinstance(here, dict) else value


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> Tree:
    """Two trees as one; where both have a leaf, `high`'s stands."""
    out: Tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in low.items()}
    for key, value in high.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), Mapping | str):
            below = {"name": out[key]} if isinstance(out[key], str) else out[key]
            out[key] = merge(below, value)
        elif isinstance(out.get(key), dict) and isinstance(value, str):
            out[key] = {**out[key], "name": value}
        else:
            out[key] = value
    return out


def read_yaml(path: str | Path) -> Tree:
    """A configuration file's tree; dotted keys in it are spread out.

    Raises:
        ConfigError: it can't be read, is not YAML, is empty, or does not hold a mapping.
    """
    return spread({str(key): value for key, value in yaml_settings.read_file(path).items()})


def merge_settings(words: Sequence[str] = (), file: str | Path | None = None) -> Tree:
    """The user's settings, file and words merged, not validated yet."""
    return merge(read_yaml(file) if file else {}, parse_words(words))


def spread(dotted: Mapping[str, Any]) -> Tree:
    """A tree from dotted keys; a ConfigError says where two of them are for one setting."""
    tree: Tree = {}
    given: set[str] = set()
    for key, value in dotted.items():
        if twice := given & (own := set(_leaves(key, value))):
            raise ConfigError(f"{min(twice)!r} is given twice, by dotted keys and within a section")
        given |= own
        put(tree, key, yaml_settings.to_plain_value(value))
    return tree


def validate(tree: Mapping[str, Any], model: type[M]) -> M:
    """A typed configuration, or a ConfigError (UnknownName) for everything that is wrong with the tree."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        found = error.errors()
        unknown = all(isinstance(one.get("ctx", {}).get("error"), UnknownName) for one in found)
        said = "\n".join(_sentence(one, model, tree) for one in found)
        raise (UnknownName if unknown else ConfigError)(said) from None


def applicable(low: Mapping[str, Any], high: Mapping[str, Any], model: type[BaseModel] = RunConfig) -> Tree:
    """The lower tree without the settings of plug-ins that the higher one replaces by others."""
    kept = dict(low)
    for section, field in model.model_fields.items():
        given, requested = kept.get(section), high.get(section)
        if not isinstance(given, Mapping) or requested is None:
            continue
        mark, below = _marker(field) or _inner_marker(field), _section(field)
        if get_origin(field.annotation) is not dict:
            kept[section] = _own_settings(mark, below, given, requested)
        elif isinstance(requested, Mapping):
            shared = [name for name in given if name in requested]
            kept[section] = {**given, **{n: _own_settings(mark, below, given[n], requested[n]) for n in shared}}
    return kept


def _own_settings(mark: OfPlugin | None, below: type[BaseModel] | None, given: Any, requested: Any) -> Any:
    """A section without the settings of its plug-ins, where others are requested."""
    if mark is None:
        deep = below if isinstance(given, Mapping) and isinstance(requested, Mapping) else None
        return given if deep is None else applicable(given, requested, deep)
    chosen = mark.chosen(merge({"": given}, {"": requested})[""])
    if not isinstance(given, Mapping) or chosen == mark.chosen(given):
        return given
    own = _settings(mark.plugins(), chosen).model_fields
    return {key: value for key, value in given.items() if key in own}


def plugin_sections(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, OfPlugin]:
    """The sections that belong to one plug-in each, by their dotted keys."""
    found: dict[str, OfPlugin] = {}
    for name, field in model.model_fields.items():
        if mark := _marker(field):
            found[prefix + name] = mark
        elif (below := _section(field)) and get_origin(field.annotation) is not dict:
            found |= plugin_sections(below, f"{prefix}{name}.")
    return found


def value_at(tree: Mapping[str, Any], dotted: str) -> Any:
    """Return the value at `a.b.c` in a tree; None where there is none."""
    found: Any = tree
    for key in dotted.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def fields(
    model: type[BaseModel] = RunConfig, tree: Mapping[str, Any] | None = None, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo, str]]:
    """Every setting that there is: its dotted key, its field, the line under it.

    Args:
        model: the configuration's class.
        tree: names the plug-ins whose settings are listed; those that it leaves out are the defaults.
        prefix: put before each key.
    """
    for name, field, (owner, own) in _list_fields(model, tree, prefix):
        yield name, field, _docs(owner).get(own, "")


def _list_names(model: type[BaseModel], tree: Mapping[str, Any]) -> list[str]:
    """The dotted keys of all settings, without the lines under them: these are read from the sources."""
    return [name for name, _, _ in _list_fields(model, tree)]


def _list_fields(
    model: type[BaseModel], tree: Mapping[str, Any] | None = None, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo, tuple[type[BaseModel], str]]]:
    """Each setting's dotted key, its field, and the class and the name under which the line is found."""
    for name, field in model.model_fields.items():
        given = (tree or {}).get(name)
        if mark := _marker_of_values(field):
            for key, one in (given if isinstance(given, Mapping) and given else {"NAME": None}).items():
                yield f"{prefix}{name}.{key}", field, (model, name)
                own = _list_fields(mark.settings(one), prefix=f"{prefix}{name}.{key}.")
                yield from (setting for setting in own if not setting[0].endswith(".name"))
            continue
        section, preset = _section(field, given), _preset_of(field, given)
        if section is None:
            yield prefix + name, field, (model, name)
            continue
        if _is_named(field):
            yield prefix + name, field if field.is_required() else _name_field(field, section), (model, name)
        below = f"{name}.NAME" if get_origin(field.annotation) is dict else name
        if below != name and "name" in section.model_fields:
            yield prefix + below, section.model_fields["name"], (section, "name")
        inside = given if isinstance(given, Mapping) and below == name else None
        for key, inner, place in _list_fields(section, inside, prefix=f"{prefix}{below}."):
            if not key.endswith(".name"):
                yield key, _preset_field(inner, preset, key.rpartition(".")[2]), place


def _preset_of(field: FieldInfo, given: Any) -> Mapping[str, Any]:
    """The settings that a section's place gives its plug-in, where that one is chosen."""
    mark = _marker(field)
    return mark.preset if mark and mark.preset and mark.chosen(given) == mark.preset[mark.key] else {}


def _preset_field(field: FieldInfo, preset: Mapping[str, Any], name: str) -> FieldInfo:
    """The field of a setting, with the default that it has where its section stands."""
    if name not in preset:
        return field
    field = copy(field)
    field.default = preset[name]
    return field


def _name_field(field: FieldInfo, section: type[BaseModel]) -> FieldInfo:
    """The field of a section's name, with the default that the section has where `field` is."""
    name = copy(section.model_fields["name"])
    name.default = getattr(field.default, "name", name.default)
    return name


def _marker(field: FieldInfo) -> OfPlugin | None:
    return next((mark for mark in field.metadata if isinstance(mark, OfPlugin)), None)


def _marker_of_values(field: FieldInfo) -> OfPlugin | None:
    """The mark of a field that has sections by name, each of a plug-in: rewards.NAME."""
    return _inner_marker(field) if get_origin(field.annotation) is dict else None


def _inner_marker(field: FieldInfo) -> OfPlugin | None:
    """The mark of a field's values, or of a section that may be left out: policies.NAME.trainer."""
    values = get_args(field.annotation)
    return next((mark for value in values for mark in get_args(value) if isinstance(mark, OfPlugin)), None)


def _is_named(field: FieldInfo) -> bool:
    """Return whether giving the section a plain string sets its name."""
    return NAMED in field.metadata or ((mark := _marker(field)) is not None and mark.key == "name")


def _section(field: FieldInfo, given: Any = None) -> type[BaseModel] | None:
    if mark := _marker(field):
        return mark.settings(given)
    candidates = (field.annotation, *get_args(field.annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


@cache
def _docs(model: type[BaseModel]) -> dict[str, str]:
    """The strings that stand under the fields of a class and of those that it inherits from."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            docs |= _own_docs(base)
    return docs


@cache
def _own_docs(model: type[BaseModel]) -> dict[str, str]:
    docs: dict[str, str] = {}
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    except OSError:  # not defined in a file
        return docs
    last = ""
    for node in getattr(body, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif last and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs[last], last = str(node.value.value), ""
    return docs


def _sentence(detail: ErrorDetails, model: type[BaseModel], tree: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    value = without_secrets(detail["input"], key)
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(key, value, model, tree)
        case "missing" if key == "env":
            return "the setting 'env' is required, for example env=calculator; `agentrl envs` lists what there is"
        case "missing":
            return f"the setting {key!r} is required"
        case "model_type":
            below = [name for name in _below(key, model, tree) if not name.endswith(".name")]
            field = model.model_fields.get(key)
            named = f"give it a name, as in {key}=NAME" if field is not None and _is_named(field) else ""
            fields_ = f"set its fields: {', '.join(_fold(key, below))}" if below else ""
            return f"{key}={value!r}: this is a section; {', or '.join(filter(None, (named, fields_)))}"
        case "dict_type":
            return f"{key}={value!r}: this is a section; its settings have names, as in {key}.NAME"
        case "value_error" if isinstance(detail.get("ctx", {}).get("error"), AgentRLError):  # a plug-in's
            return name_section(key, detail["msg"].removeprefix("Value error, "))
        case "value_error":  # a rule of ours, between fields
            return (f"{key}: " if key else "") + detail["msg"].removeprefix("Value error, ")
        case "string_type" if isinstance(value, int | float):
            return f"{key}={value!r}: this should be a string; quoted, it is one: {key}='\"{str(value).lower()}\"'"
        case "tuple_type":
            return f'{key}={value!r}: this is a list of values, such as [0.5, 2] or ["layers.?", "head.*"]'
        case _:
            return f"{key}={value!r}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _unknown(key: str, value: Any, model: type[BaseModel], tree: Mapping[str, Any]) -> str:
    if others := _of_another(key, value, model, tree):
        return others
    section, _, last = key.rpartition(".")
    known = _below(section, model, tree) if section else list(model.model_fields)
    places: dict[str, str] = {}
    names = _list_names(model, tree)
    for name in names:
        places.setdefault(name.rpartition(".")[2], name)
    for name in list(places.values()):
        above = name.rpartition(".")[0]
        places.setdefault(above.rpartition(".")[2], above)
    like = nearest(last, [name.rpartition(".")[2] for name in known])
    here = next((name for name in known if name.rpartition(".")[2] == like), None)
    inside = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else ""
    place = places.get(last)
    if place is not None and inside and f"{place}.{inside}" not in names:
        place = places.get(inside, place)  # what it holds is known elsewhere
    guess = here if like and like.startswith(last) else place or here
    hint = f"; did you mean {guess!r}?" if guess else ""
    where = f"in {section}" if section else "here"
    return f"unknown setting {key!r} (value {value!r}){hint} Known {where}: {', '.join(_fold(section, known))}"


def _of_another(key: str, value: Any, model: type[BaseModel], tree: Mapping[str, Any]) -> str:
    """Tell of a setting that it belongs to another plug-in than the chosen one; '' where it belongs to none."""
    sections = plugin_sections(model)
    section = next((section for section in sections if key.startswith(f"{section}.")), None)
    if section is None:
        return ""
    first = key.removeprefix(f"{section}.").partition(".")[0]
    registry, chosen = sections[section].plugins(), sections[section].chosen(value_at(tree, section))
    if first in _settings(registry, chosen).model_fields:
        return ""
    others = (name for name in sorted(registry.known()) if name != chosen)
    owners = [name for name in others if first in _settings(registry, name).model_fields]
    named = " and ".join(f"{registry.setting}={name}" for name in owners)
    return f"{key}={value!r} belongs to {named}, not {registry.setting}={chosen}" if owners else ""


def _settings(registry: Registry[Any], name: str) -> type[BaseModel]:
    try:
        return registry.settings(name)
    except AgentRLError:  # a broken package has no say here
        return registry.base


def _below(section: str, model: type[BaseModel], tree: Mapping[str, Any]) -> list[str]:
    first, *path = section.split(".")
    by_name = path and get_origin(model.model_fields[first].annotation) is dict
    if by_name and not _marker_of_values(model.model_fields[first]):  # policies.NAME.model
        generic, own = ".".join([first, "NAME", *path[1:], ""]), f"{first}.{path[0]}."
        names = [name for name in _list_names(model, tree) if name.startswith(generic)]
        if not names and (mark := _optional_marker(model.model_fields[first], path[-1])):  # policies.NAME.algo
            below = _list_fields(mark.settings(value_at(tree, section)), prefix=f"{section}.")
            return [name for name, _, _ in below if not name.endswith(".name")]
        return [own + name.removeprefix(f"{first}.NAME.") for name in names]
    return [name for name in _list_names(model, tree) if name.startswith(section + ".")]


def _optional_marker(field: FieldInfo, name: str) -> OfPlugin | None:
    """The mark of a section that may be left out, in sections by name."""
    within = get_args(field.annotation)[1].model_fields.get(name)
    return _inner_marker(within) if within else None


def _fold(section: str, names: Iterable[str]) -> list[str]:
    """Settings of a section; those of sections within it are one entry, such as `algo.correction.*`."""
    depth = section.count(".") + 1 if section else 0
    cut = ([name] if name.count(".") <= depth else [*name.split(".")[: depth + 1], "*"] for name in names)
    return list(dict.fromkeys(".".join(parts) for parts in cut))
