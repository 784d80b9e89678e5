"""Commands whose help lists their settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from agentrl.common.terminal import out
from agentrl.errors import unknown_name

if TYPE_CHECKING:
    from pydantic import BaseModel


class SettingsCommand(typer.core.TyperCommand):
    """A command whose help lists its settings, those of the plug-ins that the same line names.

    Of sections it says how large they are, unless the line names them (`agentrl train algo --help`) or says `all`.
    """

    words: Sequence[str] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self.words = [word for word in args if not word.startswith("-")]
        return super().parse_args(ctx, args)

    def settings(self) -> type[BaseModel]:
        from agentrl.config import RunConfig

        return RunConfig

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from agentrl.overrides import fields, parse_words, plugin_sections, value_at

        tree = parse_words([word for word in self.words if "=" in word])
        shown, known = {word for word in self.words if "=" not in word}, self.settings().model_fields
        for word in shown - {"all", *known}:
            raise unknown_name("section", word, ["all", *known])
        setting = Column("setting", no_wrap=True)  # whole in any width: it is what users type
        table = Table(setting, "default", "what it is", title="Settings (key=value)", title_justify="left", box=None)
        sizes: Counter[str] = Counter()
        for name, field, doc in fields(self.settings(), tree):
            section, _, below = name.partition(".")
            sizes[section] += bool(below)
            if "all" in shown or section in shown or not (below or shown):
                default = "required" if field.is_required() else str(field.get_default())
                table.add_row(name, escape(default), escape(doc))
        out.print(table)
        sections, plugins = +sizes, plugin_sections(self.settings()).items()
        if not plugins:
            return
        chosen = {mark.plugins().setting: mark.chosen(value_at(tree, name)) for name, mark in plugins}
        out.print(
            f"Sections and how many settings they have: {', '.join(f'{name} {n}' for name, n in sections.items())}. "
            f"`agentrl {self.name} {next(iter(sections))} --help` lists one, `agentrl {self.name} all --help` all. "
            f"Settings are those of {', '.join(f'{name}={plugin}' for name, plugin in chosen.items())}; "
            f"others have their own: agentrl {self.name} {next(iter(chosen))}=NAME --help; "
            "`agentrl plugins` lists the names.",
            highlight=False,
            markup=False,
        )


def settings_command(place: str) -> type[SettingsCommand]:
    """Return the class of a command with other settings than a run's: module:NAME, imported for help alone."""

    class Command(SettingsCommand):
        def settings(self) -> type[BaseModel]:
            from agentrl.common.imports import load

            found: type[BaseModel] = load(place, place)
            return found

    return Command
