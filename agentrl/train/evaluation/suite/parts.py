"""A suite's file: what a policy is measured on, part by part.

Beside `parts` the file may have any settings of an evaluation; they hold for every part. A part has its environment and
may have settings of its own; what is on the command line wins over both. The policy is the suite's, never a part's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.config.sections import named_folder
from agentrl.errors import AgentRLError, ConfigError
from agentrl.overrides import Tree, merge, read_yaml, spread, validate
from agentrl.train.driver.setup import complete
from agentrl.train.evaluation.evaluate import refuse_ignored

OF_PARTS = ("env", "eval", "rollout", "rewards", "sandbox", "seed")
"""Sections that a part may set."""
_NAME = re.compile(r"[\w-][\w.-]*")


@dataclass(frozen=True)
class SuitePart:
    """One of a suite's evaluations: its name, and its whole configuration."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Suite:
    """Several evaluations of one policy.

    Attributes:
        name: the file's, without its ending.
        parts: at least one.
        run_dir: where the results go, if that is given.
    """

    name: str
    parts: tuple[SuitePart, ...]
    run_dir: str | None = None

    @property
    def config(self) -> RunConfig:
        """The configuration of the first part: the policy's settings are the same in all."""
        return self.parts[0].config


def read_suite(file: str | Path, words: Mapping[str, Any]) -> Suite:
    """A suite's file, with the settings that were given beside it.

    Args:
        file: a YAML file.
        words: settings for all parts, which win over the file's; no environment.

    Raises:
        ConfigError: the file can't be read, has no parts, or a setting is wrong; the message names the part.
    """
    shared = read_yaml(file)
    parts = shared.pop("parts", None)
    if not isinstance(parts, dict) or not parts:
        example = "parts: {sums: {env: calculator}, problems: {env: gsm8k, env.path: test.jsonl}}"
        raise ConfigError(f"{str(file)!r} has no `parts`, by name, each with an environment, for example\n  {example}")
    for place, tree in (("beside `parts`", shared), ("on the line", words)):
        if "env" in tree:
            raise ConfigError(f"{str(file)!r}: env= stands {place}; each part of a suite has its own")
    run_dir = named_folder({**shared, **words}, "run_dir")
    made = tuple(_part(str(name), given, shared, words, str(file)) for name, given in parts.items())
    return Suite(Path(file).stem, made, run_dir)


def _part(name: str, given: Any, shared: Tree, words: Mapping[str, Any], file: str) -> SuitePart:
    where = f"{file!r}, part {name!r}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a part's name is made of letters, digits, `_`, `-` and `.`")
    own = spread({str(key): value for key, value in (given if isinstance(given, dict) else {"env": given}).items()})
    if foreign := sorted(set(own) - set(OF_PARTS)):
        raise ConfigError(
            f"{where}: {foreign[0]} is no setting of a part (those are {', '.join(OF_PARTS)}); "
            "it stands beside `parts`, or on the line"
        )
    tree = merge(merge(shared, own), words)
    try:
        refuse_ignored(tree)
        config = complete(tree)
        policy = validate({key: value for key, value in tree.items() if key not in OF_PARTS or key == "env"}, RunConfig)
    except AgentRLError as error:
        raise type(error)(f"{where}: {error}") from None
    same = {field: getattr(policy, field) for field in RunConfig.model_fields if field not in OF_PARTS}
    return SuitePart(name, config.model_copy(update=same))  # a recipe for one environment does not change the policy
