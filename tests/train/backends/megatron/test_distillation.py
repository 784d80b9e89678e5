"""A student whose head and layers are shared by ranks has the divergence and the gradient of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.train.algorithms.advantages.distill import DistillConfig
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from tests.train.backends.megatron.batches import distances, run, teacher_head, told
from tests.train.backends.megatron.test_against_torch import LAYOUTS
from tests.train.backends.megatron.world import World


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout", "top_k"),
    [
        ("jsd", "TP2", 5),
        ("reverse", "TP2", None),
        ("forward", "TP2 SP", None),
        ("reverse", "TP2 SP", 5),
        ("jsd", "PP2", None),
        ("jsd", "TP2 SP CP2 recomputed", None),
    ],
)
def test_a_divergence_from_a_teacher_is_that_of_one_process(
    kind: str, layout: str, top_k: int | None, world: World, tiny: Callable[[str], Path]
) -> None:
    folder, forests, head = tiny("smollm2"), told(3, top_k), teacher_head(3)
    algo = DistillConfig.model_validate({"divergence": kind, "top_k": top_k, "beta": 0.3, "max_grad_norm": 1e9})
    alone = TorchTrainer(folder, TorchConfig(device="cpu"), algo)
    alone.set_teacher(head)
    loss = sum(alone.backward(alone.prepare(forest)) for forest in forests)
    expected = {name: p.grad for name, p in alone.model.named_parameters() if p.grad is not None}
    settings = {**LAYOUTS[layout], "distributed_optimizer": False}
    found = run(world, "taught", folder, forests, head, algo=algo, **settings)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert abs(loss) > 1e-3
    assert max(distances({name: found["gradients"][name] for name in expected}, expected).values()) < 1e-4
