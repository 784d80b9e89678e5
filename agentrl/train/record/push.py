"""`agentrl models push`: a checkpoint's model in a folder for a hub, with a card that says where it comes from.

The folder may be a clone of a hub's repository: what it has besides the model (`.git`, a licence) stays. The card is
the README of such a repository. It states what the run's record has, names no folder of this machine, and claims no
licence, which is the base model's and the data's to give.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl import __version__
from agentrl.errors import ConfigError, InvalidInput
from agentrl.overrides import value_at
from agentrl.train.driver.resuming import read_settings, step_of, whole_checkpoints
from agentrl.train.record import manifest
from agentrl.train.record.best import BEST
from agentrl.train.record.files import read_metrics, write_atomically
from agentrl.train.record.seals import METRICS

CARD = "README.md"
STATE = ("run.json", manifest.NAME, manifest.TRAINER)
"""The part of a checkpoint that only its run needs; a trainer's state may be a file or a folder."""
SETTINGS = ("env", "model", "algo", "algo.lr", "trainer", "engine", "lora.rank", "steps", "seed")


def push(run: Path, target: Path, step: int | None = None, *, replace: bool = False) -> Path:
    """Write a checkpoint's model and its card into a folder.

    Args:
        run: the run's folder.
        target: the folder; made where there is none.
        step: the checkpoint's; None is the best one (`keep_best`), else the newest.
        replace: a model that is there already is replaced.

    Returns:
        The checkpoint that was taken.

    Raises:
        ConfigError: there is no run or no such checkpoint, a model is there already, or the folder is the run's own.
        InvalidInput: the checkpoint is damaged.
    """
    settings = read_settings(run)
    checkpoint = _choose(run, step)
    if (wrong := manifest.damage(checkpoint)) is not None:
        raise InvalidInput(f"{checkpoint} is damaged: {wrong}")
    if run.resolve() in (target.resolve(), *target.resolve().parents):
        raise ConfigError(f"{str(target)!r} is the run's own folder, or in it: name another")
    if (target / "config.json").exists() and not replace:
        raise ConfigError(f"{str(target)!r} has a model already; --replace puts this one in its place")
    files = [file for file in sorted(checkpoint.iterdir()) if file.is_file() and file.name not in STATE]
    target.mkdir(parents=True, exist_ok=True)
    digests = {}
    for file in files:
        beside = target / f".{file.name}.partial"
        shutil.copyfile(file, beside)
        with beside.open("rb") as copied:
            digests[file.name] = hashlib.file_digest(copied, "sha256").hexdigest()
        beside.replace(target / file.name)
    write_atomically(
        target / CARD, card(settings, _read_metrics(run, step_of(checkpoint)), step_of(checkpoint), digests)
    )
    return checkpoint


def card(settings: Mapping[str, Any], row: Mapping[str, float], step: int, digests: Mapping[str, str]) -> bytes:
    """Return the card: what was trained from what, by which settings, what it was measured at, and its files."""
    base, env = shorten_name(_value(settings, "model")), shorten_name(_value(settings, "env"))
    own = [(name, shorten_name(_value(settings, name))) for name in SETTINGS if _value(settings, name) is not None]
    lines = [
        "---",
        "library_name: transformers",
        "tags: [agentrl, reinforcement-learning]",
        *([f"base_model: {base}"] if "/" in base else []),
        "---",
        "",
        f"# {base}, trained on {env}",
        "",
        f"Step {step} of a run of agentrl {__version__}, which began with `{base}`.",
        "",
        *_table(("setting", "value"), own),
        "## Evaluation",
        "",
        *(
            _table(("metric", "value"), [(name, f"{value:.6g}") for name, value in row.items()])
            if row
            else ["The run has measured nothing up to this step.", ""]
        ),
        "## Files",
        "",
        *_table(("file", "SHA-256"), list(digests.items())),
        "The run's folder proves what was trained on what: `agentrl verify RUN`.",
        "",
    ]
    return "\n".join(lines).encode()


def _choose(run: Path, step: int | None) -> Path:
    """The checkpoint of a step, or the best one, or the newest."""
    there = {step_of(path): path for path in whole_checkpoints(run)}
    if not there:
        raise ConfigError(f"{str(run)!r} has no checkpoint")
    if step is None and (run / BEST).is_file():
        step = step_of(Path(json.loads((run / BEST).read_text())["checkpoint"]))
    chosen = max(there) if step is None else step
    if chosen not in there:
        raise ConfigError(f"{str(run)!r} has no checkpoint of step {chosen} (there are: {', '.join(map(str, there))})")
    return there[chosen]


def _read_metrics(run: Path, step: int) -> dict[str, float]:
    """The metrics of the last evaluation up to a step."""
    rows = [row for row in read_metrics(run / METRICS) if row["step"] <= step]
    own = ({name: value for name, value in row.items() if name.startswith("eval/")} for row in reversed(rows))
    return next(filter(None, own), {})


def _value(settings: Mapping[str, Any], name: str) -> Any:
    """A setting by its dotted key; of a section with a name that name."""
    found = value_at(settings, name)
    return found.get("name") if isinstance(found, Mapping) else found


def shorten_name(value: object) -> str:
    """Return a value as a stranger may see it: of a path its last part, of a hub's name all of it."""
    text = str(value)
    return Path(text).name if text.startswith(("/", "~", ".")) or text.count("/") > 1 else text


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| `{name}` | {value} |" for name, value in rows), ""]
