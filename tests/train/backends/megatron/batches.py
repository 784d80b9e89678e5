"""Random batches of forests, and how sharded runs are compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.config import AlgoConfig
from agentrl.train.algorithms.advantages.grpo import GrpoConfig
from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES
from agentrl.train.algorithms.policy_losses.clipped import ClippedConfig
from agentrl.train.forest.columns import Column
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.critic import ValueModel
from agentrl.train.trainers.megatron.layout import ParallelLayout, layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.teachers.divergence import VocabularyHead
from tests.train.backends.megatron.world import World
from tests.train.trees import VOCABULARY, as_group, leaf_credit, random_session

WORK = "tests.train.backends.megatron.work_train"
CLIP = GrpoConfig(loss=ClippedConfig(clip_low=0.2, clip_high=0.3), max_grad_norm=1e9)


def random_forests(seed: int, trees: int = 4, budget: int = 100, old: bool = True) -> list[Forest]:
    """Forests of random trees (depth up to 6, branching up to 5), several in a pack, with two advantage channels."""
    rng = random.Random(seed)
    prompt = [rng.randrange(8, 48) for _ in range(rng.randint(1, 6))]
    sessions = [random_session(rng, f"s{i}", prompt, depth=6, branching=5) for i in range(trees)]
    credit, _ = leaf_credit(rng, sessions)
    forests = pack([as_group([s], s.id) for s in sessions], credit, budget, seed=seed, merge="channels")
    for forest in forests:
        forest.old_logp = forest.behaviour_logp if old else None
    return forests


TEACHER_WIDTH = 6


def teacher_head(seed: int) -> VocabularyHead:
    """A random teacher's head, which has a token more than the student."""
    generator = torch.Generator().manual_seed(seed)
    size = VOCABULARY + 1
    return VocabularyHead(torch.randn(size, TEACHER_WIDTH, generator=generator), torch.randn(size, generator=generator))


def told(seed: int, top_k: int | None) -> list[Forest]:
    """Random forests with what a random teacher says of their tokens."""
    generator = torch.Generator().manual_seed(seed)
    forests = random_forests(seed, old=False)
    for forest in forests:
        if top_k is None:
            forest.fields = {STATES: Column(torch.randn(len(forest), TEACHER_WIDTH, generator=generator))}
            continue
        best = torch.randn(len(forest), VOCABULARY, generator=generator).log_softmax(-1).topk(top_k)
        forest.fields = {IDS: Column(best.indices.int(), None, -1), LOGPS: Column(best.values)}
    return forests


def judged(seed: int) -> list[Forest]:
    """Random forests with values and returns, for a critic."""
    generator = torch.Generator().manual_seed(seed)
    forests = random_forests(seed)
    for forest in forests:
        forest.value = torch.randn(len(forest), generator=generator)
        forest.returns = torch.randn(len(forest), generator=generator)
    return forests


def run(world: World, job: str, folder: Path, *args: Any, algo: AlgoConfig = CLIP, **settings: Any) -> dict[str, Any]:
    """Do a job of `work_train` in the layout that `settings` ask for; what rank 0 answers."""
    from transformers import AutoConfig

    config = MegatronConfig.model_validate({**settings})
    layout = layout_of(config, AutoConfig.from_pretrained(folder))
    found = world.run(f"{WORK}:{job}", str(folder), *args, config, layout, algo, size=layout.ranks, **sizes(layout))[0]
    assert isinstance(found, dict)
    return found


def sizes(layout: ParallelLayout) -> dict[str, Any]:
    """A layout as the pool of workers wants it."""
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "virtual": layout.interleave if layout.interleave > 1 else None,
        "context": layout.context,
        "expert": layout.expert,
        "expert_tensor": 1 if layout.expert > 1 else None,
    }


def head_of(critic: ValueModel) -> Tensor:
    """A critic's row and bias as one tensor."""
    return torch.cat([critic.head.weight.detach().flatten(), critic.head.bias.detach()[None]])


def distances(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Per tensor, the norm of the difference over the norm."""
    assert ours.keys() == theirs.keys()
    return {name: float((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp(min=1e-6)) for name in theirs}


def published(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by the names that tensors have in files, where every expert's stand by themselves."""
    named: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith("mlp.experts"):
            named[name] = gradient
            continue
        for expert, own in enumerate(gradient):
            if last == "down_proj":
                named[f"{stem}.{expert}.down_proj.weight"] = own
            else:
                named[f"{stem}.{expert}.gate_proj.weight"], named[f"{stem}.{expert}.up_proj.weight"] = own.chunk(2)
    return named
