"""Training a group as a forest against separate rows: `python -m benchmarks.forest [MODEL]`.

Eight samples of 64 tokens on one prompt of 512: 4,608 tokens as rows, 1,024 as a forest, which computes the
prompt once. Both sides are a forward and a backward of the same clipped loss on the same Llama. The rows are
one batch through plain transformers with its causal fast path and, as a kindness to them, the head on the
completions alone; all are equally long, so nothing is padded. The third side is our own trainer on rows (each
sample a tree of its own), to separate sharing from everything else. Samples are interleaved, medians compared.

MODEL is a Hugging Face folder; without it two random Llamas are measured.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from agentrl.config import AlgoConfig, Device, Dtype
from agentrl.train.algorithms import make_algorithm
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Message, Node, Sampling, Session, Status, Task, VersionSpan

PROMPT, COMPLETION, SAMPLES, REPEATS = 512, 64, 8, 9
SHAPES = {
    "0.9 M (3 layers, width 128)": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3},
    "7 M (6 layers, width 256)": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
}


def sample(index: int, prompt: list[int], completion: list[int]) -> Session:
    """A session of one prompt and one sampled turn."""
    size = len(completion)
    nodes = [
        Node(0, None, Message(role="user"), prompt, [False] * len(prompt), [0.0] * len(prompt)),
        Node(1, 0, Message(role="assistant"), completion, [True] * size, [-7.0] * size, [VersionSpan(0, 0, size)]),
    ]
    nodes[1].sampling = Sampling()
    return Session(str(index), Task(id="t"), "g", index, nodes=nodes, status=Status.COMPLETED, reward=float(index))


def sides(
    path: Path,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    length: int = PROMPT,
    completion: int = COMPLETION,
) -> dict[str, Callable[[], None]]:
    """What is compared, by name: a forward and a backward each, packing included.

    Args:
        path: the model's folder.
        device: where it is computed.
        dtype: the precision of both sides; weights stay in float32.
        length: the prompt's tokens.
        completion: a sample's tokens.
    """
    vocabulary = AutoConfig.from_pretrained(path).vocab_size
    rng = random.Random(0)
    prompt = [rng.randrange(vocabulary) for _ in range(length)]
    completions = [[rng.randrange(vocabulary) for _ in range(completion)] for _ in range(SAMPLES)]
    sessions = [sample(i, prompt, sampled) for i, sampled in enumerate(completions)]
    algo, task = AlgoConfig(), Task(id="t")
    trainer = TorchTrainer(path, TorchConfig(device=device, dtype=dtype), algo)
    credit = make_algorithm(algo).credit([Group("g", task, sessions)])
    plain = (
        AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=torch.float32).eval().to(device)
    )
    ids = torch.tensor([prompt + sampled for sampled in completions], device=device)
    advantage = torch.tensor([credit.shares[s.id, 1][0].advantage for s in sessions], device=device)[:, None]

    def backward(groups: list[Group]) -> None:
        for forest in pack(groups, credit, SAMPLES * (length + completion)):
            trainer.backward(trainer.prepare(forest))
        trainer.model.zero_grad()

    def forest() -> None:
        backward([Group("g", task, sessions)])

    def trees() -> None:
        backward([Group(s.id, task, [s]) for s in sessions])

    def rows() -> None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = plain(input_ids=ids, logits_to_keep=completion + 1, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits.float(), -1).gather(2, ids[:, -completion:, None]).squeeze(2)
        ratio = torch.exp(logp - logp.detach())
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        plain.zero_grad()

    return {"forest": forest, "rows": rows, "trees": trees}


def measure(name: str, path: Path) -> None:
    """Time the sides in turn and print their ratios."""
    compared = sides(path)
    times: dict[str, list[float]] = {side: [] for side in compared}
    for repeat in range(REPEATS + 1):
        for side, run in compared.items():
            began = time.perf_counter()
            run()
            if repeat:  # the first round warms up
                times[side].append(time.perf_counter() - began)
    seconds = {side: statistics.median(values) for side, values in times.items()}
    tokens = SAMPLES * (PROMPT + COMPLETION) / (PROMPT + SAMPLES * COMPLETION)
    print(f"\n{name}: {SAMPLES} samples of {COMPLETION} tokens on one prompt of {PROMPT}")
    for side, value in seconds.items():
        print(f"  {side:7} {value * 1e3:8.1f} ms  (fastest {min(times[side]) * 1e3:.1f})")
    for side in ("rows", "trees"):
        speedup = seconds[side] / seconds["forest"]
        print(
            f"  forest against {side}: {speedup:.2f} times as fast; {speedup / tokens:.0%} of the token ratio {tokens}"
        )


def main() -> None:
    print(f"machine: {platform.processor() or platform.machine()}, torch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} threads (aim: at least 60 % of the token ratio against rows)")
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]).name, Path(sys.argv[1]))
        return
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            config = LlamaConfig(vocab_size=2048, num_attention_heads=4, num_key_value_heads=2, **shape)
            LlamaForCausalLM(config).save_pretrained(folder)
            measure(name, Path(folder))


if __name__ == "__main__":
    main()
