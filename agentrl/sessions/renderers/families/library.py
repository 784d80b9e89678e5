"""Formats that the `renderers` package writes (Apache-2.0).

It renders whole conversations for many families, newer ones among them; `ProbeRenderer` makes extensions out of
that. Its own bridge is not used: it walks the history, and closes a tool turn that another result may share.
Content is guarded, since the package encodes markup and content as one string. Our grammars read the turns, since
its parsers do not stream; for families without a grammar of ours, its parser reads the finished turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from agentrl.errors import RenderError, require_extra
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.guard import GuardedTokenizer, MarkupGuard
from agentrl.sessions.renderers.proof.probe import Whole
from agentrl.sessions.renderers.wire import as_wire
from agentrl.types import Message


def load_library_renderer(tokenizer: HFTokenizer, config: str, options: Mapping[str, Any] | None = None) -> Any:
    """One of the package's renderers, bound to a tokenizer that escapes markup in content.

    Args:
        tokenizer: the model's.
        config: the name of a configuration class of the package, without "RendererConfig".
        options: what the configuration is built with.

    Raises:
        MissingExtra: the package is not installed.
        RenderError: the tokenizer lacks a special token of the format.
    """
    with require_extra("renderers", "renderers"):
        import renderers  # type: ignore[import-untyped]
        from renderers.base import create_renderer  # type: ignore[import-untyped]
    built = getattr(renderers, f"{config}RendererConfig")(**(options or {}))
    try:
        return create_renderer(GuardedTokenizer(tokenizer), built)
    except (AssertionError, ValueError, TypeError) as error:
        raise RenderError(f"the {config} format does not fit this tokenizer: {error}") from error


Correction = Callable[[list[int]], list[int]]
"""Corrects what the package writes, where it differs from the family's own template."""


def calls_on_lines(tokenizer: HFTokenizer) -> Correction:
    """GLM's template begins every call on a line of its own; the package writes parallel ones back to back."""
    closing, opening = tokenizer.special("</tool_call>"), tokenizer.special("<tool_call>")
    line = tokenizer.encode("\n")

    def correct(ids: list[int]) -> list[int]:
        corrected: list[int] = []
        for index in ids:
            if index == opening and corrected[-1:] == [closing]:
                corrected += line
            corrected.append(index)
        return corrected

    return correct


def runs_merged(tokenizer: HFTokenizer) -> Correction:
    """A template's text is encoded in one run between special tokens; the package encodes content by itself."""
    added = frozenset(tokenizer.added.values())

    def correct(ids: list[int]) -> list[int]:
        corrected: list[int] = []
        for special, group in groupby(ids, key=added.__contains__):
            run = list(group)
            corrected += run if special else tokenizer.encode(tokenizer.decode(run))
        return corrected

    return correct


def defaults_as_python(schema: Any) -> Any:
    """A tool whose boolean defaults are in its descriptions, as Kimi K2.5 writes them (True and False)."""
    if isinstance(schema, list):
        return [defaults_as_python(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: defaults_as_python(value) for key, value in schema.items()}
    if isinstance(properties := schema.get("properties"), Mapping):
        made["properties"] = {name: _with_default(defaults_as_python(value)) for name, value in properties.items()}
    return made


def _with_default(schema: Any) -> Any:
    if not isinstance(schema, dict) or not isinstance(schema.get("default"), bool):
        return schema
    default = schema.pop("default")
    return {**schema, "description": "\n".join(filter(None, (schema.get("description"), f"Default: {default}")))}


def library_whole(
    tokenizer: HFTokenizer,
    renderer: Any,
    *,
    arguments_as_text: bool = True,
    correct: Correction = lambda ids: ids,
    declare: Callable[[Any], Any] = dict,
) -> Whole:
    """The package's renderer as a function of whole conversations; `declare` corrects the tools before."""
    guard = MarkupGuard(tokenizer)

    def whole(messages: Sequence[Message], tools: Sequence[ToolSchema], prompt: bool) -> list[int]:
        wire = [as_wire(message, guard, arguments_as_text=arguments_as_text) for message in messages]
        given = [guard.value(declare(tool)) for tool in tools] or None
        try:
            ids: list[int] = renderer.render_ids(wire, tools=given, add_generation_prompt=prompt)
        except Exception as error:  # of the package, whatever a message holds
            raise RenderError(f"the messages do not fit the format: {error}") from error
        return correct(list(ids))

    return whole
