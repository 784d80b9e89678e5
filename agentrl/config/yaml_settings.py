"""YAML as settings are typed in it: what YAML 1.1 reads otherwise than it looks is what it looks like.

`1e-5` is a number. `010`, `1:30` and `2024-01-01` are text, not 8, 90 and a date; settings that are numbers read `010`
as 10. `yes`, `no`, `on` and `off` are text that a setting which is true or false takes, and an answer or an environment
variable can be. A key that stands twice is an error, as it is on the command line.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from agentrl.common.plain import plain
from agentrl.errors import ConfigError

SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
"""The words for true and false besides these two."""


MOST_VALUES = 100_000
"""Of a document, each counted as often as aliases repeat it: ten lines can stand for more than any memory holds."""


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        is_alias, before = self.check_event(yaml.AliasEvent), self._values
        self._values += not is_alias
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is None:
            return None
        if is_alias:  # of a node that is still open: it would hold itself
            self._values += self._sizes.get(id(node), MOST_VALUES + 1)
        else:
            self._sizes[id(node)] = self._values - before
        if self._values > MOST_VALUES:
            words = f"it stands for more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=words, problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


class _WordLoader(_Loader):
    def fetch_alias(self) -> None:
        """Read `*` as text: a word holds no aliases, but may hold patterns, as in `[*.q_proj,*.v_proj]`."""
        self.fetch_plain()


_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0b[01_]+|0x[0-9a-fA-F_]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]{1,3})?|[0-9][0-9_]*[eE][-+]?[0-9]{1,3})"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
}
_Loader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), list(_first))


def read(text: str) -> Any:
    """Read a text in YAML.

    Raises:
        yaml.YAMLError: it is none; a `yaml.MarkedYAMLError` says where.
    """
    return _take(yaml.load, text)


def _take(read_by: Callable[[str, type[yaml.SafeLoader]], Any], text: str, loader: type[_Loader] = _Loader) -> Any:
    try:
        return read_by(text, loader)
    except RecursionError:
        raise yaml.YAMLError("it nests too deeply") from None


def read_word(text: str) -> Any:
    """Read a value of the command line: YAML where all of it is a value, and else the text as it is.

    A path or a sentence may look like YAML that drops or joins parts of it: comments (`task #3`), anchors, tags, blocks
    (`|`), the folding of lines, and `{folder}`, a placeholder, as a mapping without values.
    """
    try:
        node, value = (_take(read_by, text, _WordLoader) for read_by in (yaml.compose, yaml.load))
    except (yaml.YAMLError, ValueError, OverflowError):
        return text
    if isinstance(node, yaml.ScalarNode):
        is_whole = node.value == text.strip() if node.style is None else node.style in "'\"" and _spans(node, text)
    elif isinstance(value, dict) and value and ":" not in text and not any(value.values()):
        is_whole = False
    else:
        is_whole = isinstance(node, yaml.CollectionNode) and (not node.flow_style or _spans(node, text))
    return value if is_whole else text


def _spans(node: yaml.Node, text: str) -> bool:
    """Return whether a node is all of a text but the spaces around it."""
    return not text[: node.start_mark.index].strip() and not text[node.end_mark.index :].strip()


@lru_cache(maxsize=2)
def _read_once(text: str) -> Any:
    """A run that is resumed reads its settings three times, and each takes 50 ms."""
    return read(text)


def read_file(path: str | Path) -> dict[Any, Any]:
    """Read a file of settings.

    Raises:
        ConfigError: it can't be read, is no text, is not YAML, is empty, or does not hold a mapping.
    """
    name = repr(str(path))
    try:
        found = copy.deepcopy(_read_once(Path(path).read_bytes().decode()))
    except OSError as error:
        raise ConfigError(f"can't read the configuration file {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text in UTF-8: {error.reason} at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{name} is not YAML: {in_one_line(error)}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name} is not YAML: {str(error).splitlines()[0]}") from None
    if found is None:
        raise ConfigError(f"{name} holds no settings: it is empty, or all of it is comments ({{}} stands for none)")
    if not isinstance(found, dict):
        raise ConfigError(
            f"{name} must hold a mapping of settings, such as env: calculator, not a {type(found).__name__}"
        )
    return found


class _Dumper(yaml.SafeDumper):
    """Quotes text that either reading takes for something else."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *_Loader.yaml_implicit_resolvers.get(first, ())]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def write(settings: Mapping[str, Any]) -> str:
    """The settings as YAML, from which `read` and other readers get the same."""
    text: str = yaml.dump(dict(settings), Dumper=_Dumper, sort_keys=False)
    return text


def to_plain_value(value: Any) -> Any:
    """A setting that a script gives, with numbers of other libraries as numbers and paths as text."""
    if isinstance(value, Mapping):
        return {key: to_plain_value(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(to_plain_value, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    scalar = getattr(value, "shape", None) == () or type(value).__name__ in ("Decimal", "Fraction")
    return plain(value) if scalar else value


def in_one_line(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong with a text that is not YAML, and where."""
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    quoted = "quote a text that begins with *" if error.context == "while scanning an alias" else None
    return where + ", ".join(filter(None, (error.context, error.problem, quoted)))
