"""Secret settings: they are used, and never written, shown or sent to anybody else.

A setting that may hold a secret is declared by its type: `Secret` (or pydantic's `SecretStr`), `Secrets` for headers
and environments, whose values are secret as a whole, and `Command`, whose options lose their values. Every address
loses its user, its query and a fragment with a value, wherever it stands. So a declaration says what may be written,
and not what looks like a key.

Settings without a type (an environment's own, an option of a server) are secret by their names besides (`is_secret`).

The values of what is declared are known to the process as soon as a section is built (`know`), and `scrub` takes them
out of what others write about them: errors, logs, spans.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeGuard, get_args
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, SecretStr

HIDDEN = "(hidden)"
"""Stands for a secret in whatever is written."""
SHORTEST = 6
"""Characters of the shortest value that `scrub` takes out of a text wherever it stands."""
SHORTEST_WORD = 3
"""Of a declared secret that it takes out where it stands as a word; words of one or two letters are everywhere."""
MOST = 4096
"""Values that a process knows; the oldest are forgotten."""


class Hide(StrEnum):
    """The hidden part of a declared setting."""

    WHOLE = "whole"
    COMMAND = "command"


Secret = Annotated[str, Hide.WHOLE]
"""A text that is secret."""
Secrets = Annotated[dict[str, str], Hide.WHOLE]
"""Names with secret values: HTTP headers, environment variables."""
Command = Annotated[str, Hide.COMMAND]
"""A command line; the values of its options may be secret."""

_NAME = re.compile(
    r"(^|[._-])((api|admin|access|account|private|secret|signing|license)[_-]?key([_-]?id)?|secret|pass|pwd|token|pat|cookies?"
    r"|authorization|auth|bearer|credentials?|dsn|connection[_-]?string|session[_-]?id|sas)$"
    r"|(password|passwd|passphrase|secret|apikey|credentials)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WHOLE = re.compile(r"(^|[._-])(headers|cookies|environ|environment)$|\.env$", re.IGNORECASE)
_BELOW = re.compile(r"\.(env|headers|cookies)\.", re.IGNORECASE)
_INSIDE = re.compile(r"(?:[a-zA-Z][\w+.-]*:|(?<![^\s'\"=,]))//[^\s'\"<>]+")
_NUMBER = re.compile(r"-?\d{1,5}(\.\d+)?")
_PACKAGE = re.compile(r"@[\w.-]+/[\w.@-]+|[\w./-]*\{(folder|session)\}[\w./-]*")

_known: dict[str, None] = {}
_words: dict[str, None] = {}
_constructors: dict[str, frozenset[str]] = {}


# ---------------------------------------------------------------------------------------------- what is hidden


def is_secret(name: str, value: Any) -> bool:
    """Return whether a (dotted) setting's name says that it is secret; what is no text is none."""
    named = _CAMEL.sub("_", name)
    return isinstance(value, str) and bool(value) and bool(_NAME.search(named) or _BELOW.search(name))


def without_secrets(value: Any, name: str = "") -> Any:
    """A tree of settings without their types, in which each secret is `HIDDEN`: by names, and of each address."""
    if isinstance(value, Mapping):
        if name and _WHOLE.search(name):
            return _hide(value)
        return {key: without_secrets(below, f"{name}.{key}" if name else str(key)) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if is_secret(name, value):
        return HIDDEN
    return _INSIDE.sub(lambda found: address(found[0]), value) if _is_address(value) else value


def public(section: BaseModel) -> dict[str, Any]:
    """A section of the configuration as plain data, without what its fields declare or their names tell."""
    found: dict[str, Any] = without_secrets(_drop_declared(section, section.model_dump(mode="json")))
    return found


def _drop_declared(value: Any, dumped: Any) -> Any:
    """Return what a value was dumped to, without what its fields declare."""
    if isinstance(value, BaseModel) and isinstance(dumped, Mapping):
        hides = _declarations(value)
        return {
            name: hide(below) if (hide := hides.get(name)) else _drop_declared(getattr(value, name, None), below)
            for name, below in dumped.items()
        }
    if isinstance(value, Mapping) and isinstance(dumped, Mapping):
        return {name: _drop_declared(value.get(name), below) for name, below in dumped.items()}
    if isinstance(value, list | tuple) and isinstance(dumped, list):
        return [_drop_declared(one, below) for one, below in zip(value, dumped, strict=True)]
    return HIDDEN if isinstance(value, SecretStr) else dumped


def _declarations(section: BaseModel) -> Mapping[str, Callable[[Any], Any] | None]:
    """Return how each field of a section is hidden, an environment's arguments included."""
    hides = _of_class(type(section))
    if not section.model_extra:
        return hides
    return {**hides, **dict.fromkeys(_constructors.get(str(getattr(section, "name", "")), ()), _hide)}


@lru_cache(maxsize=512)
def _of_class(section: type[BaseModel]) -> Mapping[str, Callable[[Any], Any] | None]:
    return {name: declaration(field.annotation, field.metadata) for name, field in section.model_fields.items()}


def declaration(annotation: Any, metadata: Iterable[Any] = ()) -> Callable[[Any], Any] | None:
    """Return how a type's secret is hidden; None where it declares nothing."""
    marks = {*(each for each in metadata if isinstance(each, Hide)), *_marks(annotation)}
    if Hide.COMMAND in marks:
        return command
    return _hide if marks else None


def _marks(annotation: Any) -> Iterator[Hide]:
    if annotation is SecretStr or annotation is Hide.WHOLE:
        yield Hide.WHOLE
    elif annotation is Hide.COMMAND:
        yield Hide.COMMAND
    for part in get_args(annotation):
        yield from _marks(part)


def _is_address(value: Any) -> TypeGuard[str]:
    """Return whether it is an address, or a name with one behind it (`openenv:http://…`); a text with one is not."""
    begins = isinstance(value, str) and ("://" in value or value.startswith("//"))
    return begins and not any(map(str.isspace, value))


def _hide(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hide(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(item) for item in value]
    return HIDDEN if isinstance(value, SecretStr) or (isinstance(value, str) and value) else value


def address(url: str) -> str:
    """An address without its user, its query, its parameters (`;name=value`), and a fragment that has a value."""
    scheme, mark, rest = url.partition("//")
    rest, hash_, fragment = rest.partition("#")
    rest, question, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    place, semicolon, parameters = f"{host}{slash}{path}".partition(";")
    shown = f"{scheme}{mark}{HIDDEN if user else ''}{at}{place}{semicolon}{HIDDEN if '=' in parameters else parameters}"
    return f"{shown}{question}{HIDDEN if query else ''}{hash_}{HIDDEN if '=' in fragment else fragment}"


def command(line: Any) -> Any:
    """A command line, in which its options, and what is assigned, have no values: but for short numbers and files."""
    if not isinstance(line, str):
        return line
    if _is_file(line.rpartition(":")[0] or line):
        return line
    parts = list(_parts(line))
    if all(part == shown for part, shown in parts):
        return line
    return " ".join(shown if HIDDEN in shown and " " not in shown else shlex.quote(shown) for _, shown in parts)


def _parts(line: str) -> Iterator[tuple[str, str]]:
    """The parts of a command line, and what is shown of each."""
    try:
        parts = shlex.split(line)
    except ValueError:
        parts = line.split()
    after_option = False
    for part in parts:
        name, equals, value = part.partition("=")
        shown = part
        if _INSIDE.search(part):
            shown = f"{name}={HIDDEN}" if equals and "://" not in name else _INSIDE.sub(lambda m: address(m[0]), part)
        elif equals and value and not _plain(value):
            shown = f"{name}={HIDDEN}"
        elif part.startswith("-") and not part.startswith("--") and len(set(part[1:])) > 1 and not _plain(part[2:]):
            shown = f"{part[:2]}{HIDDEN}"
        elif after_option and not part.startswith("-") and not _plain(part):
            shown = HIDDEN
        yield part, shown
        after_option = part.startswith("-") and not equals and part not in ("-m", "-y", "--yes", "--")


def _plain(value: str) -> bool:
    return bool(_NUMBER.fullmatch(value) or _PACKAGE.fullmatch(value)) or _is_file(value)


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def list_hidden(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of the settings of which something was hidden."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from list_hidden(value, f"{prefix}{key}.")
        elif _holds_hidden(value):
            yield f"{prefix}{key}"


def _holds_hidden(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return any(map(_holds_hidden, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and HIDDEN in value


# --------------------------------------------------------------------------------------------- what is known


def secret_values(value: Any, name: str = "") -> Iterator[str]:
    """The secrets in a section, or in a tree of settings."""
    if isinstance(value, BaseModel):
        yield from own_values(value, deep=True)
    elif isinstance(value, Mapping):
        for key, below in value.items():
            if name and _WHOLE.search(name):
                yield from _texts(below)
            else:
                yield from secret_values(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secret_values(item, name)
    elif isinstance(value, SecretStr) or is_secret(name, value):
        yield from _texts(value)
    elif _is_address(value):
        yield from (text for found in _INSIDE.findall(value) for text in _of_address(found))


def own_values(section: BaseModel, *, deep: bool = False) -> Iterator[str]:
    """The secrets in a section's own fields; `deep`: in the sections below it as well."""
    hides = _declarations(section)
    for key, below in [*section.__dict__.items(), *(section.model_extra or {}).items()]:
        hide = hides.get(key)
        if hide is command:
            yield from _of_command(below)
        elif hide is not None:
            yield from _texts(below)
        elif deep or not isinstance(below, BaseModel | int | float | None):
            yield from secret_values(below, key)


def declared_values(section: BaseModel) -> Iterator[str]:
    """The texts in a section's fields that are declared secret, but for mappings: words are among their values."""
    for key, hide in _declarations(section).items():
        value = {**section.__dict__, **(section.model_extra or {})}.get(key)
        if hide is _hide and isinstance(value, str | SecretStr):
            yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for below in value.values():
            yield from _texts(below)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        yield value
        yield from (part for part in re.split(r"[\s;,=]+", value) if len(part) >= 2 * SHORTEST)


def _of_address(url: str) -> Iterator[str]:
    rest = url.partition("//")[2]
    if user := rest.partition("/")[0].rpartition("@")[0]:
        yield from (user, *(part for each in user.split(":")[1:] for part in (each, unquote(each))))
    parameters = rest.partition("#")[0].partition("?")[0].partition(";")[2]
    yield from (part.partition("=")[2].partition("/")[0] for part in parameters.split(";"))
    for query in (rest.partition("#")[0].partition("?")[2], rest.partition("#")[2]):
        yield from (value for _, value in parse_qsl(query))
        yield from (part.partition("=")[2] for part in query.split("&"))


def _of_command(line: Any) -> Iterator[str]:
    if isinstance(line, str):
        for part, shown in _parts(line):
            if part != shown:
                yield from _texts(part.partition("=")[2] or part.removeprefix(shown.removesuffix(HIDDEN)) or part)
                yield from (value for found in _INSIDE.findall(part) for value in _of_address(found))


def declare(name: str, types: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Note which arguments of an environment's constructor declare that they are secret, and their values."""
    names = frozenset(argument for argument, kind in types.items() if declaration(kind))
    _constructors[name] = names
    texts = [value for argument in names if isinstance(value := given.get(argument), str | SecretStr)]
    know((text for value in texts for text in _texts(value)), declared=True)
    know(text for argument in names for text in _texts(given.get(argument)))
    know(secret_values(given, "env"))


def know(values: Iterable[str], declared: bool = False) -> None:
    """Have `scrub` take these values out, in this process; short ones only where they are declared to be secret."""
    for value in values:
        if len(value) >= SHORTEST and value != HIDDEN:
            _known[value] = None
        elif declared and len(value) >= SHORTEST_WORD:
            _words[value] = None
    while len(_known) > MOST:
        del _known[next(iter(_known))]


def scrub(text: str, values: Iterable[str] = ()) -> str:
    """A text without the secrets that this process knows, and without these."""
    found = {*_known, *(value for value in values if len(value) >= SHORTEST)}
    for secret in sorted(found, key=len, reverse=True) if found else ():
        if secret in text:
            text = text.replace(secret, HIDDEN)
    if any(word in text for word in tuple(_words)):
        text = re.sub(
            rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(_words, key=len, reverse=True)))})(?!\w)", HIDDEN, text
        )
    return text
