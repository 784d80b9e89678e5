"""A suite's results, and a comparison of two, as a table for the terminal, as Markdown, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from agentrl.common.untrusted import visible_text
from agentrl.rollout.stream.batch_metrics import score_caution
from agentrl.train.evaluation.suite.compare import Comparison, PartComparison
from agentrl.train.evaluation.suite.results import Results, number
from agentrl.train.record.files import write_atomically

HEAD = ("part", "mean", "95% CI", "pass@k", "pass^k", "tasks", "turns", "tokens", "cost", "errors")
COMPARED = ("part", "before", "after", "difference", "95% CI", "p", "tasks", "changed", "")
FOLDED = ("part", "errors")
"""Columns that take several lines where a terminal is narrow; the others are numbers."""
MOST_TASKS = 10
"""Changed tasks of a part that are listed, of those that lost and of those that won."""


def write(results: Results, folder: Path) -> None:
    """Write `result.md`, and `result.png` where matplotlib is installed."""
    write_atomically(folder / "result.md", markdown(results).encode())
    if find_spec("matplotlib") is not None:
        picture(results, folder / "result.png")


def table(results: Results) -> Table:
    """The results for the terminal."""
    title = f"{results.name}, {results.policy}"
    if results.cost is not None:
        title += f", cost {results.cost:.4g}"
    return _table(HEAD, rows(results), title)


def markdown(results: Results) -> str:
    """The results as a Markdown table."""
    lines = "".join(f"- {_cell(line)}\n" for line in result_lines(results))
    shown = f"# {results.name}: {_cell(results.policy)}\n\n" + _markdown(HEAD, rows(results))
    return f"{shown}\n{lines}" if lines else shown


def result_lines(results: Results) -> Iterator[str]:
    """Parts whose interval needs a word, which a table's cell has no room for."""
    for name, part in results.parts.items():
        if _bounds(part["low"], part["high"]) and (said := score_caution([task["scores"] for task in part["scores"]])):
            yield f"{name}: 95% CI {said}"


def rows(results: Results) -> Iterator[tuple[str, ...]]:
    """A row for each part, under `HEAD`."""
    for name, part in results.parts.items():
        played = max(part["generated"], 1)
        tokens = (part["usage"]["prompt"] + part["usage"]["completion"]) / played
        cost = part.get("cost")
        yield (
            name,
            _short(part["mean"]),
            _bounds(part["low"], part["high"]),
            _passes(part["pass_at"]),
            _passes(part["pass_hat"]),
            str(part["tasks"]),
            f"{part['metrics'].get('sessions/turns', 0.0):.1f}",
            f"{tokens:,.0f}",
            "" if cost is None else f"{cost:.4g}",
            ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in part["errors"].items() if count),
        )


def comparison_table(found: Comparison) -> Table:
    """A comparison for the terminal."""
    before, after = found.names
    return _table(COMPARED, _comparison_rows(found), f"{after}, compared with {before}")


def comparison_lines(found: Comparison) -> Iterator[str]:
    """The tasks that changed, and what could not be compared."""
    for part in found.parts:
        lost = [change for change in part.changes if change.difference < 0]
        won = [change for change in part.changes if change.difference > 0]
        for word, changes in (("worse", lost), ("better", won[::-1])):
            if changes:
                shown = [f"{c.task} {c.before:.2f} to {c.after:.2f}" for c in changes[:MOST_TASKS]]
                more = f" and {len(changes) - MOST_TASKS} more" if len(changes) > MOST_TASKS else ""
                yield f"{part.name}: {len(changes)} {word}: {'; '.join(shown)}{more}"
        if part.caution:
            yield f"{part.name}: 95% CI {part.caution}"
        if part.unpaired:
            yield f"{part.name}: {part.unpaired} tasks are not in both, or have other data"
    if found.missing:
        yield f"not in both: {', '.join(found.missing)}"
    yield from found.edited


def comparison_markdown(found: Comparison) -> str:
    """Return a comparison as Markdown."""
    lines = "".join(f"- {_cell(line)}\n" for line in comparison_lines(found))
    before, after = map(_cell, found.names)
    return f"# {after}, compared with {before}\n\n{_markdown(COMPARED, _comparison_rows(found))}\n{lines}"


def _comparison_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for part in found.parts:
        yield (
            part.name,
            _short(part.before),
            _short(part.after),
            f"{part.difference:+.3f}",
            _bounds(part.low, part.high, sign="+"),
            f"{part.p:.3g}",
            str(part.tasks),
            _counts(part),
            part.verdict(found.alpha),
        )


def _counts(part: PartComparison) -> str:
    won = sum(change.difference > 0 for change in part.changes)
    return f"+{won} -{len(part.changes) - won}"


def _short(value: Any) -> str:
    return "-" if math.isnan(number(value)) else f"{number(value):.3f}"


def _bounds(low: Any, high: Any, sign: str = "") -> str:
    bounds = number(low), number(high)
    return "" if math.isnan(bounds[0]) else f"[{bounds[0]:{sign}.3f}, {bounds[1]:{sign}.3f}]"


def _passes(passes: Mapping[str, float]) -> str:
    """The value for the largest k above 1."""
    k = max(map(int, passes), default=1)
    return "" if k == 1 else f"{passes[str(k)]:.3f} (k={k})"


def _table(head: Sequence[str], found: Iterator[tuple[str, ...]], title: str) -> Table:
    """A table without the columns that no row fills; names and errors are folded before a number is shortened."""
    cells = [[visible_text(cell, keep="") for cell in row] for row in found]
    used = [place for place in range(len(head)) if place == 0 or any(row[place] for row in cells)]
    columns = []
    for place in used:
        width = max(len(cell) for cell in (head[place], *(row[place] for row in cells)))
        number = Column(head[place], justify="right", no_wrap=True, min_width=width)
        columns.append(Column(head[place], overflow="fold") if head[place] in FOLDED else number)
    text = Text(visible_text(title, keep=""))
    shown = Table(*columns, title=text, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for row in cells:
        shown.add_row(*(Text(row[place]) for place in used))
    return shown


def _markdown(head: Sequence[str], found: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *found]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return visible_text(text, keep="").replace("|", "\\|")


def picture(results: Results, path: Path) -> None:
    """Draw each part's mean with its confidence interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(results.parts)
    means = [number(part["mean"]) for part in results.parts.values()]
    bounds = [(number(part["low"]), number(part["high"])) for part in results.parts.values()]
    sides = [[mean - low, high - mean] for mean, (low, high) in zip(means, bounds, strict=True)]
    errors = [[0.0 if math.isnan(side[i]) else max(side[i], 0.0) for side in sides] for i in (0, 1)]
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.4 * len(names)), dpi=120)
    drawn = {"color": "#08519c", "marker": "o", "linestyle": "none", "capsize": 3}
    axes.errorbar(means, range(len(names)), xerr=errors, **drawn)
    axes.set_yticks(range(len(names)), list(map(_plain, names)))
    axes.invert_yaxis()
    axes.set(xlabel="mean, with its 95 % confidence interval", title=_plain(f"{results.name}: {results.policy}"))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
