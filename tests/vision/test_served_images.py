"""Inference servers see what the trainer sees: our token ids, our pixels, and a tower of the same weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil

from agentrl.attachments import images
from agentrl.config import AlgoConfig
from agentrl.errors import EngineError, InvalidInput
from agentrl.models import tiny
from agentrl.models.image_processor import ImageProcessor
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.folder import tensors
from agentrl.rollout.engines.local.weights import load_weights
from agentrl.rollout.engines.servers import sglang_options, vllm_options
from agentrl.rollout.engines.servers.images import ServedVision, check_expansion, find_axes, place_images
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Capabilities, Message, Placed, Sampling, Session, Status, Task, collect, image
from tests.rollout.engines import servers
from tests.train.trees import as_group, environment_node, leaf_credit, sampled_node
from tests.vision.models import FAMILIES, IMAGE, PER_FRAME, VOCABULARY, Served, drawn, prompt, tiny_vlm
from tests.vision.test_conversations import QWEN, picture

BOUND = 1e-5
MARKS = ("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")


def served_vlm(folder: Path, family: str) -> Path:
    """A random model with the tokenizer and the processor that a server wants to find in its folder."""
    tokenizer: Any = tiny.build_tokenizer(["user\nhow many?\n"] * 9, 512, 256, MARKS, QWEN)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    start, pad, video, end = tokenizer.convert_tokens_to_ids(list(MARKS))
    named = {"vision_start_token_id": start, "image_token_id": pad, "video_token_id": video, "vision_end_token_id": end}
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "hidden_size": 64, "num_attention_heads": 2}
    # vLLM knows no narrower head on a CPU, and SGLang of Qwen2.5-VL no other patches.
    tiny_vlm(folder, family, Served(32, text, named, {"patch_size": 14, "out_hidden_size": 64}))
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(size={"shortest_edge": 56**2, "longest_edge": 112**2}, patch_size=14).save_pretrained(
        folder
    )
    return folder


def shown(folder: Path, seeds: Sequence[int]) -> tuple[list[int], list[Placed], Sequence[str]]:
    """A prompt of two pictures by the model's own processor; what its nodes carry; the pictures' data URLs."""
    processor = ImageProcessor(folder)
    words = random.Random(1).choices(range(20, 200), k=20)
    message = Message(role="user", content=[image(picture(seed, (8 + 8 * (seed % 2), 16))) for seed in seeds])
    ids = [*words, *(token for url in message.images for token in processor.encode(url)), *words[:3]]
    return ids, [(0, images.NAME, processor.attached(message)[images.NAME])], message.images


def recorded(name: str, ids: list[int], attached: list[Placed], turn: Any) -> Session:
    made = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, reward=1.0)
    root = environment_node(made, None, ids)
    root.attachments[images.NAME] = attached[0][2]
    sampled_node(made, root.id, turn.token_ids, opening=(), logprobs=turn.logprobs)
    return made


async def differences(engine: Any, trainer: TorchTrainer, folder: Path) -> list[float]:
    """The greatest of the engine's log-probabilities from the trainer's, before and after it trained the tower."""
    found = []
    for version in range(2):
        sessions = []
        for seeds in ((1, 2), (3, 2)):
            ids, attached, _ = shown(folder, seeds)
            engine.held.note(engine.vision.place(ids, attached))  # as if it had had them: at first it asks for them
            for sample, sampling in enumerate((Sampling(max_new_tokens=6), Sampling(max_new_tokens=6, top_k=9))):
                turn = await collect(engine.generate(f"{seeds[0]}/{sample}", ids, sampling, attached=attached))
                assert [span.version for span in turn.versions] == [version]
                shared = turn.cached_tokens > ids.index(trainer.model.config.image_token_id)
                assert shared == bool(sample), "the same images are computed once, and others are another prefix"
                sessions.append(recorded(f"s{version}{seeds[0]}{sample}", ids, attached, turn))
        credit, _ = leaf_credit(random.Random(1), sessions)
        forests = pack([as_group(sessions, "g")], credit, 10_000)
        [forest], [logp] = forests, trainer.logprobs(forests)
        trained = forest.weight > 0
        assert int(trained.sum()) >= 18
        found.append(float((logp - forest.behaviour_logp)[trained].abs().max()))
        tower = copied(trainer)
        trainer.step(forests)
        assert all(not torch.equal(tensor, tower[name]) for name, tensor in copied(trainer).items())
        found.append(await interrupted(engine, trainer, ids, attached))
    return found


async def interrupted(engine: Any, trainer: TorchTrainer, ids: list[int], attached: list[Placed]) -> float:
    """The same of what a turn goes on with, behind a publication that it meets."""
    turn: Any = None
    publishing: asyncio.Task[None] | None = None
    async for item in engine.generate("long", ids, Sampling(max_new_tokens=300), attached=attached):
        turn = item
        publishing = publishing or asyncio.create_task(engine.publish(trainer.weights(), engine.version() + 1))
    assert publishing is not None
    await publishing
    assert [span.version for span in turn.versions] == [engine.version() - 1, engine.version()]
    session = recorded("long", ids, attached, turn)
    credit, _ = leaf_credit(random.Random(1), [session])
    [forest] = pack([as_group([session], "g")], credit, 10_000)
    [logp] = trainer.logprobs([forest])
    newest = turn.versions[1].end - turn.versions[1].start
    assert bool((forest.weight[-newest:] > 0).all())
    return float((logp - forest.behaviour_logp)[-newest:].abs().max())


async def check_ids(engine: Any, folder: Path) -> None:
    """Compare our ids, and what the model says, with those of text and pictures that the server processes itself."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    _, attached, urls = shown(folder, (1, 2))
    words = "user\nhow many?\n"
    text = words + "<|vision_start|><|image_pad|><|vision_end|>" * len(urls) + words
    around, processor = tokenizer.encode(words, add_special_tokens=False), ImageProcessor(folder)
    ids = [*around, *(token for url in urls for token in processor.encode(url)), *around]
    if engine.name == "sglang":
        theirs, token, logp = await ask_sglang(engine, text, urls)
    else:
        theirs, token, logp = await ask_vllm(engine, tokenizer.encode(text, add_special_tokens=False), urls)
    assert theirs == ids
    turn = await collect(engine.generate("own", ids, Sampling(max_new_tokens=1, temperature=0.0), attached=attached))
    assert turn.token_ids == (token,)
    bound = 1e-3 if engine.name == "sglang" else BOUND  # SGLang's processor resizes by other code
    assert turn.logprobs == pytest.approx([logp], abs=bound)


async def ask_sglang(engine: Any, text: str, urls: Sequence[str]) -> tuple[list[int], int, float]:
    """The prompt's ids by the server's own processor, and what the model says."""
    body = {
        "text": text,
        "image_data": list(urls),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "return_prompt_token_ids": True,
    }
    answer = await engine.client.post("/generate", body)
    [(logp, token, _)] = answer["meta_info"]["output_token_logprobs"]
    return answer["prompt_token_ids"], token, logp


async def ask_vllm(engine: Any, ids: list[int], urls: Sequence[str]) -> tuple[list[int], int, float]:
    """The same; the ids have one placeholder for each picture."""
    body = {
        "token_ids": ids,
        "content_parts": [{"type": "image_url", "url": url} for url in urls],
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 0},
        "return_token_ids": True,
    }
    answer = await engine.client.post("/inference/v1/generate", body)
    [choice] = answer["choices"]
    [said] = choice["logprobs"]["content"]
    return answer["prompt_token_ids"], said["token_id"], said["logprob"]


def copied(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights() if "visual.blocks.0.mlp" in name}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_prompts_images_are_placed_where_its_tokens_are_and_its_positions_are_transformers_own(
    family: str, tmp_path: Path
) -> None:
    folder = tiny_vlm(tmp_path / "vlm", family)
    vision = ServedVision.read(folder)
    assert vision is not None
    ids, first, second = prompt(1, 3), drawn(1, 2, family), drawn(3, 1, family)
    start = ids.index(IMAGE) + 2 * (PER_FRAME + 2) - 1  # the node of the third image begins behind the second
    found = vision.place(ids, [(0, images.NAME, first.pack()), (start, images.NAME, second.pack())])
    assert [ids[one.offset - 1 : one.offset + one.count + 1] for one in found] == [[41, *[IMAGE] * PER_FRAME, 42]] * 3
    assert [one.digest for one in found] == [*first.digests(), *second.digests()]
    more = [*ids, IMAGE, 5, 6]  # a placeholder that the model wrote is text
    kinds = torch.zeros(1, len(more), dtype=torch.int)
    for one in found:
        kinds[0, one.offset : one.offset + one.count] = 1
    model = FAMILIES[family].model()
    expected, _ = model.model.get_rope_index(
        torch.tensor([more]), mm_token_type_ids=kinds, image_grid_thw=torch.tensor([one.sides for one in found])
    )
    assert find_axes(found, len(more)).T.tolist() == expected[:, 0].tolist()


def test_images_that_do_not_fit_a_server_its_model_or_the_prompt_are_refused_by_name(tmp_path: Path) -> None:
    vision = ServedVision.read(tiny_vlm(tmp_path / "vlm", "qwen2_5_vl"))
    takes = Capabilities("sglang", 256, VOCABULARY, inputs=frozenset({images.NAME}))
    ids, attached = prompt(1), [(0, images.NAME, drawn(1, 1, "qwen2_5_vl").pack())]
    assert place_images(vision, takes, ids, ()) == place_images(None, takes, ids, ()) == ()
    [placed] = place_images(vision, takes, ids, attached)
    short, other = [token for token in ids if token != IMAGE], drawn(1, 1, "smolvlm").pack()
    gap = list(ids)
    gap[ids.index(IMAGE) + 1] = 5
    for served, sent, more, said in (
        (
            None,
            ids,
            attached,
            r"no images with this prompt \(it takes those of qwen2_5_vl and qwen3_vl alone\); engine=local does",
        ),
        (vision, short, attached, r"needs 4 placeholder tokens \(id 47\) in a row from place \d+ .*, and 0 of them"),
        (vision, gap, attached, r"needs 4 placeholder tokens .* and 3 of them are there"),
        (vision, ids, [(0, images.NAME, other)], r"an image of \(1, 4\) tokens .* its patches are \(16, 96\)"),
        (vision, ids, [(0, "support", b"")], "take attachments of the kind 'images' with a prompt, not 'support'"),
    ):
        with pytest.raises(InvalidInput, match=said):
            place_images(served, takes, sent, more)
    with pytest.raises(InvalidInput, match=r"no images with this prompt \(nobody knows\); engine=local does"):
        place_images(vision, Capabilities("sglang", 256, VOCABULARY), ids, attached, "nobody knows")
    check_expansion([placed], len(ids), len(ids), "sglang")
    with pytest.raises(EngineError, match=f"counts 3 tokens in a prompt with 1 images of which {len(ids)} were sent"):
        check_expansion([placed], len(ids), 3, "sglang")


def test_servers_take_no_images_of_models_that_they_would_compute_otherwise() -> None:
    sglang, vllm = sglang_options.refuse_images, vllm_options.refuse_images
    ours, theirs = (servers.ServerConfig(name=name, device="cpu") for name in ("sglang", "vllm"))
    qwen25, qwen3 = (ServedVision(family, IMAGE, 2, 1176) for family in ("qwen2_5_vl", "qwen3_vl"))
    for refuse, config in ((sglang, ours), (vllm, theirs)):
        assert refuse(config, qwen25) == refuse(config, replace(qwen3, interleaved=True)) == ""
        assert "lacks rope_parameters.mrope_interleaved=true" in refuse(config, qwen3)
    assert "patches of 96 numbers for features" in sglang(ours, replace(qwen25, values=96))
    attached = {"url": "http://127.0.0.1:1"}
    for other in (attached, {"server": {"enable_multimodal": False}}):
        assert "agentrl did not start the server" in sglang(servers.ServerConfig(name="sglang", **other), qwen25)
    elsewhere = servers.ServerConfig(name="vllm", **attached)
    assert "it normalises pixels again unless started with --no-mm-device-do-norm" in vllm(elsewhere, qwen25)
    assert vllm(elsewhere.model_copy(update={"server": {"no_mm_device_do_normalize": True}}), qwen25) == ""
    for other in ({"language_model_only": True}, {"limit-mm-per-prompt": {"image": 0}}):
        assert "language_model_only=true" in vllm(servers.ServerConfig(name="vllm", server=other), qwen25)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_weights_have_the_names_of_the_folders_files_and_are_published_under_them(family: str, tmp_path: Path) -> None:
    folder = tiny_vlm(tmp_path / "vlm", family)
    trainer = TorchTrainer(folder, TorchConfig(device="cpu", dtype="float32"), AlgoConfig(name="reinforce"))
    named = {name: tensor + 1 for name, tensor in trainer.weights()}
    assert {name: tuple(tensor.shape) for name, tensor in named.items()} == tensors(folder)
    other = FAMILIES[family].model()
    load_weights(other, named.items())
    held = {name: tensor for name, tensor in other.state_dict().items() if name in trainer.model.state_dict()}
    assert all(torch.equal(held[name], tensor + 1) for name, tensor in trainer.model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("server", ["sglang", "vllm"])
async def test_servers_agree_with_the_trainer_before_and_after_a_publication(
    server: str, family: str, tmp_path: Path
) -> None:
    folder = served_vlm(tmp_path / "vlm", family)
    trainer = TorchTrainer(folder, TorchConfig(device="cpu", dtype="float32"), AlgoConfig(name="reinforce", lr=1e-2))
    engine: Any = make_engine(servers.config(server, dtype="float32"), folder)
    try:
        await engine.start()
        assert engine.capabilities.inputs == {images.NAME}
        await check_ids(engine, folder)
        assert max(await differences(engine, trainer, folder)) < BOUND
    finally:
        await engine.close()
