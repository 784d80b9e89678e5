"""A step of `dpo` on pairs with a shared prompt against TRL's: `python -m benchmarks.vs_trl pairs [PROMPT:COMPLETION …]`.

Both take steps on the same batches of pairs with the same random Llama of 7 M parameters, in float32, with the
reference's pass in every step, one AdamW step on all pairs. TRL computes a pair as two rows; a forest has the prompt
once. The tokens say what can be saved: (prompt + 2 · completion) / (2 · (prompt + completion)).

Each side runs in a process of its own; TRL is that of `.venv-trl-functions` (`make .venv-trl-functions/installed`),
with the same torch. The two take turns, and the least of each side's steps counts: whatever else the machine does only
adds to it. `tests/train/trl` runs a small form, which holds the losses of the steps to TRL's.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / ".venv-trl-functions"
PAIRS, STEPS, ROUNDS, RATE, BETA = 4, 3, 2, 1e-4, 0.1
LENGTHS = ((800, 32), (512, 32), (512, 128), (512, 256))
"""Tokens of prompts and completions."""
AIM = 0.6
"""Of TRL's time, at a ratio of tokens of 0.52."""
SHAPE = {"layers": 8, "width": 256, "heads": 8, "kv_heads": 8, "mlp": 640}


def token_ratio(prompt: int, completion: int) -> float:
    """A forest's tokens over those of rows."""
    return (prompt + 2 * completion) / (2 * (prompt + completion))


def batches(prompt: int, completion: int, steps: int, vocabulary: int) -> list[list[dict[str, list[int]]]]:
    """Random pairs of token ids for each step."""
    dice = random.Random(0)

    def draw(count: int) -> list[int]:
        return [dice.randrange(10, vocabulary) for _ in range(count)]

    lengths = {"prompt_ids": prompt, "chosen_ids": completion, "rejected_ids": completion}
    return [[{name: draw(n) for name, n in lengths.items()} for _ in range(PAIRS)] for _ in range(steps)]


def ours(model: str, given: list[list[dict[str, list[int]]]]) -> dict[str, list[float]]:
    """Seconds and losses of our steps, packing included."""
    from agentrl.train.algorithms import algorithm_settings
    from agentrl.train.algorithms.pairs import preference_group
    from agentrl.train.forest.packing import pack_credited
    from agentrl.train.trainers.torch_trainer.settings import TorchConfig
    from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
    from agentrl.types import Message, Node, Session, Task

    def side(name: str, prompt: list[int], completion: list[int]) -> Session:
        asking, answering = Message(role="user", content=""), Message(role="assistant", content="")
        nodes = [
            Node(0, None, asking, prompt, [False] * len(prompt), [0.0] * len(prompt)),
            Node(1, 0, answering, completion, [True] * len(completion), [0.0] * len(completion)),
        ]
        return Session(name, Task(id=name), nodes=nodes)

    algo = algorithm_settings({"name": "dpo", "lr": RATE, "loss": {"name": "dpo", "beta": BETA}})
    trainer = TorchTrainer(model, TorchConfig(device="cpu"), algo, total_steps=len(given))
    seconds, losses = [], []
    for rows in given:
        began = time.perf_counter()
        groups = [
            preference_group(
                str(i), *(side(f"{i}-{name}", row["prompt_ids"], row[f"{name}_ids"]) for name in ("chosen", "rejected"))
            )
            for i, row in enumerate(rows)
        ]
        _, forests = pack_credited(trainer.algorithm, groups, None, trainer.config.token_budget, 0)
        losses.append(trainer.step(forests)["loss"])
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "losses": losses}


def theirs(model: str, given: list[list[dict[str, list[int]]]]) -> dict[str, list[float]]:
    """Seconds and losses of TRL's steps."""
    sys.path.append(str(PACKAGES))
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer  # type: ignore[import-not-found]

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    class Given(DPOTrainer):  # type: ignore[misc]
        """Takes token ids as they are."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    with tempfile.TemporaryDirectory() as folder:
        settings = DPOConfig(
            **{"output_dir": folder, "use_cpu": True, "bf16": False, "per_device_train_batch_size": PAIRS},
            **{"max_steps": len(given), "learning_rate": RATE, "lr_scheduler_type": "constant", "beta": BETA},
            **{"gradient_checkpointing": False, "max_length": None, "max_grad_norm": 1.0, "adam_beta2": 0.95},
            **{"logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True},
            train_sampling_strategy="sequential",
        )
        trainer = Given(
            model=AutoModelForCausalLM.from_pretrained(model),
            ref_model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=AutoTokenizer.from_pretrained(model),
            args=settings,
            train_dataset=Dataset.from_list([row for rows in given for row in rows]),
            callbacks=[Clock()],
        )
        began = time.perf_counter()
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"seconds": [b - a for a, b in zip([began, *ends], ends, strict=False)], "losses": losses}


def run(side: str, model: Path, given: list[list[dict[str, list[int]]]]) -> dict[str, list[float]]:
    """Run one side in a process of its own.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.json"
        file.write_text(json.dumps(given))
        command = [sys.executable, "-m", "benchmarks.vs_trl_pairs", side, str(model), str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
        if done.returncode:
            raise SystemExit(f"the {side} side failed:\n{done.stderr[-3000:]}")
        result: dict[str, list[float]] = json.loads(file.with_suffix(".out").read_text())
    return result


def compare(model: Path, prompt: int, completion: int) -> dict[str, Any]:
    """The least seconds of a step of each side, and the losses of the first round."""
    given = batches(prompt, completion, STEPS, 100)
    found: dict[str, list[dict[str, list[float]]]] = {"agentrl": [], "trl": []}
    for _ in range(ROUNDS):
        for side, measured in found.items():
            measured.append(run(side, model, given))
    least = {side: min(s for each in measured for s in each["seconds"][1:]) for side, measured in found.items()}
    return {"seconds": least, "losses": {side: measured[0]["losses"] for side, measured in found.items()}}


def build_model(path: Path, **shape: int) -> Path:
    """The model that both sides begin with."""
    from agentrl.models.tiny import TinyShape, build

    build(path, ["".join(map(chr, range(32, 127)))], shape=TinyShape(**(SHAPE | shape)))
    return path


def main(words: list[str]) -> None:
    """Print the table of lengths, each as PROMPT:COMPLETION."""
    lengths = [(int(a), int(b)) for a, b in (word.split(":") for word in words)] or list(LENGTHS)
    print(f"{'prompt':>7} {'completion':>10} {'tokens':>7} {'time':>6} {'agentrl':>9} {'trl':>9}   losses apart by")
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model")
        for prompt, completion in lengths:
            found = compare(model, prompt, completion)
            mine, other = found["seconds"]["agentrl"], found["seconds"]["trl"]
            apart = max(abs(a - b) for a, b in zip(*found["losses"].values(), strict=True))
            ratio = token_ratio(prompt, completion)
            shown = f"{prompt:7} {completion:10} {ratio:7.2f} {mine / other:6.2f}"
            print(f"{shown} {mine:7.2f} s {other:7.2f} s   {apart:.1e}", flush=True)
    print(f"aim: at most {AIM} of TRL's time at 800 and 32")


if __name__ == "__main__":
    if sys.argv[1:2] in (["agentrl"], ["trl"]):
        wanted = Path(sys.argv[3])
        measure = ours if sys.argv[1] == "agentrl" else theirs
        wanted.with_suffix(".out").write_text(json.dumps(measure(sys.argv[2], json.loads(wanted.read_text()))))
    else:
        main(sys.argv[1:])
