"""`agentrl check renderer=MODEL`: what can be said about a model's conversation format before a run relies on it.

The same trials that the test-suite runs for the known families, on the user's own model: is its template
append-only, does the renderer that we would take write what the template writes, and which parser reads its turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import AgentRLError
from agentrl.models.tokenizers import HFTokenizer, load_tokenizer
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.renderers.families.generic import UNREADABLE, expresses, unproven
from agentrl.sessions.renderers.families.table import FAMILIES
from agentrl.sessions.renderers.grammars import GRAMMARS
from agentrl.sessions.renderers.proof.agreement import TRIALS, TrialVerdict, agreements, both, judged
from agentrl.sessions.renderers.proof.known_differences import missing
from agentrl.sessions.renderers.proof.markers import WARNED, read_back
from agentrl.sessions.renderers.proof.reading import fitting, misread
from agentrl.sessions.renderers.proof.trials import prove
from agentrl.sessions.renderers.registry import check_name, get_renderer

if TYPE_CHECKING:
    from rich.table import Table

ON_PURPOSE = TrialVerdict.ON_PURPOSE
_OK = {
    TrialVerdict.AGREES: True,
    TrialVerdict.DIFFERS: False,
    TrialVerdict.ON_PURPOSE: None,
    TrialVerdict.NOT_EXPRESSIBLE: None,
}


@dataclass(frozen=True, slots=True)
class _Row:
    """One thing that was checked. `ok` is None where there was nothing to compare, or it differs on purpose."""

    question: str
    answer: str
    ok: bool | None
    detail: str = ""


def check_renderer(model: Any, name: str = "auto", count: int = 50, *, stop: str = "") -> list[_Row]:
    """Try a model's conversation format.

    Args:
        model: a Hugging Face folder, a `tokenizer.json` or a tokenizer.
        name: the renderer to try; `auto` is the one that a run would take.
        count: conversations per trial.
        stop: what `model.stop` would be.

    Raises:
        InvalidInput: there is no tokenizer there.
        UnknownName: there is no renderer of that name.
    """
    tokenizer = load_tokenizer(model)
    check_name(name)
    renderer: Renderer | None = None
    try:
        renderer = get_renderer(tokenizer, name, stop)
        family = renderer.name in FAMILIES
        rows = [_Row("renderer", renderer.name, True, "a known family" if family else "the model's own template")]
    except AgentRLError as error:
        rows = [_Row("renderer", name, False, str(error))]
    rows += _template_rows(tokenizer, count, stop, served=renderer is not None)
    if renderer is not None:
        rows += _renderer_rows(renderer, tokenizer, count)
        rows.append(_reads_back(renderer))
    return [*rows, *_comes_out_again(renderer, tokenizer, stop)]


def as_table(rows: Sequence[_Row], title: str = "") -> Table:
    """The rows as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None)
    for heading in ("checked", "answer", "detail"):
        table.add_column(heading, overflow="fold")
    colours = {True: "green", False: "red", None: "yellow"}
    for row in rows:
        table.add_row(row.question, Text(row.answer, style=colours[row.ok]), Text(row.detail))
    return table


def _template_rows(tokenizer: HFTokenizer, count: int, stop: str, *, served: bool) -> Iterator[_Row]:
    """Rows on the template by itself; that it rewrites history is a fault only where nothing else serves."""
    try:
        generic = unproven(tokenizer, stop=stop)
        written = expresses(generic.whole)
    except AgentRLError as error:
        yield _Row("template", "none", None, str(error))
        return
    for kind, tools, reasoning, holds in TRIALS:
        question = f"template append-only: {kind}"
        if lacks := missing(kind, generic.able):
            yield _Row(question, "not expressible", None, lacks.because.partition(",")[0])
            continue
        proof = prove(generic, expresses=both(generic.able, holds), tools=tools, reasoning=reasoning, count=count)
        found = judged(kind, proof, count)
        yield _Row(question, found.verdict, _OK[found.verdict] or (None if served else False), found.detail)
    if not written.tools:
        yield _Row("parsers that fit the template", "none", None, "the template has no place for tool calls")
        return
    names = fitting(generic) if generic.able.tools else []
    yield _Row(
        "parsers that fit the template", ", ".join(names) or "none", bool(names) or None, "" if names else UNREADABLE
    )


def _renderer_rows(renderer: Renderer, tokenizer: HFTokenizer, count: int) -> Iterator[_Row]:
    """The renderer against the template, or against itself where there is no template."""
    against = "the template" if tokenizer.chat_template else "its own whole rendering"
    found = list(agreements(renderer, tokenizer, count))
    for one in found:
        yield _Row(f"{renderer.name} equals {against}: {one.kind}", one.verdict, _OK[one.verdict], one.detail)
    if not tokenizer.chat_template:
        unknown = "this tokenizer has no chat template: nothing shows that its model was trained in this format"
        yield _Row("compared with the template", "nothing", False, unknown)
    elif not any(one.compared for one in found):
        yield _Row("compared with the template", "nothing", False, "none of the conversations could be compared")


def _comes_out_again(renderer: Renderer | None, tokenizer: HFTokenizer, stop: str) -> Iterator[_Row]:
    """Rows on what is read back of a conversation, by the renderer or, where none serves, by the refused template."""
    try:
        tried = renderer or unproven(tokenizer, stop=stop)
    except AgentRLError:  # there is a row that says so
        return
    for found in read_back(tried):
        ok = None if not found.placed or (found.lost and found.part in WARNED) else not found.lost
        answer = "no" if found.lost else "yes" if found.placed else "no place"
        yield _Row(f"{tried.name} gives back: {found.part}", answer, ok, found.lost)


def _reads_back(renderer: Renderer) -> _Row:
    question = f"{renderer.name} reads back its own tool call"
    try:
        read = misread(renderer, renderer.parser)
    except AgentRLError as error:
        return _Row(question, "not expressible", None, str(error))
    if read is not None:
        return _Row(question, "no", False, repr(read))
    bound = getattr(renderer, "_grammar", None)
    name = next((name for name, grammar in GRAMMARS.items() if bound and bound.grammar.read is grammar.read), "")
    return _Row(question, "yes", True, f"by the parser {name}" if name else "")
