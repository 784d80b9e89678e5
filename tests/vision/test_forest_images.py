"""A forest with images computes and learns what each path does as a row of its own, and encodes each image once."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from agentrl.attachments import images
from agentrl.config import AlgoConfig
from agentrl.errors import InvalidInput
from agentrl.models.vision import of_vision
from agentrl.models.vision_families import TOWERS
from agentrl.models.vision_trials import TRIALS
from agentrl.train.forest import pictures
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Node, Session, Status, Task
from tests.train.trees import as_group, environment_node, leaf_credit, sampled_node
from tests.vision.models import FAMILIES, IMAGE, PER_FRAME, drawn, prompt, tiny_vlm

FRAMED = ("smolvlm", "llava", "gemma3")
"""Families that see frames of one size."""


def session(name: str, first: int, second: int | None, rng: random.Random, family: str = "smolvlm") -> Session:
    """Two answers to an image; behind the first one, another image and two more answers."""
    made = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, reward=rng.random())
    root = environment_node(made, None, prompt(1, 2))
    root.attachments[images.NAME] = drawn(first, 2, family).pack()
    answers = [sampled_node(made, root.id, [rng.randrange(3, 40) for _ in range(4)]) for _ in range(2)]
    if second is not None:
        shown = environment_node(made, answers[0].id, prompt(2))
        shown.attachments[images.NAME] = drawn(second, 1, family).pack()
        for _ in range(2):
            sampled_node(made, shown.id, [rng.randrange(3, 40) for _ in range(3)])
    return made


def path_of(made: Session, node: Node) -> list[Node]:
    path = [node]
    while path[0].parent is not None:
        path.insert(0, made.nodes[path[0].parent])
    return path


def row_logps(model: Any, path: list[Node], family: str) -> Tensor:
    """Log-probabilities of a path's last turn by transformers' own forward, on pixels."""
    ids = torch.tensor([[i for node in path for i in node.token_ids]])
    shown = [images.unpack(node.attachments[images.NAME]) for node in path if images.NAME in node.attachments]
    frames = [torch.tensor(frame) for one in shown for frame in one.frames]
    grids = [grid for one in shown for grid in one.grids]
    logits = model(input_ids=ids, **TRIALS[family].given(frames, grids, ids == IMAGE)).logits[0]
    logps = torch.log_softmax(logits.float(), -1)
    trained = sum(path[-1].trainable)
    target = ids[0, -trained:]
    return logps[-trained - 1 : -1].gather(1, target[:, None])[:, 0]


def tower_of(trunk: Any) -> Any:
    return next(getattr(trunk, name) for name in TOWERS if hasattr(trunk, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm(tmp_path_factory.mktemp("vlm"))


def trainer_of(folder: Path, vision: str = "full") -> TorchTrainer:
    config = TorchConfig(device="cpu", dtype="float32", vision=vision)  # type: ignore[arg-type]
    return TorchTrainer(folder, config, AlgoConfig(name="reinforce", lr=1e-2))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_rows_with_the_tower_run_once_for_each_image(
    family: str, tmp_path: Path
) -> None:
    folder, rng = tiny_vlm(tmp_path, family), random.Random(3)
    shown = (("a", 1, 5), ("b", 1, None), ("c", 2, 6), ("d", 1, 5))
    sessions = [session(name, first, second, rng, family) for name, first, second in shown]
    credit, _ = leaf_credit(rng, sessions)
    [forest] = pack([as_group(sessions, "g")], credit, 10_000)
    forest.check()
    entries = 1 if family in FRAMED else 16
    assert len(forest.fields[pictures.FRAMES].values) == 6 * entries, "two frames of two first images, and two later"
    assert int((forest.token_ids == IMAGE).sum()) < 4 * 8 + 3 * 4, "siblings and samples share an image's tokens"
    trainer = trainer_of(folder)
    trunk, encoded = trainer.model.base_model, []
    hook = tower_of(trunk).register_forward_hook(lambda module, given, out: encoded.append(len(out[0])))
    logps = trainer.logprobs([forest])[0]
    hook.remove()
    assert encoded == [6 * entries // (4 if family == "glm4v" else 1)], "GLM's tower merges four patches itself"
    reference = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    rows = {}
    for made in sessions:
        for node in made.nodes:
            if any(node.trainable):
                rows[tuple(i for one in path_of(made, node) for i in one.token_ids), made.id] = (
                    row_logps(reference, path_of(made, node), family),
                    credit.shares[made.id, node.id],
                )
    batch = trainer.prepare(forest)
    own = trainer._logps(trainer.model, trainer.compute_hidden(trunk, batch), batch.rows)[0]
    got = (own * batch.rows.weight * batch.rows.advantage).sum()
    expected = sum(
        (logp.sum() * s.weight * s.advantage for logp, shares in rows.values() for s in shares), torch.zeros(())
    )
    assert abs(got.item() - expected.item()) < 1e-6 * max(1, abs(expected.item()))
    assert torch.equal(logps[batch.rows.target], own.detach())
    got.backward()
    expected.backward()
    other = dict(reference.named_parameters())
    compared = 0
    for name, weight in trainer.model.named_parameters():
        expected_grad = other[name].grad
        if weight.grad is None and expected_grad is None:
            continue
        assert weight.grad is not None, name
        assert expected_grad is not None, name
        scale = max(1.0, float(expected_grad.abs().max()))
        assert float((weight.grad - expected_grad).abs().max()) < 1e-6 * scale, name
        compared += of_vision(name)
    assert compared > 10


@pytest.mark.slow
@pytest.mark.parametrize("vision", ["full", "projector", "frozen"])
def test_a_step_changes_the_parts_that_are_trained(folder: Path, vision: str) -> None:
    rng = random.Random(4)
    sessions = [session("a", 1, 5, rng)]
    credit, _ = leaf_credit(rng, sessions)
    trainer = trainer_of(folder, vision)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.step(pack([as_group(sessions, "g")], credit, 10_000))
    changed = {name for name, tensor in trainer.model.state_dict().items() if not torch.equal(tensor, before[name])}
    parts = {part for name in changed for part in ("vision_model", "connector", "text_model") if part in name}
    assert parts == {"text_model"} | set(
        {"full": ["vision_model", "connector"], "projector": ["connector"]}.get(vision, [])
    )


def test_images_that_do_not_fit_their_tokens_are_refused() -> None:
    rng = random.Random(5)
    made = session("a", 1, None, rng)
    credit, _ = leaf_credit(rng, [made])
    made.nodes[0].attachments[images.NAME] = drawn(1).pack()
    with pytest.raises(InvalidInput, match="need 4 placeholder tokens"):
        pack([as_group([made], "g")], credit, 1_000)
    with pytest.raises(InvalidInput, match="expected"):
        images.KIND.check(drawn(1).pack()[:-1], 100)
    with pytest.raises(InvalidInput, match="path up to their end has 3"):
        images.KIND.check(drawn(1).pack(), 3)


def test_a_block_is_one_nodes_and_never_trained_nor_branching() -> None:
    rng = random.Random(7)
    sessions = [session("a", 1, 5, rng, "gemma3"), session("b", 1, 6, rng, "gemma3")]
    credit, _ = leaf_credit(rng, sessions)
    [forest] = pack([as_group(sessions, "g")], credit, 1_000)
    forest.check()
    block = forest.fields[pictures.BLOCK].values
    first = int((block >= 0).nonzero()[0])
    assert block[first : first + PER_FRAME].tolist() == [first] * PER_FRAME
    assert bool(forest.visible(torch.tensor(first), torch.tensor(first + PER_FRAME - 1)))
    assert not bool(forest.visible(torch.tensor(first), torch.tensor(first + PER_FRAME)))
    for name, place, value, why in (
        ("weight", first + 1, 1.0, "is trained"),
        ("node_id", first + 2, 9, "reaches beyond its node"),
    ):
        broken = dataclasses.replace(forest, **{name: getattr(forest, name).clone()})
        getattr(broken, name)[place] = value
        with pytest.raises(InvalidInput, match=rf"block\[{place}\] .*{why}"):
            broken.check()
    block[first + 3] = first + 3
    with pytest.raises(InvalidInput, match=rf"block\[{first}\] is not the first"):
        forest.check()


def test_a_budget_counts_patches_beside_tokens() -> None:
    rng = random.Random(6)
    sessions = [session(name, number, None, rng, "qwen2_5_vl") for number, name in enumerate("abcd")]
    credit, _ = leaf_credit(rng, sessions)
    groups = [as_group([one], one.id) for one in sessions]
    [whole] = pack(groups, credit, 10_000)
    each = len(whole) // 4 + 2 * 16
    assert [pictures.patches_of(forest.fields) for forest in pack(groups, credit, 2 * each)] == [64, 64]
    assert len(pack(groups, credit, 2 * each - 1)) == 4
