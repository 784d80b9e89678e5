"""A step of samples that share an image, as a forest and as rows: `python -m benchmarks.images [--small]`.

Eight answers to one prompt of 512 tokens, 64 of which are an image of 256 patches, train a small random Qwen2.5-VL,
tower included. As a forest the prompt is computed once and the image encoded once; as rows transformers' own forward
computes both for each answer, in one batch without padding, with logits at the answers alone. Both are timed in turn,
forward and backward, and the least of the repetitions counts. Ends with 1 where log-probabilities differ.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from agentrl.attachments import images
from agentrl.config import AlgoConfig
from agentrl.train.algorithms import make_algorithm
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Session, Task
from benchmarks.machine import machine
from benchmarks.workloads import grow

VOCABULARY, IMAGE, PATCH = 1024, 1023, 14


@dataclass(frozen=True)
class Workload:
    """Sizes: answers, their tokens, the prompt's text, the image's rows and columns of tokens, the model's."""

    answers: int = 8
    length: int = 64
    text: int = 448
    side: int = 8
    width: int = 256
    layers: int = 4


SMALL = Workload(answers=2, length=4, text=8, side=2, width=32, layers=1)


def write_model(folder: Path, load: Workload) -> None:
    """A random Qwen2.5-VL of a workload's size."""
    heads = load.width // 32
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
    text = {
        "vocab_size": VOCABULARY, "hidden_size": load.width, "intermediate_size": 2 * load.width,
        "num_hidden_layers": load.layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    seen = {
        "depth": load.layers, "hidden_size": load.width, "intermediate_size": 2 * load.width, "num_heads": heads,
        "out_hidden_size": load.width, "fullatt_block_indexes": list(range(load.layers)), "patch_size": PATCH,
    }  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=seen, image_token_id=IMAGE)
    Qwen2_5_VLForConditionalGeneration(config).to(torch.float32).save_pretrained(folder)


def make_group(load: Workload) -> Group:
    """The answers to one prompt with an image in its middle."""
    rng, task = random.Random(0), Task(id="t")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY - 1) for _ in range(count)]

    patches = np.random.default_rng(0).standard_normal((4 * load.side**2, 3 * 2 * PATCH**2)).astype(np.float32)
    shown = images.ImageInputs(IMAGE, b"s" * 16, (patches,), ((load.side, load.side),)).pack()
    prompt = [*tokens(load.text // 2), *[IMAGE] * load.side**2, *tokens(load.text - load.text // 2)]
    sessions = []
    for sample in range(load.answers):
        session = Session(f"s{sample}", task, "g", sample, reward=float(sample % 2))
        root = grow(session, None, prompt, sampled=False)
        session.nodes[0].attachments[images.NAME] = shown
        grow(session, root, tokens(load.length), sampled=True)
        sessions.append(session)
    return Group("g", task, sessions)


def row_logps(model: Any, group: Group) -> Tensor:
    """The answers' log-probabilities by transformers' forward on one batch of rows, [answers, length]."""
    ids = torch.tensor([[token for node in one.nodes for token in node.token_ids] for one in group.sessions])
    shown = images.unpack(group.sessions[0].nodes[0].attachments[images.NAME])
    length, count = len(group.sessions[0].nodes[1].token_ids), len(ids)
    rows, columns = shown.grids[0]
    logits = model(
        input_ids=ids,
        pixel_values=torch.from_numpy(np.concatenate([shown.frames[0]] * count)),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns]] * count),
        mm_token_type_ids=(ids == IMAGE).int(),
        logits_to_keep=length + 1,
        use_cache=False,
    ).logits[:, :-1]
    found: Tensor = torch.log_softmax(logits, -1).gather(-1, ids[:, -length:, None])[..., 0]
    return found


def least(compute: Callable[[], Any], other: Callable[[], Any], times: int) -> tuple[float, float]:
    """The least seconds of two computations, which are timed in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for seconds, run in zip(found, (compute, other), strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return min(found[0]), min(found[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="repetitions")
    parser.add_argument("--small", action="store_true", help="a small prompt, to show that both are the same")
    given = parser.parse_args(arguments)
    load = SMALL if given.small else Workload()
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        write_model(Path(folder), load)
        algo = AlgoConfig(name="reinforce")
        trainer = TorchTrainer(folder, TorchConfig(device="cpu", threads=1), algo)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        group = make_group(load)
        torch.set_num_threads(1)
        [forest] = pack([group], make_algorithm(algo).credit([group]), 1 << 20)
        batch = trainer.prepare(forest)
        ours, theirs = trainer.logprobs([forest])[0][forest.weight > 0], row_logps(model, group).detach().flatten()
        differs = float((ours.sort().values - theirs.sort().values).abs().max())
        forest_seconds, row_seconds = least(
            lambda: trainer.backward(batch), lambda: torch.autograd.backward(row_logps(model, group).sum()), given.times
        )
    tokens = load.answers * (load.text + load.side**2 + load.length)
    print(
        f"{load.answers} answers: {len(forest)} tokens as a forest, {tokens} as rows; {4 * load.side**2} patches once"
    )
    print(f"log-probabilities differ by at most {differs:.1g} nats")
    print(f"forest {forest_seconds:.3f} s, rows {row_seconds:.3f} s: {row_seconds / forest_seconds:.1f} times as fast")
    if differs > 1e-4:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
