"""A chain's plan: the configuration of every stage, built and checked before the first stage begins.

What a stage takes from an earlier one is not there yet. Its configuration is built with the paths that these outputs
will have, if each stage takes all of its steps. It is checked with the model that the chain's policy begins as in the
place of a stage's result: tokenizer, template and architecture are the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.config import MODEL, START, RunConfig
from agentrl.config.secrets import HIDDEN, public, without_secrets
from agentrl.config.sections import named_folder
from agentrl.errors import AgentRLError, ConfigError
from agentrl.overrides import Tree, merge, read_yaml, value_at
from agentrl.train.algorithms import make_algorithm
from agentrl.train.chain.layers import (
    REJECT,
    describe_stage,
    is_best_of,
    merge_layers,
    read_reject,
    spread_stages,
    stage_settings,
    without,
)
from agentrl.train.chain.references import StageOutput, check_references, path_of, references, resolve_references
from agentrl.train.driver import setup
from agentrl.train.driver.resuming import FIXED, changed_settings, saved_settings
from agentrl.train.evaluation.rejection import RejectConfig
from agentrl.train.plan.dry_run import describe_run
from agentrl.train.plan.preflight import WrittenLater, check_evaluation, check_training
from agentrl.train.record import chain
from agentrl.train.record.chain import BEST, STAGES, ChainRecord, StageKind, StageRecord, StageState, settings_hash

UNKNOWN = RunConfig.model_validate({"env": "unknown"})
"""The configuration of a stage of which something is wrong, for those after it to be planned."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage as it is planned.

    Attributes:
        tree: its settings, with references as they were written and the model that it begins with.
        config: its configuration, with the paths that the references will have.
        root: the model that its policy began as when the chain began.
        policy: whether its result is a policy, with which the next stage begins; a reward model is none.
        best_of: of a stage that plays sessions and keeps the best, what is kept; None of one that trains.
    """

    name: str
    tree: Tree
    config: RunConfig
    root: str
    policy: bool
    best_of: RejectConfig | None = None

    @property
    def kind(self) -> StageKind:
        """The kind of stage."""
        return StageKind.TRAIN if self.best_of is None else StageKind.REJECT

    @property
    def hash(self) -> str:
        """A hash of its settings, secrets aside."""
        return settings_hash(without_declared(self.tree, public(self.config)))

    @property
    def model(self) -> StageOutput | None:
        """The stage whose result this one begins with; None where it begins with another model."""
        return next((each for each in references(self.tree) if each.setting == "model"), None)


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain as it is planned.

    Attributes:
        path: its folder.
        settings: as its chain.yaml has them.
        stages: in their order.
        record: the manifest of one that is resumed; None of one that begins.
        dry_run: whether the plan is all that is wanted.
    """

    path: Path
    settings: Tree
    stages: tuple[Stage, ...]
    record: ChainRecord | None
    dry_run: bool = False

    def state(self, name: str) -> StageState:
        """The state that a stage is in."""
        found = self.record.stage(name) if self.record else None
        return found.state if found else StageState.WAITING

    def begun_record(self) -> ChainRecord:
        """The manifest that it begins or goes on with."""
        old = self.record
        stages = [StageRecord(each.name, StageState.WAITING, each.hash, kind=each.kind) for each in self.stages]
        if old is not None:
            stages = [
                new
                if (was := old.stage(new.name)) is None or was.state is StageState.WAITING
                else StageRecord(was.name, was.state, new.settings, was.start, was.end, new.kind)
                for new in stages
            ]
        return ChainRecord(self.path, tuple(stages))

    def lines(self) -> Iterator[str]:
        """The lines of its dry run."""
        yield f"chain of {len(self.stages)} stages in {self.path}: nothing is started"
        for number, stage in enumerate(self.stages, 1):
            taken = ", ".join(f"{each.setting} of {each.stage}" for each in references(stage.tree))
            yield f"stage {stage.name} ({number} of {len(self.stages)}){f': {taken}' if taken else ''}"
            if self.state(stage.name) is StageState.DONE:
                yield "  it is done"
                continue
            checked = _as_checked(stage)
            lines = (
                describe_run(checked)
                if stage.best_of is None
                else describe_stage(stage.best_of, checked.eval, checked.env.name, checked.played_by)
            )
            for line in lines:
                yield f"  {line}"


def plan_chain(*layers: Tree) -> Chain:
    """Plan a chain, or one that is resumed.

    Raises:
        AgentRLError: something is wrong with a stage; the message names it, and all others of which something is.
    """
    given: Tree = {}
    for layer in layers:
        given = merge_layers(given, spread_stages(layer))
    if given.get("rerun"):
        raise ConfigError("rerun is for runs: rerun=CHAIN/STAGE repeats a stage")
    record = None
    if (resumed := named_folder(given, "resume")) is not None:
        path = Path(resumed)
        record, given = chain.read(path), spread_stages(read_yaml(path / chain.SETTINGS))
        for layer in layers:
            given = merge_layers(given, spread_stages({key: value for key, value in layer.items() if key != "run_dir"}))
    else:
        path = Path(named_folder(given, "run_dir") or f"runs/chain-{time.strftime('%Y%m%d-%H%M%S')}")
        if chain.is_chain(path) or (path / "config.yaml").exists():
            kind = "chain" if chain.is_chain(path) else "run"
            raise ConfigError(f"run_dir={str(path)!r} holds a {kind} already; resume={path} continues it")
    settings = {key: value for key, value in given.items() if key not in ("resume", "dry_run")}
    plan = Chain(path, settings, _stages(path, settings, record), record, given.get("dry_run") in (True, "true"))
    _check(plan)
    return plan


def kept_settings(plan: Chain) -> Tree:
    """The settings as chain.yaml has them: without secrets, which are given anew."""
    stages = {
        stage.name: without_declared(plan.settings[STAGES][stage.name], public(stage.config)) for stage in plan.stages
    }
    found: Tree = {**plan.settings, STAGES: stages}
    for stage in plan.stages:
        found = without_declared(found, public(stage.config))
    return found


def without_declared(tree: Mapping[str, Any], shown: Mapping[str, Any]) -> Tree:
    """Settings without what their names tell to be secret, or what their configuration does not show (`public`)."""

    def kept(below: Mapping[str, Any], prefix: str) -> Tree:
        found: Tree = {}
        for key, value in below.items():
            public_value = value_at(shown, f"{prefix}{key}")
            if isinstance(value, Mapping):
                found[key] = kept(value, f"{prefix}{key}.")
            else:
                found[key] = public_value if HIDDEN in str(public_value) else value
        return found

    found: Tree = kept(without_secrets(tree), "")
    return found


def begin_config(plan: Chain, stage: Stage, record: ChainRecord) -> RunConfig:
    """The configuration with which a stage begins, now that what earlier stages wrote is there."""
    found: Tree = resolve_references(stage.tree, plan.path, results_of(record))
    if stage.best_of is not None:
        return read_reject(found, plan.path / stage.name)[0]
    return setup.complete({**found, "run_dir": str(plan.path / stage.name)}, {})


def resume_config(plan: Chain, stage: Stage, record: ChainRecord) -> RunConfig:
    """The configuration with which a stage that has begun goes on.

    Raises:
        ConfigError: it began with another stage's model.
    """
    known = record.stage(stage.name)
    start = known.start if known else None
    if start is not None and stage.model is not None and start.stage != stage.model.stage:
        raise ConfigError(f"model=stage:{stage.model.stage}: it began with the model of {start.stage or start.model}")
    if stage.best_of is not None:
        return begin_config(plan, stage, record)  # what it has played is compared as it goes on
    kept = [each.setting for each in references(stage.tree) if each.setting.partition(".")[0] in FIXED]
    tree = without(stage.tree, kept)
    found: Tree = resolve_references(tree, plan.path, results_of(record))
    return setup.complete({**found, "resume": str(plan.path / stage.name)}, {})


def outputs_read(stage: Stage, record: ChainRecord) -> dict[str, str]:
    """List the outputs that a stage takes from others beside its first model: places in the chain, with digests."""
    others = [each for each in references(stage.tree) if each.setting != "model"]
    paths = [path_of(each, results_of(record)) for each in others]
    return {path: chain.output_digest(record.path / path) for path in paths}


def results_of(record: ChainRecord) -> dict[str, str]:
    """The results of stages that are done, within their folders."""
    return {each.name: each.end.model for each in record.stages if each.end is not None}


def name_stage(error: Exception, stage: str) -> None:
    """Have an error begin with the stage that it is of."""
    error.args = (f"stage {stage}: {error.args[0] if error.args else error}", *error.args[1:])


def _stages(path: Path, settings: Tree, record: ChainRecord | None) -> tuple[Stage, ...]:
    """All stages; what is wrong with any of them is one error."""
    stages: dict[str, Stage] = {}
    models = {each.name: each.end.model for each in record.stages if each.end} if record else {}
    wrong: list[AgentRLError] = []
    names = tuple(settings[STAGES])
    for number, name in enumerate(names):
        try:
            first = not any(each.policy for each in stages.values())
            tree = _with_model(stage_settings(settings, name, first=first), stages, names[number:])
            stages[name] = _stage(path, name, tree, stages, models, record, settings[STAGES][name])
        except AgentRLError as error:
            name_stage(error, name)
            wrong.append(error)
            models.setdefault(name, "checkpoints")
            stages[name] = Stage(name, {}, UNKNOWN, setup.TINY, True)
    if wrong:
        raise _together(wrong)
    return tuple(stages.values())


def _with_model(tree: Tree, earlier: Mapping[str, Stage], later: tuple[str, ...]) -> Tree:
    """A stage's settings with the model that it begins with: by default the result of the last policy before it."""
    check_references(tree, earlier, later)
    before = next((each for each in reversed([*earlier.values()]) if each.policy), None)
    if is_best_of(tree) and tree.get("policy", "model") != "model":
        return tree
    if before is None or value_at(merge({"model": {}}, tree), "model.name") is not None:
        return tree
    return merge(tree, {"model": f"stage:{before.name}"})


def _stage(
    path: Path,
    name: str,
    tree: Tree,
    earlier: Mapping[str, Stage],
    models: dict[str, str],
    record: ChainRecord | None,
    own: Tree,
) -> Stage:
    """Plan a stage with these settings, of which those that are its `own` must have an effect."""
    for each in references(tree):
        if each.is_model and earlier[each.stage].best_of is not None:
            where = f"data=stage:{each.stage}"
            raise ConfigError(f"{each.setting}=stage:{each.stage}: that stage's result is no model; {where} reads it")
    best = None
    if is_best_of(tree):
        config, best = read_reject(resolve_references(tree, path, models), path / name)
        models[name] = BEST
    else:
        config = _training(path, name, tree, models, record, own)
        models.setdefault(name, f"checkpoints/step-{config.steps:06d}")
    policy = best is None and make_algorithm(config.algo).needs.head is None
    stage = Stage(name, tree, config, config.model.name, policy, best)
    start = stage.model
    if start is not None and start.is_model and not earlier[start.stage].policy:
        raise ConfigError(f"model=stage:{start.stage}: that stage's result is no policy")
    return stage if start is None else replace(stage, root=earlier[start.stage].root)


def _training(
    path: Path, name: str, tree: Tree, models: Mapping[str, str], record: ChainRecord | None, own: Tree
) -> RunConfig:
    known = record.stage(name) if record else None
    if known is not None and known.state is StageState.DONE:
        saved = saved_settings(path / name)
        if known.settings == settings_hash(without_declared(tree, public(saved))):
            return saved  # needs no secrets, and nothing that it names
    return setup.complete({**resolve_references(tree, path, models), "run_dir": str(path / name)}, own)


def _together(wrong: list[AgentRLError]) -> AgentRLError:
    return wrong[0] if len(wrong) == 1 else ConfigError("\n".join(map(str, wrong)))


def _check(plan: Chain) -> None:
    """Look up what the stages that are still to come name, and refuse changes of those that are done."""
    wrong: list[AgentRLError] = []
    for stage in plan.stages:
        try:
            if plan.state(stage.name) is StageState.DONE:
                _refuse_changes(plan, stage)
            elif not (plan.path / stage.name / "config.yaml").exists():  # one that has begun is checked as it resumes
                _check_stage(plan, stage)
        except AgentRLError as error:
            name_stage(error, stage.name)
            wrong.append(error)
    if wrong:
        raise _together(wrong)


def _check_stage(plan: Chain, stage: Stage) -> None:
    """Look up what a stage names that is still to come."""
    if stage.best_of is not None:
        check_evaluation(_as_checked(stage))
        return
    read = next((each for each in references(stage.tree) if each.setting == "data"), None)
    files = [each.name for each in plan.stages if each.best_of is not None]
    later: WrittenLater = "" if read is None else "file" if read.path or read.stage in files else "run"
    check_training(_as_checked(stage), written_later=later)


def _as_checked(stage: Stage) -> RunConfig:
    """A stage's configuration with models that are there in the place of other stages' results, and no such rewards."""
    config = stage.config
    named = [each.setting for each in references(stage.tree)]
    policies = {
        name: own.model_copy(update={"model": own.model.model_copy(update={"name": START})})
        if own.name == MODEL and f"policies.{name}.model" in named
        else own
        for name, own in config.policies.items()
    }
    model = config.model.model_copy(update={"name": stage.root})
    rewards = {name: own for name, own in config.rewards.items() if f"rewards.{name}.model" not in named}
    return config.model_copy(update={"model": model, "policies": policies, "rewards": rewards})


def _refuse_changes(plan: Chain, stage: Stage) -> None:
    """Refuse other settings of a stage that is done."""
    known = plan.record.stage(stage.name) if plan.record else None
    if known is None or known.settings == stage.hash:
        return
    changed = changed_settings(public(saved_settings(plan.path / stage.name)), public(stage.config))
    if stage.best_of is not None:
        before = read_yaml(plan.path / chain.SETTINGS)[STAGES][stage.name]
        changed += [REJECT] if before.get(REJECT) != stage.tree[REJECT] else []
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: the stage is done, and keeps its settings; a new chain, run_dir=…, has others"
        )
