"""`stage:NAME` in a stage's settings: what an earlier stage of the chain wrote.

stage:NAME         the stage's result, its last checkpoint, where a model is named: `model=`,
                   `rewards.NAME.model=`, `policies.NAME.model=`; elsewhere (`data=`) the stage's run folder,
                   or the file of conversations that a stage with `reject` writes
stage:NAME/PATH    a file or folder in the stage's run folder
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, unknown_name
from agentrl.train.record.chain import BEST

_REFERENCE = re.compile(r"stage:([A-Za-z0-9][A-Za-z0-9_-]*)(?:/(.+))?")
_MODEL = "model"


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A stage's output in another one's settings.

    Attributes:
        setting: the dotted name of the setting, without `.name`.
        stage: the stage's name.
        path: what it is in the stage's run folder; '' for the stage's result, or its folder.
    """

    setting: str
    stage: str
    path: str = ""

    @property
    def is_model(self) -> bool:
        """True if the stage's result is meant."""
        return not self.path and self.setting.rpartition(".")[2] == _MODEL


def is_reference(value: Any) -> bool:
    """Return whether a setting's value names a stage's output."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def references(tree: Any, setting: str = "") -> Iterator[StageOutput]:
    """The references in settings."""
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from references(below, f"{setting}.{key}" if setting else str(key))
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from references(each, setting)
    elif isinstance(tree, str) and (found := _REFERENCE.fullmatch(tree)):
        yield StageOutput(setting.removesuffix(".name"), found[1], found[2] or "")


def check_references(tree: Mapping[str, Any], earlier: Mapping[str, Any], later: tuple[str, ...]) -> None:
    """Refuse references to stages that are not there, or not before this one."""
    for each in references(tree):
        if each.stage in later:
            raise ConfigError(f"{each.setting}=stage:{each.stage}: that stage does not come before this one")
        if each.stage not in earlier:
            unknown = unknown_name("stage", each.stage, list(earlier))
            raise type(unknown)(f"{each.setting}=stage:{each.stage}: {unknown}")
        if ".." in Path(each.path).parts:
            raise ConfigError(f"{each.setting}=stage:{each.stage}/{each.path}: the path leaves the stage's folder")


def resolve_references(tree: Any, folder: Path, results: Mapping[str, str], setting: str = "") -> Any:
    """Settings with paths for references.

    Args:
        tree: the settings.
        folder: the chain's.
        results: each stage's model, or file of conversations, within its run folder.
        setting: the dotted name of what `tree` is.
    """
    if isinstance(tree, Mapping):
        return {
            k: resolve_references(v, folder, results, f"{setting}.{k}" if setting else str(k)) for k, v in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [resolve_references(each, folder, results, setting) for each in tree]
    if not is_reference(tree):
        return tree
    (found,) = references(tree, setting)
    return str(folder / path_of(found, results))


def path_of(output: StageOutput, results: Mapping[str, str]) -> str:
    """Return the path of a stage's output, within the chain's folder."""
    result = results.get(output.stage, "")
    whole = output.is_model or (not output.path and result == BEST)
    return (Path(output.stage) / (result if whole else output.path)).as_posix()
