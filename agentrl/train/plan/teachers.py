"""Memory of policies beside the main one in a dry run: those that an algorithm asks, that play, and that learn."""

from __future__ import annotations

from agentrl.config import MODEL, PAST, START, PolicyConfig, RunConfig
from agentrl.models.registry import cache_folder
from agentrl.rollout.engines import ENGINES
from agentrl.train.algorithms import make_algorithm
from agentrl.train.plan.memory import LOGITS
from agentrl.train.plan.shapes import Shape, shape_of
from agentrl.train.trainers import TRAINERS
from agentrl.types import MAIN


def teachers_memory(config: RunConfig, student: Shape) -> dict[str, float]:
    """Bytes of each teacher that the run keeps, by its policy's name; one behind a URL takes none here.

    One that reads forests has float32 weights, and the activations of one layer at a time; another engine's are in its
    own precision, without its cache.
    """
    found = {}
    for name in sorted(config.asked_policies):
        own = config.policies[name]
        if not own.remote:
            found[name] = _bytes(own, _shape(own, student), config.trainer.token_budget)
    return found


def players_memory(config: RunConfig, main: Shape) -> dict[str, float]:
    """Bytes of each policy that plays with weights of its own, by its name: its engines', and its trainer's.

    Earlier versions have an engine each; an engine's cache is not counted.
    """
    found = {}
    for name, own in config.policies.items():
        if own.name not in (MODEL, PAST) or name in config.asked_policies:
            continue
        whose = config.policies.get(own.past.of, own) if own.name == PAST else own
        shape = main if own.name == PAST and own.past.of == MAIN else _shape(whose, main)
        engines = own.past.size + 1 if own.name == PAST else 1
        found[name] = engines * shape.parameters * (4.0 if own.engine.dtype == "float32" else 2.0)
        if own.learns:
            alone = config.of_policy(name)
            plugin, algorithm = TRAINERS.find(alone.trainer.name), make_algorithm(alone.algo)
            split = plugin.split(alone.trainer, shape, 0)
            found[name] += plugin.memory(alone.trainer, algorithm, shape, split).total
    return found


def _shape(own: PolicyConfig, student: Shape) -> Shape:
    name = own.model.name
    cached = cache_folder() / name
    return student if name == START else shape_of(cached if cached.is_dir() else name)


def _bytes(own: PolicyConfig, shape: Shape, token_budget: int) -> float:
    if not ENGINES.find(own.engine.name).in_process(own.engine):
        return float(shape.parameters) * (4 if own.engine.dtype == "float32" else 2)
    logits = min(LOGITS, 12 * token_budget * shape.vocab_size)
    return 4.0 * shape.parameters + 4.0 * token_budget * (shape.layer_activations + shape.hidden_size) + logits
