"""Checks of a run's model before it starts: the architecture, the loaded weights, the recording of routed experts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from agentrl.attachments import routed_experts
from agentrl.common import cores
from agentrl.config import (
    MODEL,
    START,
    ClusterConfig,
    DataConfig,
    EngineConfig,
    ModelConfig,
    Policies,
    PolicyConfig,
    RolloutConfig,
    TrainerConfig,
)
from agentrl.config.learners import LearnerConfig, Learners, named_as_given
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import untrained
from agentrl.models.devices import torch_device
from agentrl.models.registry import model_folder
from agentrl.models.tokenizers import load_tokenizer
from agentrl.models.vision import read_seeing_type, sees
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.episodes.policies import sampling_of
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.train.algorithms import Algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import setup
from agentrl.train.trainers import TRAINERS, Trainer, proof
from agentrl.train.trainers.loaded import Loaded, require_loaded
from agentrl.types import MAIN, Engine

MANY_SESSIONS = 2048
"""Sessions of a run from which on an engine of a small model gets a process of its own: each takes some milliseconds of
both, and the process takes a few seconds to start."""


def prove_architecture(
    own: LearnerConfig, policies: Policies, base: Path, display: Display, *, trains: bool, later: bool = False
) -> None:
    """Refuse a model that the trainer or the local engine computes differently than transformers.

    `later`: the main policy's trainer is proved by `prove_trainer`, once its servers load.
    """
    for name, policy in policies.items():
        if policy.name == MODEL:
            with named_as_given(policies, name):
                _prove_other(own, policy, base, display, trains=trains and policy.learns)
    model, engine, trainer = own.model, own.engine, own.trainer
    if trains and (kind := read_seeing_type(base)) is not None:
        _require_tower(trainer.name, model.name, kind)
        if own.lora.active:
            raise ConfigError(
                f"lora.rank: model={model.name!r} ({kind}) sees images, and adapters of such models are not trained "
                "yet; train it whole"
            )
    if model.name == setup.TINY:
        return
    if trains:
        _say_untrained(trainer, base, display)
    if sees(base):
        _prove_images(model, base, display)
        if not ENGINES.find(engine.name).takes_images(engine, base):
            display.warn(
                f"engine={engine.name} takes no images with a prompt of this model, with these settings: "
                "sessions that show any end in an error; engine=local takes them"
            )
    if trains and not later:
        prove_trainer(trainer, base, model.name, engine.max_context, display)
    _prove_engine(engine, base, model.name, display)


def _prove_other(main: LearnerConfig, policy: PolicyConfig, base: Path, display: Display, *, trains: bool) -> None:
    """Do the same for a policy beside the main one, which begins with `base` or with a model of its own."""
    model = main.model if policy.model.name == START else policy.model
    if model.name == setup.TINY:
        return
    folder = base if policy.model.name == START else model_folder(policy.model)
    if trains:
        prove_trainer(main.beside(policy).trainer, folder, model.name, policy.engine.max_context, display)
    _prove_engine(policy.engine, folder, model.name, display)


def loads_meanwhile(data: DataConfig | None, engine: EngineConfig) -> bool:
    """Return whether a run's engines are servers, which load while this process proves the trainer."""
    return data is None and not ENGINES.find(engine.name).in_process(engine)


def prove_trainer(trainer: TrainerConfig, base: Path, name: str, context: int | None, display: Display) -> None:
    """Refuse a model that the trainer computes differently than transformers."""
    plugin = TRAINERS.find(trainer.name)
    if name != setup.TINY and plugin.proves(trainer):
        with display.part("proving the architecture for the trainer"):
            plugin.prove(trainer, base, name, context)


def _require_tower(trainer: str, model: str, kind: str) -> None:
    """Refuse a trainer that has no place for the tower of a model that sees."""
    if kind not in TRAINERS.find(trainer).trains_images:
        able = " or ".join(f"trainer={name}" for name, one in TRAINERS.available().items() if kind in one.trains_images)
        raise ConfigError(
            f"model={model!r} ({kind}) sees images, and trainer={trainer} has no place for its tower: use {able}"
        )


def _prove_images(model: ModelConfig, base: Path, display: Display) -> None:
    """Refuse a renderer whose tokens or pixels of images are not those of the model's own processor."""
    with display.part("comparing the renderer's images with the processor's"):
        proof = prove_images(get_renderer(base, model.renderer, model.stop))
    if proof.fault:
        raise ConfigError(
            f"model={model.name!r} can't be shown images by model.renderer={model.renderer!r}: {proof}; "
            "model.renderer=generic writes the model's own chat template"
        )
    display.say(str(proof))


def require_one_tokenizer(algorithms: Mapping[str, Algorithm], own: str, policies: Policies, base: Path) -> None:
    """Refuse critics that read the tokens of all policies where these have several tokenizers.

    `algorithms`: of the policies that learn. `own`: the name of the main policy's model, whose folder is `base`.
    """
    reader = next((name for name, each in algorithms.items() if each.reads_joint_paths), None)
    if reader is None:
        return
    where = "" if reader == MAIN else f"policies.{reader}."
    mine = load_tokenizer(base).vocabulary
    for name, policy in policies.items():
        if policy.name != MODEL or policy.model.name == START:
            continue
        if load_tokenizer(model_folder(policy.model)).vocabulary != mine:
            raise ConfigError(
                f"{where}algo.value_path=joint reads the tokens of all agents in one path, and policies.{name}.model="
                f"{policy.model.name} has another tokenizer than model={own}: use "
                f"{where}algo.value_path=agent, with {where}algo.value_view where the environment has "
                "critic_view(agent)"
            )


def _say_untrained(trainer: TrainerConfig, base: Path, display: Display) -> None:
    """Say what of the model's files is not trained, and whether the trainer copies it into checkpoints."""
    plugin = TRAINERS.find(trainer.name)
    if plugin.untrained is not None:
        with suppress(InvalidInput):  # what can't be read is refused where it is loaded
            for line in untrained.notes(base, kept=plugin.untrained == "kept"):
                display.say(line)


def _prove_engine(engine: EngineConfig, base: Path, name: str, display: Display) -> None:
    if ENGINES.find(engine.name).proves(engine):
        with display.part("proving the architecture for the engine"):
            device = torch_device(engine.device, "engine.device")
            proof.require(base, name, device, subject="local", dtype=engine.dtype, context=engine.max_context)


def compare_loaded(
    own: LearnerConfig, algorithm: Algorithm, base: Path, trainer: Trainer, display: Display
) -> Loaded | None:
    """Refuse a trainer whose loaded weights compute something else than transformers' model.

    Returns:
        The comparison; None where there was nothing to compare.
    """
    chosen = own.trainer
    if own.model.name == setup.TINY or not TRAINERS.find(chosen.name).proves(chosen):
        return None
    if own.lora.adapter is not None or algorithm.needs.head is not None:
        return None  # it begins as another model than the folder's
    with display.part("comparing the trainer's weights with the folder's"):
        device = torch_device(chosen.device, "trainer.device")
        held = () if (kind := own.lora.quantize) == "none" else (kind, version("bitsandbytes"))
        found = require_loaded(trainer, base, own.model.name, chosen, device, (own.engine.dtype,), held)
    if found.not_compared:
        display.warn(str(found))
    return found


def is_driven_hard(limits: RolloutConfig, steps: int, base: Path) -> bool:
    """Return whether an engine of a small model waits for the run's own Python, and that long enough to be apart.

    With such a model the sessions cost as much of the interpreter's lock as the engine, which takes seconds to start.
    """
    many = steps * limits.groups_per_step * limits.group_size >= MANY_SESSIONS
    return many and len(cores.list_allowed()) > 1 and cores.is_small(base) and not sees(base)


def engine_settings(
    own: LearnerConfig, limits: RolloutConfig, machines: ClusterConfig, *, apart: bool = False
) -> EngineConfig:
    """The engine's settings: suited to training beside it, and recording what the trainer makes use of.

    `apart`: it gets a process of its own where it may, as it does beside a trainer.
    """
    engine, trainer = own.engine, TRAINERS.find(own.trainer.name)
    if limits.staleness or machines.name != "local" or apart:
        engine = ENGINES.find(engine.name).beside_trainer(engine)
    if trainer.replays_experts(own.trainer):
        engine = engine.model_copy(update={"routed_experts": True})
    if not trainer.computes_supports:
        engine = engine.model_copy(update={"support_bytes": 0})
    return engine


def suit_engines(learners: Learners, policies: Policies, limits: RolloutConfig, machines: ClusterConfig) -> Policies:
    """Return a run's policies, with the engines of those that learn beside the main one suited as its own is."""
    engines = {name: engine_settings(own, limits, machines) for name, own in learners.items() if name != MAIN}
    return {**policies, **{name: policies[name].model_copy(update={"engine": own}) for name, own in engines.items()}}


def require_recording(trainer: TrainerConfig, settings: EngineConfig, engine: Engine) -> None:
    """Refuse an engine that does not record the routed experts that training is to replay."""
    replays = TRAINERS.find(trainer.name).replays_experts(trainer)
    if replays and routed_experts.NAME not in engine.capabilities.attachments:
        raise ConfigError(
            f"trainer.moe.routing_replay=rollout: engine={settings.name} does not record routed experts "
            "(capabilities.attachments); use trainer.moe.routing_replay=forward, or engine=local, sglang or vllm"
        )


def require_supports(limits: RolloutConfig, engine: Engine) -> None:
    """Refuse engines that have started and don't tell what a run's tokens will be drawn from."""
    narrowed, why = limits.narrowed, as_managed(engine).unrecorded(sampling_of(limits))
    if narrowed and why:
        raise ConfigError(
            f"rollout.{narrowed}: no token could be trained: {why}, since it does not tell what is left of the "
            "vocabulary; allow_no_signal=true runs nevertheless"
        )
