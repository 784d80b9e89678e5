"""The loops of tinker-cookbook, unchanged and offline, learn against a server that is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.models import tiny
from tests.conftest import need
from tests.train.server.test_sdk import PYTHON, TrainingServer

MODEL = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows; its renderer needs no special tokens."""
SHAPE = tiny.TinyShape(vocab=600, layers=2, width=64, heads=4, kv_heads=2, mlp=128, context=512)
BATCH, STEPS = {"sl_loop": 4, "rl_loop": 2}, {"sl_loop": 16, "rl_loop": 20}
TALK = [{"role": "user", "content": "Which word?"}, {"role": "assistant", "content": "strawberry, strawberry"}]
"""The supervised loop's conversation, which the model does not know."""
ANSWERS = ("1", "2", "3")
"""What the model answers to every question, each as often; the questions of the other loop are those with the second.
"""
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
SPELLED = (
    "How many r's are in strawberry?" + SUFFIX,
    "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y. We have "
    "r's at positions 3, 8, and 9. \\boxed{3}",
)
"""The example that stands before each question."""


def write_data(folder: Path, questions: list[dict[str, str]]) -> None:
    """The loops' data sets, by the names by which they ask for them."""
    rows: dict[str, list[Any]] = {
        "HuggingFaceH4/no_robots": [{"messages": TALK}] * (BATCH["sl_loop"] * STEPS["sl_loop"]),
        "openai/gsm8k": questions,
    }
    for name, found in rows.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in found))
    card = "---\nconfigs:\n- config_name: main\n  data_files: train.jsonl\n---\n"
    (folder / "openai/gsm8k/README.md").write_text(card)


def write_model(folder: Path, questions: list[str]) -> None:
    """A model that gives each of the answers to these questions, and as often."""
    asked = [f"User: {SPELLED[0]}\n\nAssistant: {SPELLED[1]}\n\nUser: {q}{SUFFIX}\n\nAssistant:" for q in questions]
    ends = [f" \\boxed{{{answer}}}\n\nUser:" for answer in ANSWERS]
    tiny.build(
        folder, [*(text + end for text in asked for end in ends), *(one["content"] for one in TALK)], shape=SHAPE
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        loss = torch.zeros(())
        for end in ends:
            before, after = (
                tokenizer(t, add_special_tokens=False)["input_ids"] for t in (asked[step % len(asked)], end)
            )
            ids = torch.tensor([before + after])
            labels = ids.clone()
            labels[:, : len(before)] = -100
            loss = loss + model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Iterator[tuple[Path, TrainingServer]]:
    """A folder with the model and the data by their names, and a server of the model."""
    there = any(PYTHON.parents[1].glob("lib/python*/site-packages/tinker_cookbook"))
    need(there, f"tinker-cookbook in {PYTHON.parents[1].name} (make .venv-tinker/installed)")
    rows = map(json.loads, (shared_data / "gsm8k_train_2000.jsonl").read_text().splitlines())
    fitting = [row for row in rows if row["answer"].endswith(f"#### {ANSWERS[1]}")]
    questions = sorted(fitting, key=lambda row: len(row["question"]))[: BATCH["rl_loop"] * STEPS["rl_loop"]]
    folder = tmp_path_factory.mktemp("cookbook")
    write_data(folder, questions)
    write_model(folder / MODEL, [row["question"] for row in questions])
    server = TrainingServer(folder / "run", folder / MODEL, f"names={MODEL}")
    yield folder, server
    assert server.end() == 0


def run(place: tuple[Path, TrainingServer], loop: str, *words: str) -> list[dict[str, Any]]:
    """Return the metrics by step of a loop that came to its end, and whose server was killed after a third of it."""
    folder, server = place
    key = next(iter(server.about["keys"].values()))
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TINKER_TELEMETRY": "0", "WANDB_MODE": "disabled"}
    environment = {**os.environ, **own, "TINKER_API_KEY": key, "TINKER_BASE_URL": server.about["address"]}
    environment.pop("PYTHONPATH", None)
    script = Path(__file__).with_name("cookbook.py")
    command = [PYTHON, "-W", "ignore", script, sysconfig.get_path("purelib"), loop, f"model_name={MODEL}"]
    command += [f"log_path={folder / loop}", "lora_rank=16", f"batch_size={BATCH[loop]}", *words]
    with (folder / f"{loop}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 500
            while len(read_steps(folder, loop)) < STEPS[loop] // 3 and time.monotonic() < deadline:
                assert process.poll() is None, (folder / f"{loop}.log").read_text()[-3000:]
                time.sleep(0.05)
            server.kill()
            server.again()
            assert process.wait(timeout=600) == 0, (folder / f"{loop}.log").read_text()[-3000:]
        finally:
            process.kill()
    return read_steps(folder, loop)


def read_steps(folder: Path, loop: str) -> list[dict[str, Any]]:
    """Return the metrics that a loop has written of its steps."""
    file = folder / loop / "metrics.jsonl"
    written = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
    rows = map(json.loads, written.splitlines())
    return [row for row in rows if "progress/batch" in row or "train_mean_nll" in row]


def updates(folder: Path, loop: str) -> int:
    """Return how many updates the state has that a loop saved at its end."""
    last = json.loads((folder / loop / "checkpoints.jsonl").read_bytes().splitlines()[-1])
    saved = last["state_path"].removeprefix("tinker://").replace(":", "_")
    (file,) = (folder / "run").glob(f"tenants/*/runs/{saved}/state.pt")
    steps: int = torch.load(file, weights_only=True)["steps"]
    return steps


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cookbooks_supervised_loop_learns_and_a_killed_server_has_every_step(
    place: tuple[Path, TrainingServer],
) -> None:
    """It imitates what its model does not know."""
    losses = [row["train_mean_nll"] for row in run(place, "sl_loop", "learning_rate=3e-3", "max_length=256")]
    assert len(losses) == updates(place[0], "sl_loop") == STEPS["sl_loop"]
    assert fmean(losses[-3:]) < 0.7 * losses[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cookbooks_loop_of_rewards_learns_and_a_killed_server_has_every_step(
    place: tuple[Path, TrainingServer],
) -> None:
    """It is rewarded for one of the answers that its model gives, and makes no update where all rewards are equal."""
    words = ("group_size=16", "learning_rate=3e-3", "max_tokens=16", "loss_fn=importance_sampling")
    rows = run(place, "rl_loop", *words)
    assert len(rows) == STEPS["rl_loop"]
    assert updates(place[0], "rl_loop") == sum("grad_norm" in row for row in rows) > STEPS["rl_loop"] // 3
    rewards = [row["reward/total"] for row in rows]
    assert fmean(rewards[:2]) < 0.6 < 0.7 < fmean(rewards[-10:])
