"""The output of `agentrl models check`: a line for each trainer and engine that was tested, and the verdict.

A line begins with ✓ (correct), ✗ (wrong numbers) or - (the model is refused or could not be tested). A refusal is a
failure only for the trainer or engine that the user named.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.errors import AgentRLError, InvalidInput, InvalidWeights, missing_extra, unknown_name
from agentrl.models.loading import read_config
from agentrl.models.rope import fixed_angle_length
from agentrl.models.vision import sees
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.train.trainers import loaded
from agentrl.train.trainers.loaded import Loaded
from agentrl.train.trainers.proof import prove
from agentrl.train.trainers.proof.subjects import Proof

LINES = {"trainer=torch": "torch", "engine=local": "local", "trainer=megatron": "megatron"}
"""The setting that a line is about, and its name in `SUBJECTS`."""
PRECISIONS = ("float32", "bfloat16")
REFUSED = "[yellow]-[/]"


def report(
    folder: Path, out: Console, trainer: str | None = None, engine: str | None = None, family: str | None = None
) -> bool:
    """Test an architecture and print the results.

    Args:
        folder: a Hugging Face folder; its config.json is enough.
        out: where to print.
        trainer: the one to test, torch or megatron; None tests all, unless an engine is named.
        engine: the one to test, local; None tests all, unless a trainer is named.
        family: the family on Megatron, where the configuration does not say it; the model must then pass there.

    Returns:
        Whether no numbers are wrong and what was named (any, if nothing was) supports the model.

    Raises:
        UnknownName: there is no test for such a trainer or engine.
        MissingExtra: the trainer that was named is not installed.
    """
    named = _list_names("trainer", trainer) | _list_names("engine", engine)
    tested = [line for line in LINES if line in named or not named]
    required = named | ({"trainer=megatron"}.intersection(tested) if family else set())
    passed: dict[str, bool] = {}
    wrong = sees(folder) and not _compare_images(folder, out)
    for line in tested:
        if line == "trainer=megatron" and find_spec("megatron") is None:
            if line in required:
                raise missing_extra("megatron-core", "megatron")
            out.print(f"{REFUSED} {line}: not tested, megatron-core is not installed", highlight=False)
            continue
        passed[line], faulty = _test(line, folder, family, out)
        wrong = wrong or faulty
    served = all(passed[line] for line in required) if required else any(passed.values())
    return served and not wrong


def _compare_images(folder: Path, out: Console) -> bool:
    """Print whether the renderer that `auto` takes shows images as the model's processor does; false where not."""
    try:
        found = prove_images(get_renderer(folder))
    except AgentRLError as error:
        out.print(f"{REFUSED} renderer: {escape(str(error))}", highlight=False, soft_wrap=True)
        return True
    mark = "[red]✗[/]" if found.fault else REFUSED if found.not_compared else "[green]✓[/]"
    out.print(f"{mark} renderer: {escape(str(found))}", highlight=False, soft_wrap=True)
    return not found.fault


def _list_names(kind: str, name: str | None) -> set[str]:
    if name is None:
        return set()
    known = [line.partition("=")[2] for line in LINES if line.startswith(kind)]
    if name not in known:
        raise unknown_name(f"{kind} to try", name, known)
    return {f"{kind}={name}"}


def _test(line: str, folder: Path, family: str | None, out: Console) -> tuple[bool, bool]:
    """Print the result; returns whether the model is supported, and whether numbers are wrong."""
    wrong, context = False, _context(folder)
    for dtype in PRECISIONS:
        proof = prove(folder, subject=LINES[line], family=family, dtype=dtype, context=context)
        refused = bool(proof.fault or proof.untested)
        mark = "[green]✓[/]" if proof.passed else REFUSED if refused else "[red]✗[/]"
        within = f", for paths of up to {context} tokens (engine.max_context)" if context and not refused else ""
        out.print(f"{mark} {line}: {escape(str(proof))}{within} [dim]({_time(proof)})[/]", highlight=False)
        if refused:
            return False, wrong
        if not proof.passed:  # bfloat16 would only repeat it
            wrong = True
            break
    wrong = wrong or not _compare_weights(line, folder, family, out)
    if line == "trainer=megatron":
        served, changed = _compare_family(line, folder, family, out)
        return served and not wrong, wrong or changed
    return not wrong, wrong


def _context(folder: Path) -> int | None:
    """The longest supported path, where a model's rotary angles change with a row's length."""
    try:
        return fixed_angle_length(read_config(folder))
    except InvalidInput:  # the lines below report it
        return None


def _compare_weights(line: str, folder: Path, family: str | None, out: Console) -> bool:
    """Print the comparison of the folder's own weights, where it has any; false where they are computed wrong."""
    if not loaded.weight_files(folder):
        return True
    try:
        found = loaded.compare_folder(folder, LINES[line], family)
    except AgentRLError as error:
        wrong = isinstance(error, InvalidWeights)
        out.print(f"{'[red]✗[/]' if wrong else REFUSED} {line}: {escape(str(error))}", highlight=False, soft_wrap=True)
        return not wrong
    mark = REFUSED if found.not_compared else "[green]✓[/]" if found.passed else "[red]✗[/]"
    out.print(f"{mark} {line}: {escape(str(found))} [dim]({_time(found)})[/]", highlight=False)
    return found.passed or bool(found.not_compared)


def _time(found: Proof | Loaded) -> str:
    return f"{found.seconds:.1f} s, cached" if found.cached else f"{found.seconds:.1f} s"


def _compare_family(line: str, folder: Path, family: str | None, out: Console) -> tuple[bool, bool]:
    """Print the differences of logits and of loaded and exported tensors; see `_test`."""
    from agentrl.train.trainers.megatron.check import check

    try:
        result = check(folder, family)
    except AgentRLError as error:
        out.print(f"{REFUSED} {line}: {escape(str(error))}", highlight=False)
        return False, False
    table = Table("what", "found", "wanted", title=f"family {result.family} on Megatron", title_justify="left")
    for row in result.rows():
        table.add_row(*row)
    out.print(table)
    return result.passed, not result.passed
