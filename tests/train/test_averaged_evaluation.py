"""`eval.weights=averaged`: evaluations are of the moving average, and training is what it is without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config import RunConfig
from agentrl.rollout.episodes.groups import TRAIN
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import Node, Session
from tests.train.test_rerun import SETTINGS, WORLD, train

AVERAGED = {"trainer.average_decay": 0.5, "eval.weights": "averaged"}


def worst_difference(folder: Path, session: Session) -> float:
    """Of a session's log-probabilities and those of a folder's model for the same tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (leaf,) = tree.leaves(session)
    path = tree.path(session, leaf.id)
    ids = torch.tensor([[token for node in path for token in node.token_ids]])
    with torch.no_grad():
        logp_T = model(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    ours = [logp for node in path for logp in own_logprobs(node)]
    differences = [abs(a - b) for a, b in zip(ours[1:], logp_T.tolist(), strict=True) if a is not None]
    assert differences
    return max(differences)


def own_logprobs(node: Node) -> list[float | None]:
    """As the engine gave them; None for tokens that it did not sample."""
    return [logp if on else None for logp, on in zip(node.logprobs, node.trainable, strict=True)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_evaluations_sample_from_the_average_at_that_step_and_training_stays_the_same_bit_for_bit(
    tmp_path: Path,
) -> None:
    world = tmp_path / "world.py"
    world.write_text(WORLD)
    settings: dict[str, Any] = SETTINGS | {"rollout.staleness": 0, "rollout.order": "number", "rollout.turn_tokens": 8}
    settings |= {"rollout.top_p": 1.0, "rollout.repetition_penalty": 1.0}  # `worst_difference` knows full support alone
    settings |= {"steps": 3, "eval.every": 1, "checkpoint_every": 1, "keep_checkpoints": 4, "keep_best": "eval/mean"}
    plain, _ = train(env=f"{world}:Dense", **settings, run_dir=str(tmp_path / "plain"))
    ours, shown = train(env=f"{world}:Dense", **settings, **AVERAGED, run_dir=str(tmp_path / "ours"))
    assert "after step 1 (averaged weights): mean" in shown
    assert [row.get("eval/averaged") for row in ours.metrics] == [1.0, 1.0, None]
    best = json.loads((plain.path / "best.json").read_text())
    assert best["value"] == max([row["eval/mean"] for row in plain.metrics[:-1]] + [plain.after.mean])
    assert (plain.path / "checkpoints" / best["checkpoint"]).is_dir()
    one, other = (load_file(done.checkpoint / "model.safetensors") for done in (plain, ours))
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())
    with Store(tmp_path / "ours" / "sessions.db", read_only=True) as store:
        assert {n.policy for s in store.sessions(phase=TRAIN) for n in s.nodes if n.sampled} == {"main"}
        evaluations = list(store.sessions(phase="eval"))
        assert len(evaluations) == 4
        for session in evaluations:
            spans = {(node.policy, span.version) for node in session.nodes for span in node.versions}
            ((policy, step),) = spans
            folder = ours.path / "checkpoints" / f"step-{step:06d}"
            assert policy == "averaged"
            assert worst_difference(folder / "averaged", session) < 1e-4
            if step:
                assert worst_difference(folder, session) > 1e-3


@pytest.mark.slow
def test_it_is_refused_where_there_is_no_average_or_no_place_for_another_engine() -> None:
    def checked(**settings: Any) -> RunConfig:
        return RunConfig.model_validate({"env": {"name": "calculator"}, "eval": {"weights": "averaged"}, **settings})

    averaging = {"name": "torch", "average_decay": 0.9}
    assert checked(trainer=averaging).eval.label == " (averaged weights)"
    with pytest.raises(ValidationError, match=r"needs trainer\.average_decay, which trainer=torch has not set"):
        checked()
    with pytest.raises(ValidationError, match=r"another engine for the averaged weights, which agent=\./program has"):
        checked(trainer=averaging, agent="./program")
    with pytest.raises(ValidationError, match=r"which fleet\.urls="):
        checked(trainer=averaging, engine={"name": "sglang"}, fleet={"urls": ["http://127.0.0.1:1"]})
