"""The file of a suite's, or one evaluation's, results, `result.json`; and the settings of a comparison with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field

from agentrl.config import NAMED, Section
from agentrl.errors import ConfigError
from agentrl.overrides import Tree, validate
from agentrl.rollout.episodes import edits
from agentrl.rollout.stream.batch_metrics import Evaluation
from agentrl.sessions.store.store import Store
from agentrl.train.record.chain import is_chain
from agentrl.train.record.files import write_atomically
from agentrl.train.record.run_folder import RunFolder
from agentrl.train.record.seals import SETTINGS, digest

NAME = "result.json"
DATA = "data.json"
"""The identity of an evaluation's data (`envs.data.identity`)."""


@dataclass(frozen=True)
class Results:
    """The results of one policy.

    Attributes:
        name: the suite's, or the environment's.
        policy: what was measured.
        parts: by name, what `agentrl eval` writes for an evaluation; see `agentrl.train.evaluation.evaluate`.
        seconds: that measuring took, without what was there already.
        path: the folder that they are in.
    """

    name: str
    policy: str
    parts: Mapping[str, Mapping[str, Any]]
    seconds: float = 0.0
    path: Path | None = None

    @property
    def worked(self) -> bool:
        """True where each part has something that says something about the policy."""
        return all(part["worked"] for part in self.parts.values())

    @property
    def cost(self) -> float | None:
        """The cost of all parts together; None without prices."""
        costs = [part["cost"] for part in self.parts.values() if part.get("cost") is not None]
        return sum(costs) if costs else None

    def to_json(self) -> bytes:
        """Return the bytes of the file."""
        data = {"suite": self.name, "policy": self.policy, "seconds": round(self.seconds, 3), "parts": self.parts}
        return orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n"


def read_results(path: str | Path) -> Results:
    """The results in a file, or in the folder of a suite or of an evaluation; scores are those that people gave.

    Raises:
        ConfigError: there are none, or they lack what is compared.
        StoreError: people edited them, and the history of that is damaged.
    """
    file = Path(path)
    file = file / NAME if file.is_dir() else file
    try:
        data = orjson.loads(file.read_bytes())
    except OSError as error:
        if is_chain(Path(path)) or (Path(path) / SETTINGS).is_file():
            raise ConfigError(
                f"{str(path)!r} is a training run or a chain, and results of agentrl eval are compared: measure its "
                "policy, agentrl eval model=…/checkpoints/step-…; agentrl diff compares runs and chains by their curves"
            ) from None
        raise ConfigError(f"{str(path)!r}: can't read {file.name}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{str(file)!r} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{str(file)!r} is no result of agentrl eval")
    try:
        parts = _parts(data, file.parent)
        for part in parts.values():
            _ = [(task["task"], task["digest"], task["scores"]) for task in part["scores"]]
            _ = part["mean"], part["worked"]
        name = str(data.get("suite") or data.get("env") or file.stem)
        return Results(name, data["policy"], parts, data.get("seconds", 0.0), file.parent)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{str(file)!r} is no result of agentrl eval: it lacks {error}") from None


def _parts(data: Mapping[str, Any], folder: Path) -> dict[str, Mapping[str, Any]]:
    """The parts of a result, or itself as one; with the edits of the folders that their sessions are in."""
    if "parts" not in data:
        return {data.get("env", "evaluation"): edits.apply_edits(folder, data)}
    parts = dict(data["parts"])
    for file in sorted(folder.glob(f"*/{edits.FILE}")):
        measured = orjson.loads((file.parent / NAME).read_bytes())
        own = {name: part for name, part in data["parts"].items() if part == measured}
        parts |= {name: edits.apply_edits(file.parent, part) for name, part in own.items()}
    return parts


def number(value: Any) -> float:
    """A number of a result: JSON has null for NaN."""
    return math.nan if value is None else float(value)


class CompareConfig(Section):
    """The settings of a comparison with an earlier result."""

    name: str
    """A result.json, or the folder that has it."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """The chance of calling equal policies different, over all parts."""
    accept_changed_data: bool = False
    """Compare the tasks that both have, with the same content, where their data differs."""


class _Compared(Section):
    compare: Annotated[CompareConfig, NAMED]


def take_baseline(tree: Tree) -> CompareConfig | None:
    """Take `compare` out of an evaluation's settings; its file is read at once, so that it is not missed at the end."""
    if "compare" not in tree:
        return None
    chosen = validate({"compare": tree.pop("compare")}, _Compared).compare
    read_results(chosen.name)
    return chosen


def write_result(folder: RunFolder, store: Store, data: Mapping[str, Any]) -> None:
    """Seal what was measured, and write `result.json`."""
    content = orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n"
    files = {name: digest((folder.path / name).read_bytes()) for name in (SETTINGS, DATA)}
    folder.seals.add(0, evaluation="ended", sessions=store.digests(), files={**files, NAME: digest(content)})
    write_atomically(folder.path / NAME, content)


def numbers(result: Evaluation) -> dict[str, Any]:
    """Return a result as `result.json` has it."""
    passes = {"pass_at": result.pass_at, "pass_hat": result.pass_hat}
    by_name = {name: {str(k): value for k, value in each.items()} for name, each in passes.items()}
    return asdict(result) | by_name
