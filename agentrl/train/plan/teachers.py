"""Memory of the policies that an algorithm asks (`algo=distill`), which are beside the trainer in a dry run."""

from __future__ import annotations

from agentrl.config import START, PolicyConfig, RunConfig
from agentrl.models.registry import cache_folder
from agentrl.rollout.engines import ENGINES
from agentrl.train.plan.memory import LOGITS
from agentrl.train.plan.shapes import Shape, shape_of


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


def _shape(own: PolicyConfig, student: Shape) -> Shape:
    name = own.model.name
    cached = cache_folder() / name
    return student if name == START else shape_of(cached if cached.is_dir() else name)


def _bytes(own: PolicyConfig, shape: Shape, token_budget: int) -> float:
    if not ENGINES.find(own.engine.name).in_process(own.engine):
        return float(shape.parameters) * (4 if own.engine.dtype == "float32" else 2)
    logits = min(LOGITS, 12 * token_budget * shape.vocab_size)
    return 4.0 * shape.parameters + 4.0 * token_budget * (shape.layer_activations + shape.hidden_size) + logits
