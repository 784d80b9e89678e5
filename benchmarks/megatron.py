"""The Megatron trainer, one rank on a CPU: `python -m benchmarks.megatron [REPEATS]`.

Forest against rows: eight samples of one prompt of 1,024 tokens, ten turns of 24 sampled and 24 environment tokens
each, compacted once after five turns (the prompt again, a summary of 40, and on), so that a session has two paths.
As rows every root-to-leaf path is a tree of its own; as a forest the prompt is computed once for all sixteen. Both
go through the same trainer: packing, forward, backward.

Against transformers: the same dense rows, equally long so that nothing is padded, in the same micro-batches,
forward, backward and AdamW's update on both sides; transformers takes its causal fast path.

Sides are interleaved, medians of ratios compared. No figure here is of a GPU.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from agentrl.train.trainers.megatron import cpu
from agentrl.types import Group, Session, Task
from benchmarks.machine import machine
from benchmarks.workloads import grow, split, workload

ROWS, LENGTH = 8, 640
VOCABULARY = 4096


def main() -> None:
    """Print both ratios."""
    warnings.simplefilter("ignore")
    cpu.install()
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from transformers import LlamaConfig, LlamaForCausalLM

    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        folder = Path(scratch) / "model"
        shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8}
        config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=4, max_position_embeddings=4096, **shape)
        LlamaForCausalLM(config).save_pretrained(folder)
        print(f"Llama, {shape}, vocabulary {VOCABULARY}, float32, one thread, {repeats} repeats")
        forest_against_rows(folder, repeats)
        against_transformers(folder, repeats)
        dist.destroy_process_group()


def forest_against_rows(folder: Path, repeats: int) -> None:
    """The first comparison."""
    from agentrl.config import AlgoConfig
    from agentrl.train.algorithms import make_algorithm
    from agentrl.train.forest.packing import pack
    from agentrl.train.trainers.megatron.layout import ParallelLayout
    from agentrl.train.trainers.megatron.rank import Rank
    from agentrl.train.trainers.megatron.settings import MegatronConfig

    algo, task = AlgoConfig(), Task(id="t")
    rank = Rank(folder, MegatronConfig(), ParallelLayout(), algo)
    sessions = workload(random.Random(0), VOCABULARY)
    paths = [path for session in sessions for path in split(session)]
    shared, apart = [Group("g", task, sessions)], [Group(path.id, task, [path]) for path in paths]
    credits = {
        "forest": make_algorithm(algo).credit(shared),
        "rows": make_algorithm(algo).credit([Group("g", task, paths)]),
    }
    groups = {"forest": shared, "rows": apart}
    tokens: dict[str, int] = {}

    def side(name: str) -> None:
        forests = pack(groups[name], credits[name], 8192)
        tokens[name] = sum(map(len, forests))
        rank.backward(rank.prepare(rank.division().shares(forests)[0]))
        rank.optimizer.clear()

    ratio = interleaved({"rows": lambda: side("rows"), "forest": lambda: side("forest")}, repeats)
    wanted = tokens["rows"] / tokens["forest"]
    print(
        f"forest against rows: {tokens['forest']} tokens instead of {tokens['rows']} (ratio {wanted:.2f}), "
        f"{ratio:.2f} times as fast: {ratio / wanted:.0%} of the ratio (aim: at least 60 %)"
    )


def against_transformers(folder: Path, repeats: int) -> None:
    """The second comparison."""
    import torch
    from transformers import AutoModelForCausalLM

    from agentrl.config import AlgoConfig
    from agentrl.train.algorithms import make_algorithm
    from agentrl.train.forest.packing import pack
    from agentrl.train.trainers.megatron.layout import ParallelLayout
    from agentrl.train.trainers.megatron.rank import Rank
    from agentrl.train.trainers.megatron.settings import MegatronConfig

    algo = AlgoConfig(name="sft", lr=1e-4)
    rank = Rank(folder, MegatronConfig(), ParallelLayout(), algo)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).train()
    adam = torch.optim.AdamW(plain.parameters(), lr=algo.lr, betas=algo.betas)
    rng = random.Random(1)
    rows = [[rng.randrange(VOCABULARY) for _ in range(LENGTH)] for _ in range(ROWS)]
    groups = []
    for i, row in enumerate(rows):
        session = Session(str(i), Task(id="t"), str(i))
        grow(session, None, row[:1], sampled=False)
        grow(session, 0, row[1:], sampled=True, demonstrated=True)
        groups.append(Group(str(i), session.task, [session]))
    credit = make_algorithm(algo).credit(groups)
    forests = pack(groups, credit, ROWS * LENGTH)
    ids = torch.tensor(rows)

    def ours() -> None:
        rank.step(rank.division().shares(forests)[0])

    def theirs() -> None:
        plain(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    ratio = interleaved({"ours": ours, "theirs": theirs}, repeats)
    print(f"against transformers: {ROWS} rows of {LENGTH}, a whole step takes {ratio:.2f} times its time (aim: 1.15)")


def interleaved(sides: dict[str, Callable[[], None]], repeats: int) -> float:
    """The median ratio of the first side's time to the second's."""
    one, other = sides.values()
    one(), other()
    ratios = []
    for _ in range(repeats):
        began = time.perf_counter()
        one()
        between = time.perf_counter()
        other()
        ratios.append((between - began) / (time.perf_counter() - between))
    return statistics.median(ratios)


if __name__ == "__main__":
    main()
