"""A run whose agent asks for a form of its replies: it learns within it, and is run again bit for bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.attachments import support
from agentrl.models import tiny
from agentrl.sessions.store.store import Store
from tests.conftest import need

WORLD = """
import agentrl


class Digits(agentrl.Env):
    def tasks(self, split="train"):
        return [agentrl.Task(id=str(number)) for number in range(8)]

    async def reset(self, task, *, seed=None):
        return "which?"
"""
AGENT = """
import json

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "string", "pattern": "^[0-9]$"}},
    "required": ["n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


async def agent(task, client):
    messages = [{"role": "user", "content": "which?"}]
    reply = await client.chat.completions.create(model="m", messages=messages, response_format=FORM)
    value = int(json.loads(reply.choices[0].message.content)["n"]) / 9
    root = str(client.base_url).removesuffix("v1/")
    await client.post(f"{root}reward", body={"value": value}, cast_to=object)
"""
SETTINGS: dict[str, Any] = {
    **{"rollout.groups_per_step": 2, "rollout.group_size": 16, "rollout.turn_tokens": 20, "warm_start.steps": 0},
    **{"eval.tasks": 1, "steps": 3, "algo.lr": 1e-2},
}


@pytest.mark.slow
def test_a_run_under_a_json_schema_learns_within_it_and_is_run_again_bit_for_bit(tmp_path: Path) -> None:
    """The largest digit is worth most; every reply of the untrained model is JSON from the first on."""
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")
    (tmp_path / "world.py").write_text(WORLD)
    (tmp_path / "agent.py").write_text(AGENT)
    text = '{"n":"7"}<|im_start|>user\nwhich?<|im_end|>\n'
    model = tiny.build(tmp_path / "tiny", [text] * 20, shape=tiny.TinyShape(vocab=280, layers=1, context=256))
    env, agent, run = f"{tmp_path / 'world.py'}:Digits", f"{tmp_path / 'agent.py'}:agent", tmp_path / "run"
    done = agentrl.train(env, agent=agent, model=str(model), run_dir=str(run), **SETTINGS)
    rewards = [row["reward/mean"] for row in done.metrics]
    assert rewards[0] < 0.7 < 0.9 < rewards[-1]
    assert (
        max(row.get("mismatch/abs_max", 0.0) for row in done.metrics) <= 1e-4
    )  # one token's rounding; another support is nats apart
    assert not any(row["signal/grammar"] for row in done.metrics)
    assert not [name for row in done.metrics for name in row if name.startswith("count/untrainable")]
    with Store(run / "sessions.db", read_only=True) as store:
        nodes = [node for session in store.sessions(phase="train") for node in session.nodes if node.sampled]
    assert len(nodes) == 96
    assert all(any(node.trainable) and support.NAME in node.attachments for node in nodes)
    again = agentrl.train(rerun=str(run))
    assert [row["reward/mean"] for row in again.metrics] == rewards
