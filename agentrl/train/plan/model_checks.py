"""Checks of a run's model before it starts: the architecture, the loaded weights, the recording of routed experts."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from agentrl.attachments import routed_experts
from agentrl.config import MODEL, START, EngineConfig, ModelConfig, RolloutConfig, RunConfig, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import untrained
from agentrl.models.devices import torch_device
from agentrl.models.registry import model_folder
from agentrl.models.tokenizers import load_tokenizer
from agentrl.models.vision import read_seeing_type, sees
from agentrl.rollout.engines import ENGINES
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.episodes.actors import sampling_of
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.proof.images import prove_images
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver import setup
from agentrl.train.trainers import TRAINERS, Trainer, proof
from agentrl.train.trainers.loaded import Loaded, require_loaded
from agentrl.types import Engine


def prove_architecture(config: RunConfig, base: Path, display: Display, *, trains: bool) -> None:
    """Refuse a model that the trainer or the local engine computes differently than transformers.

    The trainer of a run that `loads_meanwhile` is proved by `prove_trainer`, once its servers load.

    Raises:
        ConfigError: with the numbers.
    """
    for policy in config.policies.values():
        if policy.name == MODEL and policy.model.name != START:
            _prove_engine(policy.engine, model_folder(policy.model), policy.model.name, display)
    if trains and (kind := read_seeing_type(base)) is not None:
        _require_tower(config, kind)
    if config.model.name == setup.TINY:
        return
    if trains:
        _say_untrained(config.trainer, base, display)
    if sees(base):
        _prove_images(config.model, base, display)
        if not ENGINES.find(config.engine.name).takes_images(config.engine, base):
            display.warn(
                f"engine={config.engine.name} takes no images with a prompt of this model, with these settings: "
                "sessions that show any end in an error; engine=local takes them"
            )
    if trains and not loads_meanwhile(config):
        prove_trainer(config, base, display)
    _prove_engine(config.engine, base, config.model.name, display)


def loads_meanwhile(config: RunConfig) -> bool:
    """Return whether the run's engines are servers, which load while this process proves the trainer."""
    return config.data is None and not ENGINES.find(config.engine.name).in_process(config.engine)


def prove_trainer(config: RunConfig, base: Path, display: Display) -> None:
    """Refuse a model that the trainer computes differently than transformers.

    Raises:
        ConfigError: with the numbers.
    """
    trainer = TRAINERS.find(config.trainer.name)
    if config.model.name == setup.TINY or not trainer.proves(config.trainer):
        return
    with display.part("proving the architecture for the trainer"):
        trainer.prove(config.trainer, base, config.model.name, config.engine.max_context)


def _require_tower(config: RunConfig, kind: str) -> None:
    """Refuse a trainer that has no place for the tower of a model that sees."""
    if kind not in TRAINERS.find(config.trainer.name).trains_images:
        able = " or ".join(f"trainer={name}" for name, one in TRAINERS.available().items() if kind in one.trains_images)
        raise ConfigError(
            f"model={config.model.name!r} ({kind}) sees images, and trainer={config.trainer.name} has no place for its "
            f"tower: use {able}"
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


def require_one_tokenizer(config: RunConfig, base: Path) -> None:
    """Refuse critics that read the tokens of all policies where these have several tokenizers.

    Raises:
        ConfigError: another policy's tokens mean something else than the main one's.
    """
    algos = {"": config.algo} | {f"policies.{name}.": config.of_policy(name).algo for name in config.learned}
    where = next((name for name, algo in algos.items() if make_algorithm(algo).reads_joint_paths), None)
    if where is None:
        return
    mine = load_tokenizer(base).vocabulary
    for name, policy in config.policies.items():
        if policy.name != MODEL or policy.model.name == START:
            continue
        if load_tokenizer(model_folder(policy.model)).vocabulary != mine:
            raise ConfigError(
                f"{where}algo.value_path=joint reads the tokens of all agents in one path, and policies.{name}.model="
                f"{policy.model.name} has another tokenizer than model={config.model.name}: use {where}algo.value_path="
                f"agent, with {where}algo.value_view where the environment has critic_view(agent)"
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
    config: RunConfig, algorithm: Algorithm, base: Path, trainer: Trainer, display: Display
) -> Loaded | None:
    """Refuse a trainer whose loaded weights compute something else than transformers' model.

    Returns:
        The comparison; None where there was nothing to compare.

    Raises:
        ConfigError: with the numbers, and the first layer that differs.
    """
    chosen = config.trainer
    if config.model.name == setup.TINY or not TRAINERS.find(chosen.name).proves(chosen):
        return None
    if config.lora.adapter is not None or algorithm.needs.head is not None:
        return None  # it begins as another model than the folder's
    with display.part("comparing the trainer's weights with the folder's"):
        device = torch_device(chosen.device, "trainer.device")
        held = () if (kind := config.lora.quantize) == "none" else (kind, version("bitsandbytes"))
        found = require_loaded(trainer, base, config.model.name, chosen, device, (config.engine.dtype,), held)
    if found.not_compared:
        display.warn(str(found))
    return found


def engine_settings(config: RunConfig) -> EngineConfig:
    """The engine's settings: suited to training beside it, and recording what the trainer makes use of."""
    engine = config.engine
    if config.rollout.staleness or config.cluster.name != "local":
        engine = ENGINES.find(engine.name).beside_trainer(engine)
    if TRAINERS.find(config.trainer.name).replays_experts(config.trainer):
        engine = engine.model_copy(update={"routed_experts": True})
    if not TRAINERS.find(config.trainer.name).computes_supports:
        engine = engine.model_copy(update={"support_bytes": 0})
    return engine


def suit_engines(config: RunConfig) -> RunConfig:
    """The configuration with the engines of the policies that learn beside the main one suited as its own is."""
    suited = {
        name: config.policies[name].model_copy(update={"engine": engine_settings(config.of_policy(name))})
        for name in config.learned
    }
    return config.model_copy(update={"policies": {**config.policies, **suited}}) if suited else config


def require_recording(trainer: TrainerConfig, settings: EngineConfig, engine: Engine) -> None:
    """Refuse an engine that does not record the routed experts that training is to replay."""
    replays = TRAINERS.find(trainer.name).replays_experts(trainer)
    if replays and routed_experts.NAME not in engine.capabilities.attachments:
        raise ConfigError(
            f"trainer.moe.routing_replay=rollout: engine={settings.name} does not record routed experts "
            "(capabilities.attachments); use trainer.moe.routing_replay=forward, or engine=local, sglang or vllm"
        )


def require_supports(limits: RolloutConfig, engine: Engine) -> None:
    """Refuse engines that have started and don't tell what a run's tokens will be drawn from.

    Raises:
        ConfigError: the message has the server's option.
    """
    narrowed, why = limits.narrowed, as_managed(engine).unrecorded(sampling_of(limits))
    if narrowed and why:
        raise ConfigError(
            f"rollout.{narrowed}: no token could be trained: {why}, since it does not tell what is left of the "
            "vocabulary; allow_no_signal=true runs nevertheless"
        )
