"""The pages that are made of the code: settings, commands and the Python interface.

`docs/site.py` has this run by the Python that agentrl is installed for, since the site's own has mkdocs alone. It
prints a JSON object of pages by path; none of them is kept in the repository.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import docstring_parser
import typer.main
from pydantic import BaseModel

import agentrl
from agentrl import plugins
from agentrl.cli import PLUGINS, app
from agentrl.common.imports import load
from agentrl.config import RunConfig
from agentrl.overrides import fields

HEAD = "| setting | default | what it is |\n|---|---|---|\n"


def cell(text: object) -> str:
    """Text within a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("\x00", "␀")


def row(name: str, field: Any, doc: str) -> str:
    """The row of a setting."""
    default = "required" if field.is_required() else repr(field.get_default(call_default_factory=False))
    return f"| `{name}` | `{cell(default)[:60]}` | {cell(doc)} |\n"


def settings() -> Iterator[str]:
    """The page of a run's settings: each section, then those of the plug-ins that have their own."""
    yield "# Settings\n\nEach is `key=value` for `agentrl train` and `agentrl eval`, and a key of a YAML file (`-c`). "
    yield "`agentrl train --help` prints the same.\n\n"
    sections: dict[str, list[str]] = {}
    for name, field, doc in fields(RunConfig):
        section, _, below = name.partition(".")
        sections.setdefault(section if below else "", []).append(row(name, field, doc))
    plain = sections.pop("")
    yield f"## A run\n\n{HEAD}{''.join(plain)}\n"
    for section, rows in sections.items():
        yield f"## `{section}`\n\n{HEAD}{''.join(rows)}\n"
    for kind in PLUGINS:
        registry = load(kind, kind)
        for info in registry.list():
            model: type[BaseModel] | None = None if info.error else registry.settings(info.name)
            own = [] if model is None else [one for one in fields(model) if one[0] not in registry.base.model_fields]
            if own:
                section = registry.setting.removesuffix(".name")
                yield f"## `{registry.setting}={info.name}`\n\n{HEAD}"
                yield "".join(row(f"{section}.{name}", field, doc) for name, field, doc in own) + "\n"


def commands() -> Iterator[str]:
    """The page of all commands."""
    yield "# Command line\n\nSettings are `key=value`; their names are on the page of [settings](settings.md).\n\n"
    yield from _command("agentrl", typer.main.get_command(app))


def _command(name: str, command: Any) -> Iterator[str]:
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {word}", below)
    if hasattr(command, "commands"):
        return
    yield f"## `{name}`\n\n{inspect.cleandoc(command.help or '').replace('<', '&lt;')}\n\n"
    rows = []
    for one in command.params:
        words = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [one.name.upper()]
        if one.name != "help":
            rows.append(f"| {', '.join(f'`{word}`' for word in words)} | {cell(getattr(one, 'help', None) or '')} |\n")
    if rows:
        yield f"| word | what it is |\n|---|---|\n{''.join(rows)}\n"


def interface() -> Iterator[str]:
    """The page of `agentrl` and `agentrl.plugins`."""
    yield "# Python\n\nThese names are [promised](../index.md); all other modules may move.\n\n"
    yield "## `agentrl`\n\n"
    told: dict[int, str] = {}
    for name in agentrl.__all__:
        told[id(getattr(agentrl, name))] = "agentrl"
        yield from _name(f"agentrl.{name}", getattr(agentrl, name))
    for each in pkgutil.iter_modules(plugins.__path__):
        module = import_module(f"agentrl.plugins.{each.name}")
        if not hasattr(module, "__all__"):
            continue
        yield f"## `agentrl.plugins.{each.name}`\n\n{_prose(module)}\n\n"
        for name in module.__all__:
            try:
                value = getattr(module, name)
            except ModuleNotFoundError as error:
                yield f"### `{name}`\n\nIt needs the package `{error.name}`.\n\n"
                continue
            if (where := told.setdefault(id(value), each.name)) != each.name:
                yield f"### `{name}`\n\nThe same as in `{where}`.\n\n"
            else:
                yield from _name(name, value)


def _name(name: str, value: Any) -> Iterator[str]:
    """A public name: its signature, its docstring, and the methods of a class."""
    if inspect.ismodule(value):  # agentrl.train, a package that can be called
        value = load("agentrl.train.driver.api:train", name)
    shown = f"{name}{_signature(value)}" if callable(value) else name
    yield f"### `{name}`\n\n```python\n{shown}\n```\n\n"
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    yield f"{_prose(value)}\n\n"
    if inspect.isclass(value) and value.__module__.startswith("agentrl"):
        for member, one in sorted(vars(value).items()):
            plain = inspect.unwrap(getattr(one, "__func__", one))
            if inspect.isfunction(plain) and not member.startswith("_") and plain.__doc__:
                yield f"- `{member}{_signature(plain)}`: {_first(plain)}\n"
        yield "\n"


def _signature(value: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def _first(value: Any) -> str:
    """The first sentence of a docstring."""
    return cell(inspect.getdoc(value) or "").partition(". ")[0].rstrip(".") + "."


def _prose(value: Any) -> str:
    """A docstring as Markdown: its text, its arguments, what it returns and raises."""
    parsed = docstring_parser.parse(inspect.getdoc(value) or "", docstring_parser.DocstringStyle.GOOGLE)
    lines = [(parsed.description or "").replace("<", "&lt;"), ""]
    lines += [f"- `{one.arg_name}`: {cell(one.description)}" for one in parsed.params]
    if parsed.returns:
        lines += ["", f"Returns: {cell(parsed.returns.description)}"]
    lines += ["", *(f"- raises `{one.type_name}`: {cell(one.description)}" for one in parsed.raises)]
    return "\n".join(lines).strip()


PAGES = {"reference/settings.md": settings, "reference/commands.md": commands, "reference/python.md": interface}

if __name__ == "__main__":
    print(json.dumps({path: "".join(made()) for path, made in PAGES.items()}))
