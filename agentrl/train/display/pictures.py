"""A run's learning curve as a picture, and a few conversations as text with their images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.common import pictures
from agentrl.errors import InvalidInput
from agentrl.sessions.tree import tree
from agentrl.types import Group, Message

SHOWN = 6
"""The most conversations of a transcript."""


def learning_curve(
    path: Path, rows: Sequence[Mapping[str, Any]], title: str, marks: Mapping[str, float], *, evaluated: str = ""
) -> None:
    """Draw a run's rewards over its steps.

    They are reward/mean of the steps that have one, its moving average, the evaluations during training with their 95 %
    confidence intervals (of one task there is none), and horizontal `marks` (before, after). `evaluated` is added to
    what evaluations are called.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    evaluations = [row for row in rows if "eval/mean" in row]
    rows = [row for row in rows if "reward/mean" in row]  # a step without any reward has none
    steps = [row["step"] for row in rows]
    rewards = [row["reward/mean"] for row in rows]
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="reward of the step's rollouts")
    axes.plot(steps, smooth(rewards), color="#08519c", linewidth=2, label="moving average")
    if evaluations:
        means = [row["eval/mean"] for row in evaluations]
        bounds = [(row["eval/low"], row["eval/high"]) for row in evaluations]
        below = [0.0 if low is None else mean - low for mean, (low, _) in zip(means, bounds, strict=True)]
        above = [0.0 if high is None else high - mean for mean, (_, high) in zip(means, bounds, strict=True)]
        at = [row["step"] for row in evaluations]
        drawn = {"color": "#6a3d9a", "linewidth": 1, "marker": "o", "markersize": 3, "capsize": 2}
        axes.errorbar(at, means, yerr=(below, above), label=f"evaluation{evaluated}, held-out tasks", **drawn)
    for (name, value), colour in zip(marks.items(), ("#d95f0e", "#238b45"), strict=False):
        axes.axhline(value, linestyle="--", color=colour, linewidth=1, label=f"{name}: {value:.2f} (held-out tasks)")
    axes.set(xlabel="step", ylabel="mean reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.subplots_adjust(left=0.12, right=0.97, top=0.92, bottom=0.13)  # `tight_layout` would draw all of it twice
    figure.savefig(path)
    plt.close(figure)


def smooth(values: Sequence[float], window: int = 7) -> list[float]:
    """The mean of each value and up to `window - 1` before it."""
    means = []
    for index in range(len(values)):
        part = values[max(0, index - window + 1) : index + 1]
        means.append(sum(part) / len(part))
    return means


def transcripts(path: Path, title: str, groups: Sequence[Group]) -> None:
    """Write a few groups' first sessions as Markdown, each path to a leaf in turn; images are in `images/` beside it.

    An image's file is a PNG of the decoded pixels, whatever was in the message.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"# {title}\n"]
    for session in (session for group in groups[:SHOWN] for session in group.sessions[:1]):
        score = "no reward" if session.score is None else f"score {session.score:g}"
        parts.append(f"\n## Task {session.task.id} · {score} · {session.status.value}\n")
        for leaf in tree.leaves(session):
            parts.extend(_line(node.message, path.parent) for node in tree.path(session, leaf.id))
    path.write_text("\n".join(parts) + "\n")


def _line(message: Message, folder: Path) -> str:
    calls = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or []]
    said: list[Any] = [message.reasoning_content, message.text, *calls]
    shown = [_save_image(url, folder) for url in message.images]
    return f"**{message.role}** " + " ".join([*shown, *(f"`{text}`" for text in said if text)])


def _save_image(url: str, folder: Path) -> str:
    """An image as Markdown, whose file is written where it is not there yet."""
    file = folder / "images" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.png"
    try:
        picture = pictures.picture(url)
    except InvalidInput as error:
        return f"(an image that can't be shown: {error})"
    file.parent.mkdir(exist_ok=True)
    picture.save(file, "PNG")
    return f"![image](images/{file.name})"
