"""Runs that learn rewards: measured, resumed bit for bit, verified, loaded by transformers, and used as a reward."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from agentrl.config import DataConfig
from agentrl.envs.rewards import make_rewards
from agentrl.errors import ConfigError, InvalidInput
from agentrl.models import resolve, tiny
from agentrl.rollout.sources.judged import JudgedRows, class_of, read_pairs, read_scored
from agentrl.rollout.sources.steps import read_steps
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.tree import tree
from agentrl.train.driver import api
from agentrl.train.record.verify.run_checks import verify
from agentrl.types import Message, Session, Status, Task
from benchmarks import reward_models

SMALL: dict[str, Any] = {"steps": 16, "checkpoint_every": 12, "rollout.groups_per_step": 16, "eval.every": 12}
WORDS = ("red", "green", "blue", "small", "large")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has imitated the benchmark's demonstrator."""
    return reward_models.imitate(tmp_path_factory.mktemp("start"), 0)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer."""
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", ["Hello there."])


@pytest.fixture(scope="module")
def learned(start: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A reward model's folder, and its held-out accuracy."""
    return reward_models.learn_reward(start, tmp_path_factory.mktemp("learned"), pairs=600, steps=20, seed=0)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "step-000016" / "model.safetensors")


def played(model: str | Path, *messages: tuple[str, str]) -> Session:
    """A finished session of these messages."""
    session = Session("s", Task(id="t"), status=Status.COMPLETED)
    given = [Message(role=role, content=text) for role, text in messages]
    parent = None
    for message, ids in zip(given, get_renderer(model).render(given), strict=True):
        parent = tree.add(session, parent, message, ids).id
    return session


async def scored(model: Path, session: Session, **settings: Any) -> Any:
    (reward,) = make_rewards({"r": {"name": "reward_model", "model": str(model), "device": "cpu", **settings}})
    try:
        return await reward(session)
    finally:
        await reward.close()


@pytest.mark.slow
def test_a_policy_that_is_trained_against_a_learned_reward_gains_the_true_one(
    start: str, learned: tuple[Path, float], tmp_path: Path
) -> None:
    """The small form of `python -m benchmarks.reward_models`."""
    model, accuracy = learned
    assert accuracy > reward_models.ACCURACY
    before, after = reward_models.reinforce("grpo", start, model, tmp_path, steps=5, seed=0)
    assert after > before + 0.1


@pytest.mark.slow
async def test_a_reward_model_has_the_same_scores_in_transformers_and_as_a_reward(learned: tuple[Path, float]) -> None:
    model, _ = learned
    network = AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert network.config.id2label == {0: "score"}
    assert resolve(str(model), scores=True) == model
    with pytest.raises(InvalidInput, match="names no causal language model"):
        resolve(str(model))
    chats = [
        (("user", "Say something in round 3."), ("assistant", "12ab")),
        (("user", "Say something in round 14."), ("assistant", "a9"), ("user", "More."), ("assistant", "abcdefgh")),
    ]
    rows = [
        tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in chat], tokenize=False).rstrip("\n")
        for chat in chats
    ]
    batch = tokenizer(rows, return_tensors="pt", padding=True, add_special_tokens=False)
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        theirs = network(**batch).logits[:, 0].tolist()
    ours = [await scored(model, played(model, *chat)) for chat in chats]
    assert ours == pytest.approx(theirs, abs=1e-5)
    squashed = await scored(model, played(model, *chats[0]), squash=True)
    assert squashed == pytest.approx(torch.sigmoid(torch.tensor(theirs[0])).item())


def solutions(file: Path) -> Path:
    """Counts in steps; a word says of each step whether it is right."""
    rng = random.Random(0)
    lines = []
    for _ in range(120):
        labels = [rng.random() < 0.5 for _ in range(3)]
        steps = [f"{rng.choice(WORDS)} {rng.randrange(99)} {'fine' if right else 'odd'}" for right in labels]
        lines.append(
            {"prompt": f"Count {rng.choice(WORDS)} {rng.randrange(99)}.", "completions": steps, "labels": labels}
        )
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.slow
async def test_labels_of_steps_are_learned_resumed_bit_for_bit_and_read_by_transformers(tmp_path: Path) -> None:
    data, run, again = str(solutions(tmp_path / "steps.jsonl")), tmp_path / "run", tmp_path / "again"
    settings = {"algo": "prm", "data": data, "algo.lr": 1e-3}
    result = api.train(run_dir=str(run), **settings | SMALL)
    assert result.before is not None
    assert result.after is not None
    assert result.after.mean < result.before.mean
    assert result.after.metrics["accuracy"] > 0.9
    assert verify(run).passed
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-000016")
    resumed = api.train(resume=str(again))
    assert resumed.after is not None
    assert resumed.after.metrics["accuracy"] == result.after.metrics["accuracy"]
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in weights(again).items())

    model = run / "checkpoints" / "step-000016"
    network = AutoModelForTokenClassification.from_pretrained(model).eval()
    assert network.config.id2label == {0: "wrong", 1: "right"}
    found = read_steps(DataConfig(name=data), ("wrong", "right"), "\n")
    found.prepare(TreeWriter(get_renderer(model), found.config))
    (session, *_) = found.sessions("eval", found.tasks["eval"][0])
    ids = torch.tensor([[token for node in session.nodes for token in node.token_ids]])
    ends = torch.tensor(
        [place for place, trained in enumerate(t for n in session.nodes for t in n.trainable) if trained]
    )
    with torch.no_grad():
        right = network(ids).logits[0, ends].softmax(-1)[:, 1].tolist()
    rows = list(map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines()))
    row = next(line for line in rows if line["prompt"] in session.messages[0].text)
    text = "\n".join(row["completions"])
    for steps, expected in (("min", min(right)), ("mean", sum(right) / 3), ("last", right[-1])):
        value = await scored(model, played(model, ("user", row["prompt"]), ("assistant", text)), steps=steps)
        assert value == pytest.approx(expected, abs=1e-5)


def prepared(found: JudgedRows, model: str | Path, **more: Any) -> JudgedRows:
    found.prepare(TreeWriter(get_renderer(model), found.config, **more))
    return found


def pair_rows(file: Path, *rows: dict[str, Any]) -> DataConfig:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(name=str(file), held_out=str(file), strings="chat")


@pytest.mark.slow
def test_pairs_of_one_prompt_lie_in_one_group_and_what_can_not_be_compared_is_told(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    config = pair_rows(
        tmp_path / "pairs.jsonl",
        {"prompt": "Hello?", "chosen": "Hi.", "rejected": "No.", "margin": 0.5},
        {"prompt": "Hello?", "chosen": "Hi.", "rejected": "Never."},
        {"prompt": "Hello?", "chosen": "Hi.", "rejected": "Hi."},
        {"prompt": "Bye?", "chosen": "Bye.", "rejected": "b" * 400},
    )
    found = prepared(read_pairs(config), tokenizer_folder, limit=60)
    (task,) = found.tasks["train"]
    sessions = found.sessions("train", task)
    assert [(session.info, session.reward) for session in sessions] == [
        ({"pair": 0, "margin": 0.5}, 1.0),
        ({"pair": 0, "margin": 0.5}, 0.0),
        ({"pair": 1}, 1.0),
        ({"pair": 1}, 0.0),
    ]
    assert all([t for n in s.nodes for t in n.trainable].count(True) == s.nodes[-1].trainable[-1] for s in sessions)
    said = "\n".join(found.lines())
    assert "the same on both sides: left out; the first: pairs.jsonl, row 3" in said
    assert "too long: left out; the first: pairs.jsonl, row 4" in said
    assert "(as TRL has them), margin = 'margin'" in said


def test_a_number_is_the_name_of_a_class_where_classes_are_called_by_numbers() -> None:
    """The label 1 of JSON was the second of the classes 1, 2 and 3, and that of a table the first."""
    assert [class_of(each, ("1", "2", "3"), "a") for each in (2, 2.0, "2", True)] == [1, 1, 1, 2]
    assert [class_of(each, ("bad", "good"), "a") for each in (1, "1", "good", False)] == [1, 1, 1, 0]
    for value in (0, "0", 1.5):
        with pytest.raises(ConfigError, match=f"the label {float(value):g} is none of 1, 2, 3"):
            class_of(value, ("1", "2", "3"), "a")


@pytest.mark.slow
def test_scores_and_labels_are_read_by_their_columns(tmp_path: Path, tokenizer_folder: Path) -> None:
    rows = [
        {"question": "A?", "answer": "a", "rating": 3, "class": "bad"},
        {"question": "B?", "answer": "b", "rating": 1.5, "class": True},
    ]
    config = pair_rows(tmp_path / "rows.jsonl", *rows)
    found = prepared(read_scored(config, "score", ()), tokenizer_folder)
    assert [s.reward for t in found.tasks["train"] for s in found.sessions("train", t)] == [3.0, 1.5]
    assert "score = 'rating'" in "\n".join(found.lines())
    found = prepared(read_scored(config, "label", ("bad", "so so", "good")), tokenizer_folder)
    assert [s.reward for t in found.tasks["train"] for s in found.sessions("train", t)] == [0.0, 2.0]
    in_words = pair_rows(
        tmp_path / "words.jsonl", *({**row, "rating": str(row["rating"]), "class": "2"} for row in rows)
    )
    found = prepared(read_scored(in_words, "score", ()), tokenizer_folder)
    assert [s.reward for t in found.tasks["train"] for s in found.sessions("train", t)] == [3.0, 1.5]
    found = prepared(read_scored(in_words, "label", ("bad", "so so", "good")), tokenizer_folder)
    assert [s.reward for t in found.tasks["train"] for s in found.sessions("train", t)] == [2.0, 2.0]
    with pytest.raises(ConfigError, match="the label 'bad' is none of wrong, right"):
        read_scored(config, "label", ("wrong", "right"))
    with pytest.raises(
        ConfigError, match=r"has no score \(its columns: question, answer\): data\.columns\.score=COLUMN"
    ):
        read_scored(pair_rows(tmp_path / "none.jsonl", {"question": "A?", "answer": "a"}), "score", ())


MARKED = "Add 1 and 1. Step 1: It is 2. ки\nStep 2: It is 3. ки"
PRM800K = {
    "question": {"problem": "Add."},
    "label": {
        "steps": [
            {
                "completions": [{"text": "So", "rating": 1}, {"text": "Hm", "rating": -1}, {"text": "Or", "rating": 0}],
                "human_completion": None,
                "chosen_completion": 0,
            },
            {"completions": [{"text": "two.", "rating": 1}], "human_completion": None, "chosen_completion": 0},
        ]
    },
}
FORMATS: dict[str, tuple[dict[str, Any], list[tuple[str, int | None, int]]]] = {
    "TRL": (
        {"prompt": "Add.", "completions": ["So", "three."], "labels": [True, False]},
        [("So", 1, -1), ("three.", 0, 0)],
    ),
    "PRM800K": (PRM800K, [("So", 1, -1), ("Hm", 0, -1), ("Or", 1, -1), ("two.", 1, 0)]),
    "Math-Shepherd": (
        {"input": MARKED, "label": MARKED.replace("2. ки", "2. +").replace("3. ки", "3. -"), "task": "x"},
        [("Step 1: It is 2.", 1, -1), ("Step 2: It is 3.", 0, 0)],
    ),
    "ProcessBench": (
        {"problem": "Add.", "steps": ["So", "three.", "Done."], "label": 1, "id": "x"},
        [("So", 1, -1), ("three.", 0, 0), ("Done.", None, 1)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_labelled_steps_are_read_in_the_formats_that_data_sets_have(
    name: str, tmp_path: Path, tokenizer_folder: Path
) -> None:
    row, expected = FORMATS[name]
    found = prepared(read_steps(pair_rows(tmp_path / "rows.jsonl", row), ("wrong", "right"), "\n"), tokenizer_folder)
    (session,) = found.sessions("train", found.tasks["train"][0])
    first = next(node.id for node in session.nodes if node.message.role == "assistant")
    steps = session.nodes[first:]
    labels = [None if node.reward is None else int(node.reward) for node in steps]
    parents = [-1 if node.parent is None or node.parent < first else node.parent - first for node in steps]
    assert [(n.message.text, a, p) for n, a, p in zip(steps, labels, parents, strict=True)] == [
        (f"{text}\n", label, parent) for text, label, parent in expected
    ]
    assert [node.trainable.count(True) for node in steps] == [label is not None for _, label, _ in expected]
    assert all(node.trainable[-1] for node in steps if node.reward is not None)
    assert f"steps as {name} has them" in "\n".join(found.lines())


def test_steps_beyond_the_limit_are_cut_off_and_told(tmp_path: Path, tokenizer_folder: Path) -> None:
    row = {"prompt": "Add.", "completions": ["So", "x" * 300], "labels": [True, False]}
    found = prepared(
        read_steps(pair_rows(tmp_path / "r.jsonl", row), ("wrong", "right"), "\n"), tokenizer_folder, limit=90
    )
    (session,) = found.sessions("train", found.tasks["train"][0])
    assert [node.message.text for node in session.nodes][-1] == "So\n"
    assert "1 of 2 steps are beyond the limit of 90" in "\n".join(found.lines())


def test_labels_are_not_in_recorded_sessions(tmp_path: Path) -> None:
    (tmp_path / "sessions.db").touch()
    with pytest.raises(ConfigError, match=r"algo=prm learns wrong, right, and recorded sessions have rewards"):
        api.train(algo="prm", data=str(tmp_path), run_dir=str(tmp_path / "run"), model="tiny")
