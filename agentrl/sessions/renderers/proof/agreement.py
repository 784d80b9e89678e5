"""Trials of a family's renderer against a model's own chat template, outside the known differences.

Special tokens say which family a tokenizer comes from, not which format its model was trained in: many models keep
the tokens of the one that they were made of. So `auto` takes a family only where these trials agree, and
`agentrl check renderer=…` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from agentrl.errors import RenderError
from agentrl.models.tokenizers import HFTokenizer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.generic import GenericRenderer, expresses
from agentrl.sessions.renderers.families.table import FAMILIES, PINNED_DATE, Expresses
from agentrl.sessions.renderers.proof.known_differences import (
    CHAT,
    DIFFERENCES,
    PARALLEL,
    REASONING,
    TOOLS,
    Difference,
    missing,
)
from agentrl.sessions.renderers.proof.probe import ProbeRenderer, Whole
from agentrl.sessions.renderers.proof.short_conversations import USER
from agentrl.sessions.renderers.proof.trials import TOOLS as OFFERED
from agentrl.sessions.renderers.proof.trials import CallId, RendererProof, kimi_id, nine_letters, prove
from agentrl.sessions.renderers.template import template_whole

TRIALS: tuple[tuple[str, bool, float, Expresses], ...] = (
    (CHAT, False, 0.0, Expresses()),
    (TOOLS, True, 0.0, Expresses(parallel=False, content_with_calls=False)),
    (PARALLEL, True, 0.0, Expresses()),
    (REASONING, False, 0.8, Expresses()),
)
"""(name, with tools, how often they reason, what the conversations may hold)"""


class TrialVerdict(StrEnum):
    """The outcome of one trial."""

    AGREES = "yes"
    DIFFERS = "no"
    ON_PURPOSE = "differs on purpose"
    NOT_EXPRESSIBLE = "not expressible"


@dataclass(frozen=True, slots=True)
class _Agreement:
    """One kind of conversation. `compared`: turn boundaries that agree in it, or that were compared and differ."""

    kind: str
    verdict: TrialVerdict
    detail: str = ""
    compared: int = 0


def reference_of(renderer: Renderer, tokenizer: HFTokenizer) -> Whole | None:
    """The tokenizer's chat template, with variables that make it write as this renderer does; None without one."""
    if not tokenizer.chat_template:
        return None
    family = FAMILIES.get(renderer.name)
    stop = renderer.written_stop if isinstance(renderer, GenericRenderer) else ""
    return template_whole(tokenizer, stop=stop, date_string=PINNED_DATE, **(family.variables if family else {}))


def agreements(renderer: Renderer, tokenizer: HFTokenizer, count: int) -> Iterator[_Agreement]:
    """Compare a renderer with the tokenizer's template, or with its own whole rendering where there is none."""
    family = FAMILIES.get(renderer.name)
    able = renderer.able if isinstance(renderer, GenericRenderer) else family.expresses if family else Expresses()
    reference = reference_of(renderer, tokenizer)
    if reference is None and not isinstance(renderer, ProbeRenderer):
        return
    template = expresses(reference) if reference else able
    for kind, tools, reasoning, holds in TRIALS:
        if (tools and not able.tools) or (reasoning and not able.reasoning) or (kind == PARALLEL and not able.parallel):
            yield _Agreement(kind, TrialVerdict.NOT_EXPRESSIBLE)
            continue
        held = both(both(able, holds), template) if template.tools else both(able, holds)
        trial = partial(prove, renderer, reference, tools=tools, count=count, call_id=call_ids(renderer))
        if kind == CHAT and reference and not isinstance(renderer, GenericRenderer):
            trial = partial(trial, spaced=True)
        found = judge_proof(kind, trial(expresses=held, reasoning=reasoning), count)
        if found.verdict is TrialVerdict.AGREES:
            yield found
            continue
        known = [d for d in DIFFERENCES.get(renderer.name, ()) if kind in d.kinds]
        narrowed = partial(trial, expresses=held)
        calls = able.tools and template.tools
        explained = next((e for d in known if (e := _explain(kind, d, narrowed, calls, reasoning))), None)
        if explained is None and reference and (lacks := missing(kind, template)):
            explained = _without(kind, lacks, trial, reference, tools=tools)
        yield explained or found


def disagreement(renderer: Renderer, tokenizer: HFTokenizer, count: int) -> str | None:
    """Return why a renderer does not fit: the first kind that differs, or that nothing was compared; else None."""
    compared = 0
    for one in agreements(renderer, tokenizer, count):
        if one.verdict is TrialVerdict.DIFFERS:
            return f"{one.kind}: {one.detail}"
        compared += one.compared
    return None if compared else "nothing of it could be compared with the chat template"


def judge_proof(kind: str, proof: RendererProof, count: int) -> _Agreement:
    """A proof as an agreement."""
    if proof.boundaries == 0:
        return _Agreement(kind, TrialVerdict.DIFFERS, f"all of {count} conversations were refused: {proof.refusal}")
    refused = f" ({proof.refused} of {count} conversations refused)" if proof.refused else ""
    if proof.append_only:
        return _Agreement(
            kind, TrialVerdict.AGREES, f"{proof.boundaries} turn boundaries agree{refused}", proof.boundaries
        )
    detail = f"{proof.differing} of {proof.boundaries} differ{refused}; {proof.difference}"
    return _Agreement(kind, TrialVerdict.DIFFERS, detail, proof.boundaries)


def _explain(
    kind: str, difference: Difference, trial: Callable[..., RendererProof], calls: bool, reasoning: float
) -> _Agreement | None:
    """The kind with its reason, if the trial agrees where the difference can't show; else None."""
    if difference.everywhere:
        return _allow_intended(kind, difference, 0)
    narrow: dict[str, Any] = {
        "rounds": difference.rounds,
        "system": difference.system,
        "declared": difference.declared,
        "reasoning": reasoning if difference.reasoning is None else difference.reasoning,
    }
    if difference.tools is not None and calls:
        narrow["tools"] = difference.tools
    proof = trial(**narrow)
    return _allow_intended(kind, difference, proof.boundaries) if proof.append_only else None


def _without(
    kind: str, lacks: Difference, trial: Callable[..., RendererProof], reference: Whole, *, tools: bool
) -> _Agreement | None:
    """Kinds that the template has no place for aren't compared; but tools that it lists must be the renderer's."""
    if not (tools and _lists_tools(reference)):
        return _allow_intended(kind, lacks, 0)
    proof = trial(expresses=Expresses(tools=False))
    return _allow_intended(kind, lacks, proof.boundaries) if proof.append_only else None


def _allow_intended(kind: str, difference: Difference, compared: int) -> _Agreement:
    agreed = f"apart from that {compared} turn boundaries agree" if compared else "nothing of it can be compared"
    return _Agreement(kind, TrialVerdict.ON_PURPOSE, f"{difference.because}; {agreed}", compared)


def _lists_tools(reference: Whole) -> bool:
    """True if tools on offer make a difference to what a template writes, or are refused."""
    try:
        return reference([USER], OFFERED, True) != reference([USER], (), True)
    except RenderError:
        return True


def both(one: Expresses, other: Expresses) -> Expresses:
    """Return what both can express of calls."""
    return Expresses(
        parallel=one.parallel and other.parallel, content_with_calls=one.content_with_calls and other.content_with_calls
    )


def call_ids(renderer: Renderer) -> CallId:
    """Return a function that makes ids for calls as the renderer's format requires them."""
    return kimi_id if renderer.name.startswith("kimi") else nine_letters
