"""Preferences are learned from files of pairs and verdicts: the held-out margin rises; runs resume and verify."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.files import read_conversations
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.store.store import Store
from agentrl.train.driver import api
from agentrl.train.record.verify.run_checks import verify
from tests.train.offline.test_offline import SMALL, metrics, weights

NAMES = ["one", "two", "three", "four", "five", "six"]
QUESTIONS = [f"What is {a} and {b}?" for a in NAMES for b in NAMES]
GOOD, BAD = "It is {} of 36.", "No idea at all."


def pairs(folder: Path) -> str:
    rows = [{"question": q, "chosen": GOOD.format(n), "rejected": BAD} for n, q in enumerate(QUESTIONS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[8:]))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    return str(folder)


@pytest.mark.slow
def test_dpo_on_a_file_raises_the_held_out_margin_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = api.train(algo="dpo", data=pairs(data), run_dir=str(whole), **SMALL)
    assert result.before is not None
    assert result.after is not None
    assert result.before.mean == 0
    assert result.after.metrics["accuracy"] == 1
    assert result.after.low > 0.1
    assert "trainable tokens were trained" in result.tokens
    rows = metrics(whole)
    assert rows[1]["eval/margin"] > 0
    assert rows[0]["signal/trained"] == rows[0]["signal/sampled"] > 0
    assert rows[0]["pack/sharing"] > 1
    assert result.after.mean == pytest.approx(naive_margin(whole, data), rel=1e-3)
    assert verify(whole).passed

    shutil.copytree(whole, cut)
    for folder in sorted((cut / "checkpoints").glob("step-*")):
        if folder.name > "step-000002":
            shutil.rmtree(folder)
    again = api.train(resume=str(cut))
    assert metrics(cut) == rows
    assert all(torch.equal(tensor, weights(cut)[name]) for name, tensor in weights(whole).items())
    assert again.after == result.after
    assert verify(cut).passed

    assert {check.name: check.examined["sessions"] for check in verify(whole).checks}["source"] == 32
    measured = (whole / "held_out.jsonl").read_text()
    (whole / "held_out.jsonl").write_text(measured.replace('"margin":', '"margin":1'))
    assert {"seals", "held out"} <= {check.name for check in verify(whole).checks if check.faults}
    with Store(cut / "sessions.db") as store:
        changed = next(store.sessions(phase="train"))
        changed.nodes[-1].trainable = [False] * len(changed.nodes[-1].token_ids)
        store.save(changed, replace=True)
    (source,) = [check for check in verify(cut).checks if check.name == "source"]
    assert [fault.what for fault in source.faults] == [
        "has other tokens, or others of them are trained, than the source gives"
    ]
    (data / "train.jsonl").write_text((data / "test.jsonl").read_text())
    (source,) = [check for check in verify(cut).checks if check.name == "source"]
    assert (source.faults, list(source.unknown)) == ([], ["sources that changed since they were read"])


def naive_margin(run: Path, data: Path) -> float:
    """The mean of beta times the difference of log-ratios over held-out pairs, one row at a time, by transformers."""
    found = read_conversations(DataConfig(name=str(data)), "pairs")
    found.prepare(TreeWriter(get_renderer(run / "model"), found.config))
    first, last = map(AutoModelForCausalLM.from_pretrained, (run / "model", run / "checkpoints" / "step-000004"))

    def ratio(ids: list[int], trained: list[bool]) -> float:
        row, places = torch.tensor([ids]), torch.tensor([n for n, each in enumerate(trained) if each])
        with torch.no_grad():
            sums = [
                model(row).logits[0].log_softmax(-1)[places - 1, row[0, places]].sum().item() for model in (last, first)
            ]
        return sums[0] - sums[1]

    margins = []
    for task in found.tasks["eval"]:
        ratios = [
            ratio([i for n in s.nodes for i in n.token_ids], [t for n in s.nodes for t in n.trainable])
            for s in found.sessions("eval", task)
        ]
        margins.append(0.1 * (ratios[0] - ratios[1]))
    return sum(margins) / len(margins)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["simpo", "orpo", "cpo", "kto"])
def test_the_other_losses_learn_from_the_same_file(tmp_path: Path, algo: str) -> None:
    more: dict[str, Any] = SMALL | {"steps": 2, "eval.every": 9}
    result = api.train(algo=algo, data=pairs(tmp_path), run_dir=str(tmp_path / "run"), **more)
    assert result.before is not None
    assert result.after is not None
    assert result.after.mean > result.before.mean


@pytest.mark.slow
def test_kto_learns_from_verdicts_on_single_replies(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.jsonl"
    rows = [
        {"prompt": q, "completion": GOOD.format(n) if n % 2 else BAD, "label": bool(n % 2)}
        for n, q in enumerate(QUESTIONS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = SMALL | {"steps": 3, "eval.every": 9, "data.strings": "chat", "data.held_out": str(file), "eval.tasks": 36}
    result = api.train(algo="kto", data=str(file), run_dir=str(tmp_path / "run"), **more)
    assert result.after is not None
    assert result.after.metrics["pairs"] == 18 * 18
    assert result.after.low > 0.1
    assert verify(tmp_path / "run").passed
    with Store(tmp_path / "run" / "sessions.db", read_only=True) as store:
        assert {session.score for session in store.sessions(phase="train")} == {0.0, 1.0}


def test_what_pairs_of_a_file_can_not_do_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    file, run = str(tmp_path / "pairs.jsonl"), str(tmp_path)
    (tmp_path / "sessions.db").touch()
    Path(file).touch()
    for settings, sentence in (
        ({"algo": "grpo"}, "algo=dpo, simpo, orpo, cpo and kto learn from"),
        ({"algo": "dpo", "algo.kl_coef": 0.1, "algo.kl_as": "reward"}, r"algo\.kl_as=loss"),
        ({"algo": "dpo", "algo.shaping.truncated_penalty": 1.0}, r"algo\.shaping"),
        ({"algo": "remax", "data": run}, "algo=remax needs greedy sessions"),
        ({"algo": "coma", "data": run}, "algo=coma needs continuations"),
        ({"algo": "sft", "data": run, "data.max_tokens": 5}, r"data\.max_tokens=5 is of a file"),
        ({"algo": "dpo", "data": __file__, "data.min_reward": 0.5}, r"data\.min_reward=0\.5 is of a recorded run"),
        ({"algo": "dpo", "data": __file__, "data.status": "aborted"}, r"data\.status=aborted is of a recorded run"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            api.train(**{"data": file, "run_dir": str(tmp_path / "run")} | settings)
