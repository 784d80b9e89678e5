"""What a language model that never saw learns from pixels: `python -m benchmarks.pixels [--seed N] [--small]`.

SmolLM2-135M becomes the language model of an Idefics3: a random tower of two layers and a random projector stand before
it. It imitates the demonstrator of `shapes`, who errs in half of its answers, and goes on by reinforcement learning;
all weights are trained. Whoever sees nothing can at best give each question its most frequent answer, which is counted.
Ends with 1 where the policy's lower 95 % bound on held-out tasks is not above that. `--model` takes another folder of a
Llama with ChatML; `--small` takes a step of each, to show that a run comes to its end, and claims nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

import agentrl
from agentrl import models
from agentrl.envs.builtin.seen.shapes import CELL
from agentrl.envs.registry import make
from agentrl.models import tiny_vision
from agentrl.overrides import merge, spread
from agentrl.train.display.console import Display
from benchmarks.machine import machine

SIZE, KINDS = 2, ("colour", "position")
COUNTED = 4_000
"""Tasks over which answers are counted."""
SETTINGS: dict[str, Any] = {
    **{"env": {"name": "shapes", "size": SIZE, "kinds": list(KINDS)}, "steps": 15, "eval.tasks": 96, "metrics": ()},
    **{"warm_start.steps": 270, "warm_start.batch": 16, "warm_start.demos": 2048, "warm_start.lr": 3e-4},
    **{"algo.lr": 3e-5, "algo.kl_coef": 0.0, "trainer.vision_lr": 1e-3, "trainer.token_budget": 4096},
    **{"rollout.groups_per_step": 8, "rollout.group_size": 8, "rollout.turn_tokens": 48},
    **{"rollout.session_tokens": 192, "checkpoint_every": 1000},
}
SMALL: dict[str, Any] = {
    **{"steps": 1, "eval.tasks": 2, "warm_start.steps": 1, "warm_start.batch": 2, "warm_start.demos": 4},
    **{"rollout.groups_per_step": 1, "rollout.group_size": 2},
}


def write_model(language: Path, folder: Path, seed: int) -> None:
    """Put a random tower before a Llama; its tokenizer gets the tokens of images, and `tiny`'s chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(language)
    tokenizer.add_tokens(list(tiny_vision.IMAGE_TOKENS), special_tokens=True)
    tokenizer.chat_template = tiny_vision.CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    known = AutoModelForCausalLM.from_pretrained(language, dtype=torch.float32)
    known.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    seeing = tiny_vision.build_model(known.config, tokenizer, SIZE * CELL, seed=seed)
    seeing.model.text_model.load_state_dict(known.model.state_dict())
    seeing.save_pretrained(folder)
    tiny_vision.save_processor(folder, SIZE * CELL)


def guess_blindly() -> float:
    """The mean reward of whoever gives each question its most frequent answer."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for task in islice(make("shapes", size=SIZE, kinds=KINDS).tasks(), COUNTED):
        answers[task["question"]][task["answer"]] += 1
    return sum(max(counts.values()) for counts in answers.values()) / COUNTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print what was learned, and return 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a known model, or a folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"], help="of reinforcement learning")
    parser.add_argument("--imitation", type=int, default=SETTINGS["warm_start.steps"], help="steps of imitation")
    parser.add_argument("--small", action="store_true", help="a step of each, to show that a run comes to its end")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    blind = guess_blindly()
    chosen = {"steps": given.steps, "warm_start.steps": given.imitation, "seed": given.seed}
    settings = merge(spread(SETTINGS), spread(chosen | (SMALL if given.small else {})))
    began = time.monotonic()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(models.resolve(given.model), folder, given.seed)
        display = Display(Console(file=sys.stderr))
        result = agentrl.train(**settings, model=str(folder), run_dir=f"{scratch}/run", display=display)
    before, after = result.before, result.after
    assert before is not None
    assert after is not None
    curve = " ".join(f"{row['reward/mean']:.2f}" for row in result.metrics)
    imitated = settings["warm_start"]["steps"]
    print(
        f"{given.model} seed {given.seed}: {before.summary} after {imitated} steps of imitation, "
        f"{after.summary} after {len(result.metrics)} of reinforcement learning; blind at most {blind:.3f}; "
        f"{time.monotonic() - began:.0f} s; reward by step: {curve}"
    )
    return int(after.low <= blind and not given.small)


if __name__ == "__main__":
    sys.exit(main())
