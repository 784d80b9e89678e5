"""Settings that were given and have no effect.

A section declares which of its settings are read only with others of it (`Section.only_with`); what follows from other
sections is declared by those who read both (`UseRule`). Only what the user gave, and not the default, is
looked at: defaults, an environment's recipe and a resumed run's own settings are nobody's mistake.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentrl.config.secrets import without_secrets
from agentrl.config.sections import OfPlugin, Section
from agentrl.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UseRule:
    """Settings that are read only under a condition.

    Attributes:
        condition: of settings, by their dotted names (`read_condition`), or the words that follow "has no effect".
        settings: by their dotted names, separated by blanks, or sections; `a.b=value`: only with this value.
        holds: tells of a configuration whether they are read; None: the condition does.
    """

    condition: str
    settings: str
    holds: Callable[[Any], object] | None = None

    def refuses(self, config: Any) -> str:
        """Return why the settings have no effect; '' where they have one."""
        if self.holds is None:
            return read_condition(self.condition, config)
        return "" if self.holds(config) else self.condition


def list_unused(
    config: BaseModel,
    given: Mapping[str, Any],
    rules: Iterable[UseRule] = (),
    *,
    but: Mapping[str, Any] | None = None,
    own: bool = True,
    harmless: Iterable[str] = (),
) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each of the given settings that has no effect, and whether it is only to be told of.

    That is so of harmless ones, and where what it lacks is switched off by name, as by `warm_start.steps=0` on the line
    where a file has more of `warm_start`.

    Args:
        config: with these settings and all others.
        given: a tree of settings.
        rules: those between sections.
        but: a tree of settings that are not looked at where the given ones are the same.
        own: look at those within a section as well.
        harmless: names of settings and sections.
    """
    rules, harmless, leaves = tuple(rules), tuple(harmless), dict(list_leaves(given))
    off = {key for key, value in leaves.items() if value in (0, None, "none")}
    same = {key for key, value in list_leaves(but or {}) if leaves.get(key) == value}
    for key in (key for key in leaves if key not in same):
        path = key.split(".")
        owners = list(_walk(config, path))
        if not owners or _is_default(*owners[-1], whole=len(owners) == len(path)):
            continue
        value = _value(*owners[-1])
        reasons = [_explain(owner, name, path[:depth]) for depth, (owner, name) in enumerate(owners) if own]
        reasons += [each.refuses(config) for each in rules if _is_of(key, value, each)]
        if why := next(filter(None, reasons), ""):
            lacks = {*re.findall(r"[\w.-]+", why)} if why.startswith("without ") else set()
            told = bool(lacks & off) or is_within(re.sub(r"^policies\.[^.]+\.", "", key), harmless)
            yield f"{key}{_show(key, value) if len(owners) == len(path) else ''} has no effect {why}", told


def refuse(found: Iterable[tuple[str, bool]]) -> None:
    """Refuse settings without effect, as `list_unused` finds them, but for those that are only to be told of.

    Raises:
        ConfigError: it names each, and why.
    """
    found = [*found]
    if wrong := [said for said, told in found if not told]:
        raise ConfigError("\n".join(f"{said}: leave it out" for said in wrong))
    for said, _ in found:
        _log.warning("%s", said)


def list_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names of a tree's values, a section's name by the section's own, and the values."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from list_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}".removesuffix(".name"), value


def is_within(key: str, names: Iterable[str]) -> bool:
    """Return whether a setting is one of these, or in one of these sections."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def read_condition(condition: str, section: Any, prefix: str = "") -> str:
    """Return why a condition does not hold ("without algo.kl_coef", "with fleet.urls"); '' where it does.

    It has parts joined by ` and `, each of settings joined by ` or `: a name alone is for any value that is true,
    `name=a|b` for one of these, in a list too, and `!` before it for the contrary.
    """
    for part in condition.split(" and "):
        terms = part.split(" or ")
        if not any(_is_true(term, section) for term in terms):
            names = " or ".join(f"{prefix}{term.removeprefix('!')}".replace(".name=", "=") for term in terms)
            return f"{'with' if part.startswith('!') else 'without'} {names}"
    return ""


def _is_true(term: str, section: Any) -> bool:
    name, _, wanted = term.removeprefix("!").partition("=")
    value = section
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    values = [str(each).lower() for each in (value if isinstance(value, tuple) else (value,))]
    found = any(each in values for each in wanted.split("|")) if wanted else bool(value)
    return found is not term.startswith("!")


def _walk(config: Any, path: list[str]) -> Iterator[tuple[Any, str]]:
    """Yield each section or mapping along a path with the name that is looked up in it, as deep as there are any."""
    for name in path:
        if isinstance(config, Section):
            name = config.renamed.get(name, name)
        if name not in (config if isinstance(config, Mapping) else getattr(type(config), "model_fields", ())):
            return
        yield config, name
        config = config[name] if isinstance(config, Mapping) else getattr(config, name)


def _value(owner: Any, name: str) -> Any:
    value = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
    return getattr(value, "name", value) if isinstance(value, Section) else value


def _show(name: str, value: Any) -> str:
    value = without_secrets(value, name)
    if isinstance(value, bool):
        return f"={str(value).lower()}"
    return f"={value:g}" if isinstance(value, float) else f"={value}" if isinstance(value, str | int) else ""


def _is_default(owner: Any, name: str, *, whole: bool) -> bool:
    """Return whether a setting has its default; one that is a mapping's own entry has none."""
    if isinstance(owner, Mapping) or not whole:
        return False
    field = type(owner).model_fields[name]
    default = field.get_default(call_default_factory=True)
    mark = next((each for each in field.metadata if isinstance(each, OfPlugin)), None)
    if mark is not None:
        default = mark.chosen(default)
    return bool(_value(owner, name) == getattr(default, "name", default))


def _explain(owner: Any, name: str, above: list[str]) -> str:
    """Return why a section does not read one of its settings, by its own rules; '' where it does."""
    prefix = "".join(f"{each}." for each in above)
    declared = (vars(base).get("only_with", {}) for base in type(owner).__mro__)
    conditions = (each[name] for each in declared if name in each)
    return next(filter(None, (read_condition(each, owner, prefix) for each in conditions)), "")


def _is_of(key: str, value: Any, rule: UseRule) -> bool:
    return any(
        is_within(key, (name,)) and (not wanted or value == wanted)
        for name, _, wanted in (each.partition("=") for each in rule.settings.split())
    )
