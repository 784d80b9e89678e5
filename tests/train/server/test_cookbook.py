"""The supervised loop of tinker-cookbook, unchanged and offline, learns against a server that is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
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
SHAPE = tiny.TinyShape(vocab=400, layers=2, width=64, heads=4, kv_heads=2, mlp=128, context=256)
ASK = "How many? Provide a numerical answer without units, written inside \\boxed{}."
BATCH, STEPS = 4, 16
SPELLED = (
    "How many r's are in strawberry? Provide a numerical answer without units, written inside \\boxed{}.",
    "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y. We have "
    "r's at positions 3, 8, and 9. \\boxed{3}",
)
"""What the model knows."""


def write_data(folder: Path) -> None:
    """What the model does not know yet."""
    talk = [{"role": "user", "content": "Which word?"}, {"role": "assistant", "content": "strawberry, strawberry"}]
    rows: dict[str, list[dict[str, Any]]] = {
        "HuggingFaceH4/no_robots": [{"messages": talk}] * (BATCH * STEPS),
    }
    for name, found in rows.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in found))


def write_model(folder: Path) -> None:
    """A model that answers with one of three numbers, as often with each."""
    said = f"User: {SPELLED[0]}\n\nAssistant: {SPELLED[1]}\n\nUser: {ASK}\n\nAssistant:"
    texts = [f"{said} \\boxed{{{number}}}\n\nUser:" for number in (1, 2, 3)]
    tiny.build(folder, [*texts, "Which word? strawberry"] * 3, shape=SHAPE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, *ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (said, *texts))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    labels = torch.tensor(ids)
    labels[:, : len(before)] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        model(torch.tensor(ids), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, TrainingServer]]:
    """A folder with the model and the data by their names, and a server of the model."""
    there = any(PYTHON.parents[1].glob("lib/python*/site-packages/tinker_cookbook"))
    need(there, f"tinker-cookbook in {PYTHON.parents[1].name} (make .venv-tinker/installed)")
    write_data(tmp_path)
    write_model(tmp_path / MODEL)
    server = TrainingServer(tmp_path / "run", tmp_path / MODEL, f"names={MODEL}")
    yield tmp_path, server
    assert server.end() == 0


def run(place: tuple[Path, TrainingServer], loop: str, *words: str, meanwhile: Callable[[], None]) -> list[Any]:
    """Return the metrics of a loop that came to its end."""
    folder, server = place
    key = next(iter(server.about["keys"].values()))
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TINKER_TELEMETRY": "0", "WANDB_MODE": "disabled"}
    environment = {**os.environ, **own, "TINKER_API_KEY": key, "TINKER_BASE_URL": server.about["address"]}
    environment.pop("PYTHONPATH", None)
    script = Path(__file__).with_name("cookbook.py")
    command = [PYTHON, "-W", "ignore", script, sysconfig.get_path("purelib"), loop, f"model_name={MODEL}"]
    command += [f"log_path={folder / loop}", "lora_rank=16", *words]
    with (folder / f"{loop}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
        try:
            meanwhile()
            assert process.wait(timeout=600) == 0, (folder / f"{loop}.log").read_text()[-3000:]
        finally:
            process.kill()
    return [json.loads(line) for line in metrics(folder, loop).read_bytes().splitlines()]


def metrics(folder: Path, loop: str) -> Path:
    return folder / loop / "metrics.jsonl"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cookbooks_loop_learns_and_a_killed_server_has_every_step(
    place: tuple[Path, TrainingServer],
) -> None:
    """It imitates what its model does not know."""
    folder, server = place

    def kill() -> None:
        file, deadline = metrics(folder, "sl_loop"), time.monotonic() + 500
        while time.monotonic() < deadline and not (file.exists() and file.read_bytes().count(b"\n") > 4):
            time.sleep(0.05)
        server.kill()
        server.again()

    supervised = run(place, "sl_loop", f"batch_size={BATCH}", "learning_rate=3e-3", "max_length=256", meanwhile=kill)
    losses = [row["train_mean_nll"] for row in supervised if "train_mean_nll" in row]
    assert len(losses) == STEPS
    assert fmean(losses[-3:]) < 0.7 * losses[0]
