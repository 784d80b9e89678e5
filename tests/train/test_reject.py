"""`agentrl reject`: the best sessions of each task become a file that supervised learning reads."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.config import RunConfig
from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError, NoSignal
from agentrl.overrides import merge_settings
from agentrl.rollout.sources.files import read_conversations
from agentrl.sessions.store.store import Store
from agentrl.train.driver.api import run_reject
from agentrl.train.driver.setup import complete
from agentrl.train.evaluation.rejection import RejectConfig, Rejection, choose_rows, split_settings
from agentrl.train.record.verify.run_checks import verify
from agentrl.types import Message, Node, Session, Status, Task


def run(folder: Path, **settings: Any) -> Rejection:
    words = {"env": "calculator", "policy": "expert", "out": folder / "best.jsonl", "run_dir": folder / "runs"}
    own = [f"{name}={value}" for name, value in (words | settings).items()]
    config, chosen = split_settings(merge_settings(own))
    return run_reject(complete(config), chosen)


@pytest.mark.slow
def test_the_best_sessions_are_a_file_that_sft_reads_and_the_same_command_goes_on(tmp_path: Path) -> None:
    whole, begun = tmp_path / "whole", tmp_path / "begun"
    found = run(whole, n=2, **{"eval.tasks": 6})
    assert (found.counts["sessions"], found.counts["kept"], found.counts["rows"]) == (12, 6, 6)
    assert verify(found.folder).passed
    conversations = read_conversations(DataConfig(name=str(found.out)))
    read = [example for split in ("train", "eval") for tree_ in conversations.examples[split] for example in tree_]
    assert len(read) == 6
    assert all(example.tools and example.messages[-1].role == "assistant" for example in read)

    run(begun, n=1, **{"eval.tasks": 4})
    with Store(begun / "runs" / found.folder.name / "sessions.db", read_only=True) as store:
        before = store.digests()
    again = run(begun, n=2, **{"eval.tasks": 6})
    assert again.out.read_bytes() == found.out.read_bytes()
    with Store(again.folder / "sessions.db", read_only=True) as store:
        assert before.items() <= store.digests().items()


@pytest.mark.slow
def test_what_is_not_kept_is_counted_and_a_file_of_others_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(NoSignal, match=r"no session of 2 is kept \(2 below min_reward\).*the best reward is 0"):
        run(tmp_path, policy="noop", n=1, min_reward=0.5, **{"eval.tasks": 2})
    assert not (tmp_path / "best.jsonl").exists()
    (tmp_path / "best.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match="there is a file already"):
        run(tmp_path, n=1)
    assert (tmp_path / "best.jsonl").read_text() == "mine\n"
    for settings, sentence in (
        ({"eval.n": 3}, "eval.n is n= here"),
        ({"out": "best.parquet"}, r"out=NAME\.jsonl"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run(tmp_path, **settings)


def session(task: int, sample: int, text: str, reward: float | None, status: Status = Status.COMPLETED) -> Session:
    made = Session(
        f"eval-{task}-{sample}-{text}", Task(id=f"t{task}"), f"eval-{task}", sample, phase="eval", status=status
    )
    made.group_number, made.reward = task, reward
    said = Message(role="user", content=f"q{task}"), Message(role="assistant", content=text)
    made.nodes = [Node(n, n - 1 if n else None, message, [n], [False], [0.0]) for n, message in enumerate(said)]
    return made


def test_the_best_are_kept_once_each_and_never_what_the_infrastructure_failed(tmp_path: Path) -> None:
    rows = [
        session(0, 0, "good", 0.8),
        session(0, 1, "best", 1.0),
        session(0, 2, "best", 1.0),
        session(0, 3, "bad", 0.1),
        session(1, 0, "cut", 1.0, Status.TRUNCATED),
        session(1, 1, "lost", 1.0, Status.INFRA_ERROR),
        session(2, 0, "fine", 0.6),
        session(7, 0, "of more tasks than asked for", 1.0),
    ]
    found = Rejection(tmp_path / "out", tmp_path)
    config = RunConfig.model_validate({"env": "calculator", "eval": {"tasks": 4}})
    with Store(tmp_path / "sessions.db") as store:
        for each in rows:
            store.save(each)
        own = RejectConfig(out="out", n=4, max_per_task=2, min_reward=0.5)
        chosen = choose_rows(config.eval, own, store, found)
        best = choose_rows(config.eval, own.model_copy(update={"max_per_task": 1}), store, Rejection(Path(), Path()))
    assert [(row["task"], row["messages"][-1]["content"], row["reward"]) for row in chosen] == [
        ("t0", "best", 1.0),
        ("t0", "good", 0.8),
        ("t2", "fine", 0.6),
    ]
    assert [row["messages"][-1]["content"] for row in best] == ["best", "fine"]
    assert dict(found.counts) == {
        **{"sessions": 7, "kept": 3, "tasks": 3, "solved": 2, "rows": 3},
        **{"the same as another": 1, "below min_reward": 1, "not ended by themselves": 1},
        "failed by infrastructure": 1,
    }
    assert orjson.dumps(chosen)


def test_the_sessions_of_one_task_at_a_time_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of an evaluation's were read before the first was chosen: 100,000 of them are gigabytes."""
    config, most = RunConfig.model_validate({"env": "calculator", "eval": {"tasks": 30}}), 0
    load = Store.load

    def counted(store: Store, id_: str) -> Session:
        nonlocal most
        loaded = load(store, id_)
        most = max(most, sum(type(each) is Session for each in gc.get_objects()))
        return loaded

    with Store(tmp_path / "sessions.db") as store:
        for task in range(30):
            for sample in range(2):
                store.save(session(task, sample, f"{task}.{sample}", 1.0))
        before = sum(type(each) is Session for each in gc.get_objects())
        monkeypatch.setattr(Store, "load", counted)
        own = RejectConfig(out="out", n=2, max_per_task=2, min_reward=0.5)
        chosen = choose_rows(config.eval, own, store, Rejection(tmp_path / "out", tmp_path))
    assert len(chosen) == 60
    assert most - before <= 10
