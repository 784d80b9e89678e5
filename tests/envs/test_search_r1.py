"""Search-R1: the scorer, one assistant message token for token, and whose fault a failed search is."""

from __future__ import annotations

import importlib.util
import json
import random
import string
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.builtin.search_r1 import published, scoring
from agentrl.envs.builtin.search_r1.env import SearchR1
from agentrl.envs.builtin.search_r1.prompts import INVALID
from agentrl.envs.builtin.search_r1.squad import prepare_squad
from agentrl.envs.episode import expert_policy, noop_policy, play, run_episode
from agentrl.envs.turns import Player
from agentrl.errors import ConfigError, EnvError, InfraError
from agentrl.retrieval.index import build
from agentrl.rollout.episodes.policies import ModelActor
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import (
    Capabilities,
    Chunk,
    FinishReason,
    Message,
    Sampling,
    Session,
    Status,
    StepResult,
    Task,
    Turn,
    VersionSpan,
)
from tests.conftest import need
from tests.envs.in_process_index import InProcess
from tests.sessions.fakes import END, LetterRenderer, LetterTokenizer

SQUAD = """{"data": [{"title": "Rivers_of_Europe", "paragraphs": [
  {"context": "the danube flows through vienna and budapest", "qas": [
    {"id": "q1", "question": "where does the danube flow through", "answers": [{"text": "vienna"}]}]},
  {"context": "the rhine flows through basel and cologne", "qas": [
    {"id": "q2", "question": "what flows through basel", "answers": [{"text": "the rhine"}]}]},
  {"context": "the elbe flows through dresden", "qas": [
    {"id": "q3", "question": "what flows through dresden", "answers": [{"text": "the elbe"}]},
    {"id": "q4", "question": "nobody knows", "answers": []}]}]}]}"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search_r1")
    (folder / "squad.json").write_text(SQUAD)
    passages, train, held_out = prepare_squad(folder / "squad.json", folder)
    assert (passages, train + held_out) == (3, 3)
    build(folder / "corpus.jsonl", folder / "bm25")
    return folder


def make(data: Path, **options: Any) -> SearchR1:
    env = SearchR1(data=data, **options)
    if "retriever" not in options:
        found: Any = InProcess(data)
        env.client = lambda: found  # type: ignore[method-assign]
    return env


TASK = Task(id="t", data={"question": "where does the danube flow through?", "answers": ["vienna"], "hops": 1})


# ------------------------------------------------------------------------------------------- scoring


def reference(text: str) -> str:
    """SQuAD's normalisation, letter by letter and word by word."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    words, word = [], ""
    for letter in [*kept, " "]:
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        words += [" " if word in ("a", "an", "the") else word, letter]
        word = ""
    return " ".join("".join(words).split())


@pytest.mark.slow
def test_exact_match_is_the_published_one_on_ten_thousand_answers() -> None:
    rng = random.Random(0)
    pieces = [
        "a",
        "an",
        "the",
        "The",
        "AN",
        "theatre",
        "Vienna",
        "1,000",
        "U.S.",
        "x-ray",
        "d'Or",
        "é",
        "ß",
        "  ",
        "\n",
    ]
    pieces += ["!", "(", "—", "_", "a.", "the-", "'", "\u00a0", "中文", "", "the\tend"]
    for _ in range(10_000):
        one = "".join(rng.choice(pieces) + rng.choice(["", " "]) for _ in range(rng.randint(0, 6)))
        other = one.upper() if rng.random() < 0.3 else "".join(rng.choices(pieces, k=2))
        if reference(one):
            assert scoring.normalize(one) == reference(one)
            assert scoring.exact_match(one, [other, "no"]) == float(reference(one) in {reference(other), "no"})


@pytest.mark.parametrize(
    ("turns", "answer"),
    [
        (["<think>x</think><answer> Vienna </answer>"], "Vienna"),
        (["<answer>one</answer> no <answer>\ntwo\n</answer>"], "two"),
        (["<answer>one</answer>", "no"], "one"),
        (["<information><answer>hers</answer></information><answer>mine</answer>"], "mine"),
        (["<information><answer>hers</answer></information>"], None),
        (["<answer>never closed"], None),
        (["<answer>begun in a turn", "and closed in the next</answer>"], None),
        ([], None),
    ],
)
def test_the_last_answer_of_the_models_own_counts(turns: list[str], answer: str | None) -> None:
    assert scoring.find_given(turns) == answer


@pytest.mark.parametrize(
    ("response", "formed"),
    [
        ("<think>a</think> <answer>b</answer>\n", True),
        (
            "<think>a</think><search>q</search>\n\n<information>i</information>\n\n<think>b</think><answer>c</answer>",
            True,
        ),
        ("<answer>b</answer>", False),
        ("<think>a</think> and <answer>b</answer>", False),
        ("<think>a</think><search>q</search><think>b</think><answer>c</answer>", False),
        ("<think>a<think>b</think></think><answer>c</answer>", False),
        ("<think>a</think><answer>b</answer> more", False),
    ],
)
def test_the_format_aware_reward_keeps_its_share_for_the_format(response: str, formed: bool) -> None:
    assert scoring.well_formed(response) is formed
    assert scoring.with_format(1.0, response) == (1.0 if formed else 0.8)
    assert scoring.with_format(0.0, response) == (0.2 if formed else 0.0)


def test_f1_is_over_words() -> None:
    assert scoring.f1("the river Danube", ["Danube"]) == pytest.approx(2 / 3)
    assert scoring.f1(None, ["Danube"]) == scoring.f1("Rhine", ["Danube"]) == scoring.f1(None, ["The The"]) == 0.0


def test_an_answer_of_articles_alone_equals_itself_and_one_of_marks_alone_equals_nothing() -> None:
    """SQuAD's normalisation leaves nothing of either, and then each of them equalled every other one, and silence."""
    assert scoring.f1("the the", ["The The"]) == scoring.exact_match("the the.", ["The The"]) == 1.0
    assert [scoring.exact_match(said, ["A", "!"]) for said in ("a", "(A)", "the", "", "!", "?")] == [1, 1, 0, 0, 0, 0]
    assert scoring.f1("the the", ["Danube"]) == scoring.f1("Danube", ["The The"]) == 0.0
    assert not scoring.contains("any passage", ["The The", "!"])
    assert scoring.contains("any passage", ["The The", "passage"])


# ------------------------------------------------------------------------------------------ episodes


async def test_the_expert_searches_answers_and_is_right(data: Path) -> None:
    for form in ("text", "tools"):
        session = await play(make(data, form=form), TASK, expert_policy)
        assert session.rewards["correct"] == session.rewards["searches"] == session.rewards["retrieved"] == 1.0
        assert session.status is Status.COMPLETED
    silent = await play(make(data), TASK, noop_policy)
    assert silent.reward == 0.0
    assert [m.text for m in silent.messages if m.role == "tool"] == [INVALID] * 4


async def test_a_search_is_answered_in_the_published_form_and_the_last_turns_is_not_run(data: Path) -> None:
    env = make(data, max_searches=1, topk=1)
    env.reset(TASK)
    search = Message(role="assistant", content="<think> x </think><search> danube vienna </search>")
    result = await env.step(search)
    doc = 'Doc 1(Title: "Rivers of Europe") the danube flows through vienna and budapest'
    assert result.continuation == f"\n\n<information>{doc}</information>\n\n"
    assert (await env.step(search)) == StepResult(terminated=True)


class Bytes(LetterTokenizer):
    """The letters' tokenizer, which has no slash: a brace stands for it."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("/", "}"))

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids).replace("}", "/")


TURNS = (
    "<think> i look it up <?think><search> danube <?search>",
    "<search> rhine <?search>",
    "<think> now i know <?think><answer> vienna <?answer>",
    "i am not sure",
    "<search> never closed",
    "",
)


class ScriptedEngine:
    """Samples one of `TURNS`, ended by its stop string or else by the end token, and remembers what it was given."""

    capabilities = Capabilities("scripted", 100_000, LetterTokenizer.vocab_size)

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        text = random.Random(sampling.seed).choice(TURNS).replace("?", "/")
        stopped: int | str = next((stop for stop in sampling.stop if text.endswith(stop)), END)
        ids = (*Bytes().encode(text), *([END] if stopped == END else []))
        self.seen.append((list(input_ids), list(ids)))
        logprobs = (-0.5,) * len(ids)
        yield Chunk(ids, logprobs, 0)
        yield Turn(ids, logprobs, (VersionSpan(0, 0, len(ids)),), FinishReason.STOP, stopped)


async def session_of(env: SearchR1, engine: Any, seed: int) -> Session:
    renderer: Any = LetterRenderer()
    renderer.tokenizer = Bytes()
    session = Session(f"s{seed}", TASK, seed=seed)
    talk = Conversation(session, TurnGenerator(renderer, engine), stop=env.stop_strings)
    player = Player(talk, ModelActor(Sampling(max_new_tokens=100)))
    return await run_episode(env, session, {"agent": player}, RolloutConfig())


@pytest.mark.slow
async def test_over_a_thousand_sessions_no_inserted_token_is_trained_and_paths_are_what_the_engine_saw(
    data: Path,
) -> None:
    inserted = copies = 0
    client: Any = InProcess(data)
    for seed in range(1000):
        engine, env = ScriptedEngine(), SearchR1(data=data)
        env.client = lambda: client  # type: ignore[method-assign]
        session = await session_of(env, engine, seed)
        assert session.status is Status.COMPLETED, session.error
        tree.check(session)
        sampled = [node for node in session.nodes if node.sampled]
        assert len(sampled) == len(engine.seen)
        for node, (sent, made) in zip(sampled, engine.seen, strict=True):
            start = node.versions[0].start
            assert [*tree.path_ids(session, node.parent), *node.token_ids[:start]] == sent
            assert node.token_ids[start:] == made
            assert node.trainable == [False] * start + [True] * len(made)
            behind = node.parent is not None and session.nodes[node.parent].message.role == "tool"
            assert (start == 0) is behind, "only the first turn has a generation prompt"
        for node in session.nodes:
            if not node.sampled:
                assert not any(node.trainable)
            if node.message.role == "tool":
                assert node.token_ids == Bytes().encode(node.message.text)
                inserted += 1
            copies += node.copy_of is not None
    assert inserted > 1000
    assert copies > 100, "turns that ended with an end token went on without it"


async def test_a_search_that_fails_is_the_infrastructures_fault_and_earns_nothing(data: Path) -> None:
    env = make(data, retriever="http://127.0.0.1:9", search_timeout=0.1)
    seed = next(n for n in range(100) if "search>" in first_turn(n))
    session = await session_of(env, ScriptedEngine(), seed)
    assert session.status is Status.INFRA_ERROR
    assert session.reward is None
    assert "RetrievalError" in str(session.error)
    tools = make(data, form="tools", retriever="http://127.0.0.1:9", search_timeout=0.1)
    with pytest.raises(InfraError):
        await play(tools, TASK, expert_policy)


def first_turn(seed: int) -> str:
    return random.Random(derive(seed, "sample", 0, "turn", 0)).choice(TURNS)


async def test_a_continuation_needs_stop_strings(data: Path) -> None:
    env = make(data)
    await calls.reset(env, TASK)
    env.stop_strings = ()
    with pytest.raises(EnvError, match="stop_strings"):
        await calls.step(env, Message(role="assistant", content="nothing"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retriever": "google"}, "env.retriever = 'google'"),
        ({"max_searches": 0}, "env.max_searches = 0"),
        ({"topk": -1}, "env.topk = -1"),
        ({"questions": "nowhere.jsonl"}, "env.questions"),
    ],
)
def test_a_wrong_setting_is_named(data: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SearchR1(data=data, **options)


def test_without_data_the_command_that_prepares_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="search-r1 prepare"):
        SearchR1(data=tmp_path).tasks()
    (tmp_path / "train.jsonl").write_text('{"question": "q"}')
    with pytest.raises(ConfigError, match="line 1"):
        SearchR1(data=tmp_path).tasks()


ROWS = [
    {
        "id": f"test_{number}",
        "question": f"who wrote book {number}",
        "golden_answers": [f"author {number}"],
        "data_source": source,
        "prompt": [{"role": "user", "content": "Answer the given question. …"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [f"author {number}"]}},
        "extra_info": {"index": number, "split": "test"},
    }
    for number, source in enumerate(published.SETS)
]


async def test_parquet_of_the_published_form_has_a_metric_for_each_of_the_seven_sets(tmp_path: Path) -> None:
    need(importlib.util.find_spec("pyarrow") is not None, "pyarrow, of the extra parquet")
    import pyarrow
    import pyarrow.parquet as parquet

    for name, rows in (("train", ROWS[:2]), ("test", ROWS)):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    for data in (tmp_path, tmp_path / "train.parquet"):
        env = SearchR1(data=data)
        assert [task["source"] for task in env.tasks("train")] == ["nq", "triviaqa"]
        assert [task["hops"] for task in env.tasks("eval")] == [1, 1, 1, 2, 2, 2, 2]
    assert SearchR1(data=tmp_path / "test.parquet").tasks("eval") == env.tasks("eval")
    task = env.tasks("eval")[4]
    assert (task.id, task["question"], task["answers"]) == ("2wikimultihopqa-test_4", "who wrote book 4?", ["author 4"])

    said = Message(role="assistant", content="<think> x </think><answer> Author 4 </answer>")
    session = await play(env, task, lambda env, messages: said)
    exact = {name: value for name, value in session.rewards.items() if name.startswith("exact_")}
    assert exact == {"exact_2wikimultihopqa": 1.0, "exact_more_hops": 1.0}


@pytest.mark.slow
def test_the_table_has_the_published_rows_and_dashes_for_sets_without_questions(tmp_path: Path) -> None:
    metrics = {"reward/exact_nq": 0.5, "reward/exact_bamboogle": 0.25}
    (result := tmp_path / "result.json").write_text(json.dumps({"metrics": metrics}))
    table = published.rows(metrics)
    assert {len(row) for row in table} == {8}
    assert table[-1] == ("this evaluation", "0.500", "-", "-", "-", "-", "-", "0.250")
    shown = CliRunner().invoke(app, ["search-r1", "compare", str(result)])
    lines = shown.output.splitlines()
    assert lines[-1].split() == ["this", "evaluation", "0.500", *"-----", "0.250"]
    assert len(lines) == len(table)
    assert sum(published.RESULTS["Qwen2.5-7B, PPO"]) / 7 == pytest.approx(0.431, abs=5e-4)  # the paper's averages
    assert sum(published.RESULTS["Qwen2.5-3B, GRPO"]) / 7 == pytest.approx(0.312, abs=5e-4)
