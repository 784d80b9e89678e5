"""The settings of a chain's stages: common ones, each stage's own over them, and layers of both.

    runs/CHAIN/chain.yaml  <  a file's  <  the words of the command line

In one layer a stage's own settings win over the common ones. A common setting of a higher layer wins over a stage's of
a lower one, so that `seed=3` on the command line is every stage's. It leaves a stage's references to other stages, and
`model` is the first stage's alone.

A stage with `reject: {n: 8}` plays sessions and keeps the best, as `agentrl reject` does. Its folder is an
evaluation's, with the file of conversations in it, which `data: stage:NAME` reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import EvalConfig, RunConfig
from agentrl.errors import ConfigError, unknown_name
from agentrl.overrides import Tree, applicable, merge, put, spread, validate, value_at
from agentrl.train.chain.references import is_reference
from agentrl.train.driver import setup
from agentrl.train.driver.resuming import flat
from agentrl.train.evaluation.evaluate import list_ignored, refuse_ignored
from agentrl.train.evaluation.rejection import RejectConfig, split_settings
from agentrl.train.record.chain import BEST, STAGES

OF_CHAIN = (STAGES, "run_dir", "resume", "dry_run")
"""Settings that a chain has and no stage."""
NAMED = ("env", "data")
"""Sections of which a stage has one, by name: settings of another name's are not its own."""
GENERATING = ("agent", "rewards", "tools", "warm_start")
"""Common settings that a stage which reads its sessions does not take."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def spread_stages(tree: Mapping[str, Any]) -> Tree:
    """A chain's settings in which the dotted keys of its stages are spread out."""
    if STAGES not in tree:
        return dict(tree)
    stages = tree[STAGES]
    if not isinstance(stages, Mapping) or not stages:
        raise ConfigError(f"{STAGES}={stages!r}: stages are a mapping from names to settings, in their order")
    found: Tree = {}
    for name, own in stages.items():
        if not _NAME.fullmatch(str(name)):
            raise ConfigError(f"{STAGES}.{name}: a stage's name has letters, digits, - and _ only: its folder has it")
        own = {} if own is None else own
        if not isinstance(own, Mapping):
            raise ConfigError(f"stage {name}: {own!r} is no mapping of settings")
        for key in (*OF_CHAIN, "rerun"):
            if key in own:
                raise ConfigError(
                    f"stage {name}: {key} is no stage's setting{'' if key == 'rerun' else '; give it at the top'}"
                )
        found[str(name)] = spread({str(key): value for key, value in own.items()})
    return {**tree, STAGES: found}


def merge_layers(low: Tree, high: Tree) -> Tree:
    """A chain's settings with those of a higher layer over them.

    Raises:
        UnknownName: the higher layer names a stage that the lower one, which has stages, does not.
    """
    below, above = low.get(STAGES) or {}, high.get(STAGES) or {}
    common = {key: value for key, value in high.items() if key != STAGES}
    found: Tree = merge(applicable(low, common), common)
    if not (below or above):
        return found
    stages: Tree = {}
    for number, name in enumerate(below or above):
        own, over = below.get(name, {}), _overriding(common, below.get(name, {}), first=number == 0)
        own = merge(applicable(own, over), over)
        given = above.get(name, {})
        stages[name] = merge(applicable(own, given), given)
    for name in above:
        if name not in stages:
            raise unknown_name("stage", name, list(stages))
    return {**found, STAGES: stages}


def stage_settings(settings: Tree, name: str, *, first: bool) -> Tree:
    """A stage's settings, the common ones included; references are left as they are.

    Args:
        settings: the chain's.
        name: the stage's.
        first: no policy was trained before it, so that it may begin with the chain's `model`.
    """
    own = settings[STAGES][name]
    common = {key: value for key, value in settings.items() if key not in OF_CHAIN}
    for section, other in (NAMED, NAMED[::-1]):
        if section in own:
            common.pop(other, None)
            if _name(common.get(section)) not in (None, _name(own[section])):
                del common[section]
    if "data" in own or ("data" in common and "env" not in own):
        common = {key: value for key, value in common.items() if key not in GENERATING}
    if is_best_of(own):
        common = without({key: value for key, value in common.items() if key != "data"}, _list_unused(common, own))
    if not first and "model" in common:
        common["model"] = {k: v for k, v in _section(common["model"]).items() if k != "name"}
    tree = merge(applicable(common, own), own)
    if tree.get("model") == {}:
        del tree["model"]
    if tree.get("checkpoint_url"):
        tree["checkpoint_url"] = f"{str(tree['checkpoint_url']).rstrip('/')}/{name}"
    return tree


def without(tree: Tree, settings: Collection[str], prefix: str = "") -> Tree:
    """Settings without some, by their dotted names."""
    found: Tree = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name.removesuffix(".name") in settings and not isinstance(value, Mapping):
            continue
        below = without(dict(value), settings, f"{name}.") if isinstance(value, Mapping) else value
        if below != {} or value == {}:
            found[key] = below
    return found


def _list_unused(common: Tree, own: Tree) -> list[str]:
    """Those of the common settings that a stage which trains nothing does not use."""
    found = list_unused({**common, **({"policy": own["policy"]} if "policy" in own else {})})
    return [name.removesuffix(".name") for name in found]


def _overriding(common: Tree, own: Tree, *, first: bool) -> Tree:
    """Those of the common settings that a stage has settings of its own for."""
    over: Tree = {}
    for key, value in flat(common).items():
        plain = key.removesuffix(".name")
        before = value_at(own, key)
        if before is None and plain != key and isinstance(value_at(own, plain), str):
            before = value_at(own, plain)
        if before is None or is_reference(_name(before)) or (plain == "model" and not first) or plain in OF_CHAIN:
            continue
        put(over, plain, value)
    return over


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"name": value}


def _name(value: Any) -> Any:
    return value.get("name") if isinstance(value, Mapping) else value


REJECT = "reject"
"""The section of a stage that makes it one of these."""


def is_best_of(own: Mapping[str, Any]) -> bool:
    """Return whether a stage's own settings are those of such a stage."""
    return REJECT in own


def list_unused(tree: Tree) -> list[str]:
    """The settings of training, by their dotted names, which such a stage takes from no common ones."""
    return [*list_ignored({key: value for key, value in tree.items() if key != REJECT})]


def read_reject(tree: Tree, folder: Path) -> tuple[RunConfig, RejectConfig]:
    """The evaluation that such a stage is, and what it keeps."""
    given = tree[REJECT]
    given = {} if given is None else given
    names = [name for name in RejectConfig.model_fields if name != "out"]
    if not isinstance(given, Mapping):
        raise ConfigError(f"{REJECT}={given!r}: it is a mapping with {', '.join(names)}, such as {REJECT}: {{n: 8}}")
    if "out" in given:
        raise ConfigError(f"{REJECT}.out: a stage's file is {BEST} in its folder, and data=stage:NAME reads it")
    if unknown := next((name for name in given if name not in names), None):
        raise unknown_name("setting", f"{REJECT}.{unknown}", [f"{REJECT}.{name}" for name in names])
    if flat := next((name for name in RejectConfig.model_fields if name in tree), None):
        raise ConfigError(f"{flat} is {REJECT}.{flat} in a stage")
    if tree.get("data") is not None:
        raise ConfigError(f"data={tree['data']}: a stage with {REJECT} plays an environment: env=NAME")
    rest = {key: value for key, value in tree.items() if key != REJECT}
    refuse_ignored(rest)
    own = validate({**given, "out": str(folder / BEST)}, RejectConfig)
    settings, own = split_settings({**rest, **own.model_dump()})
    return setup.complete({**settings, "run_dir": str(folder)}, {}), own


def describe_stage(own: RejectConfig, measured: EvalConfig, env: str, who: str) -> Iterator[str]:
    """The lines of a dry run."""
    low = measured.solved_at if own.min_reward is None else own.min_reward
    yield f"plays {own.n} sessions of each of {measured.tasks} tasks of {env} by {who}"
    yield f"keeps at most {own.max_per_task} of a task, with a reward of at least {low:g}, in {own.out}"
