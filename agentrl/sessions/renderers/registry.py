"""The renderer of each model: by name, or by what the model's own tokenizer and chat template say."""

from __future__ import annotations

import logging
from typing import Any

from agentrl.errors import AgentRLError, ConfigError, RenderError, UnknownName, unknown_name
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.registry import Registry
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.ends import check_vocabulary, extend_ends, stop_token
from agentrl.sessions.renderers.families.generic import generic
from agentrl.sessions.renderers.families.table import FAMILIES, RendererFamily
from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.proof.agreement import disagreement
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.sessions.renderers.proof.markers import REFUSES_TOOLS, UNLISTED, WARNED, MarkerPart, find_lost, look_for

_log = logging.getLogger(__name__)


def _accept(found: Any) -> RendererFamily | None:
    if isinstance(found, RendererFamily):
        return found
    return RendererFamily(found, auto=False) if callable(found) else None


RENDERERS: Registry[RendererFamily] = Registry(
    "renderer",
    "model.renderer",
    "agentrl.renderers",
    {**FAMILIES, "generic": RendererFamily(generic, auto=False)},
    accept=_accept,
)
"""Every renderer by its name. `auto` may choose a `RendererFamily`; it knows nothing of a callable that builds one."""
TRIED = 8
"""Conversations of each kind by which `auto` compares a renderer with a template: a foreign format shows in the first,
and this takes some tenths of a second."""


def get_renderer(tokenizer: Any, name: str = "auto", stop: str = "") -> Renderer:
    """The renderer for a model.

    Args:
        tokenizer: a Hugging Face folder, a `tokenizer.json`, or a tokenizer (see `load_tokenizer`).
        name: a renderer's name or import path, or `generic:GRAMMAR` with the grammar that reads the model's own format.
            `auto` takes the family whose special tokens the tokenizer has, if it writes what the chat template writes
            (and shows images as the model's processor does), and else the generic one (the template itself, proven
            append-only). Where the template does not list tools on offer, a renderer that `auto` took refuses them,
            and one that is named warns.
        stop: a special token that ends a turn (`model.stop`), where the chat template writes none, or beside its own;
            "" for those of the format and of the model's files.

    Raises:
        UnknownName: there is no renderer, or no grammar, of that name.
        ConfigError: `auto` finds none that fits, the generic one's proof fails, what is named builds no renderer, or
            `stop` is no special token, or the format's tokens are beyond the vocabulary of the model in the folder.
    """
    loaded = load_tokenizer(tokenizer)
    check_name(name)
    if stop:
        stop_token(loaded, stop)
    renderer = detect(loaded, stop) if name == "auto" else _make(loaded, name, stop)
    extend_ends(renderer, loaded, stop)
    check_vocabulary(renderer, loaded)
    for part, warning in WARNED.items():
        if not look_for(part, renderer).lost:
            continue
        if part is MarkerPart.TOOLS and name == "auto":
            setattr(renderer, REFUSES_TOOLS, UNLISTED.format(name=renderer.name))
        else:
            _log.warning(warning)
    return renderer


def check_name(name: str, setting: str = "model.renderer") -> None:
    """Refuse a name that no renderer has.

    Raises:
        UnknownName: it does not; the message lists those that do.
        ConfigError: importing what it names fails, or that is no renderer.
    """
    base, colon, grammar = name.partition(":")
    known = RENDERERS.known()
    if colon and base == "generic":
        if grammar not in GRAMMARS:
            raise unknown_name(f"grammar of {setting}=generic:GRAMMAR", grammar, GRAMMARS)
    elif colon and base in known:
        raise UnknownName(f"{setting}={name!r}: only generic:GRAMMAR names a grammar; say {setting}={base}")
    elif not colon and not name.endswith(".py") and name not in ("auto", *known):
        raise unknown_name(setting, name, [*known, "generic:GRAMMAR", "auto"])
    elif name != "auto":
        RENDERERS.find(name)


def candidates(tokenizer: HFTokenizer) -> list[str]:
    """The families whose special tokens a tokenizer has, the most particular (or last registered) first.

    Where several share them, the chat template must hold the text that identifies the family.
    """
    template = tokenizer.tool_template or ""
    return [
        name
        for name, family in reversed(RENDERERS.available().items())
        if family.auto and all(mark in tokenizer.added for mark in family.marks) and family.template in template
    ]


def detect(tokenizer: HFTokenizer, stop: str = "") -> Renderer:
    """The renderer that fits a tokenizer; see `get_renderer`.

    Raises:
        ConfigError: no family writes what the chat template writes and the generic one can't serve it, or there is
            no chat template and no family with the tokenizer's special tokens.
    """
    fitting = candidates(tokenizer)
    if not tokenizer.templates:
        if not fitting:
            raise ConfigError(
                f"renderer='auto' knows no format for this tokenizer; name one of {', '.join(RENDERERS.known())}"
            )
        _log.warning(
            "renderer='auto' takes %r by special tokens alone: this tokenizer has no chat template to compare with; "
            "if the model was trained in another format, name it with model.renderer=",
            fitting[0],
        )
        return _make(tokenizer, fitting[0])
    against = []
    for name in fitting:
        try:
            renderer = _make(tokenizer, name)
            problem = disagreement(renderer, tokenizer, TRIED) or prove_images(renderer).fault or find_lost(renderer)
        except AgentRLError as error:  # it lacks a token of the format, or its template can't be read
            problem = str(error)
        if not problem:
            return renderer
        against.append(f"{name} does not fit ({problem})")
    try:
        renderer = generic(tokenizer, stop=stop)
    except (ConfigError, RenderError) as error:
        tried = f", and of the families with its special tokens {'; '.join(against)}" if against else ""
        raise ConfigError(f"renderer='auto' finds none for this model: {error}{tried}") from error
    if against:
        _log.info("renderer='auto' takes the model's own chat template: %s", "; ".join(against))
    return renderer


def _make(tokenizer: HFTokenizer, name: str, stop: str = "") -> Renderer:
    base, colon, grammar = name.partition(":")
    if base == "generic" and (colon or name == "generic"):
        return generic(tokenizer, grammar, stop)
    made = RENDERERS.find(name).make(tokenizer)
    if not isinstance(made, Renderer):
        raise ConfigError(f"model.renderer={name!r} built {type(made).__name__}, which is no renderer")
    return made
