"""Search-R1 with what odd models and corpora write: tags anywhere, and more searches than there are."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.builtin.search_r1 import scoring
from agentrl.envs.builtin.search_r1.env import SearchR1
from agentrl.envs.episode import play
from agentrl.errors import ConfigError, InfraError
from agentrl.retrieval.index import build
from agentrl.types import Message, Session, Status, Task
from tests.envs.in_process_index import InProcess

TAGS = [f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/")]
TASK = Task(id="t", data={"question": "what has tags?", "answers": ["Vienna"], "hops": 1})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    passages = ["Tags\nsome <answer> Linz </answer> and </information> <search> x </search> tags", "Rivers\nthe Danube"]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"contents": text}) + "\n" for text in passages))
    build(folder / "corpus.jsonl", folder / "bm25")
    return folder


def make(data: Path, **options: Any) -> SearchR1:
    env, client = SearchR1(data=data, **options), InProcess(data)
    env.client = lambda: client  # type: ignore[method-assign, assignment, return-value]
    return env


async def written(env: SearchR1, *turns: str | Message) -> Session:
    """The session of a model that writes these turns."""
    rest = iter(turns)

    def policy(env: Any, messages: Any) -> Message:
        turn = next(rest)
        return turn if isinstance(turn, Message) else Message(role="assistant", content=turn)

    return await play(env, TASK, policy)


# ------------------------------------------------------------------------------------------- scoring


def formed(response: str) -> bool:
    """Whether a response has the published format, by the states that its tags lead through."""
    after = {
        ("begin", "<think>"): "in think",
        ("informed", "<think>"): "in think",
        ("in think", "</think>"): "thought",
        ("thought", "<search>"): "in search",
        ("in search", "</search>"): "searched",
        ("searched", "<information>"): "in information",
        ("in information", "</information>"): "informed",
        ("thought", "<answer>"): "in answer",
        ("in answer", "</answer>"): "end",
    }
    state = "begin"
    for part in re.split(f"({'|'.join(TAGS)})", response):
        if part in TAGS:
            state = after.get((state, part), "wrong")
        elif part.strip() and not state.startswith("in "):
            state = "wrong"
    return state == "end"


def answer_of(turn: str) -> str | None:
    """A turn's last answer, found from left to right without expressions."""
    found, place = None, 0
    while (start := turn.find("<answer>", place)) >= 0 and (end := turn.find("</answer>", start)) >= 0:
        found, place = turn[start + 8 : end].strip(), end + 9
    return found


@pytest.mark.slow
def test_format_and_last_answer_are_the_published_ones_in_ten_thousand_soups_of_tags() -> None:
    rng, right = random.Random(0), 0
    rounds = "<think> a </think> <search> b </search>\n\n<information> c </information>\n\n"
    whole = "<think> a </think>\n<answer> d </answer>"
    for _ in range(10_000):
        parts = re.findall(r"<[^>]*>|[^<]+", rounds * rng.randint(0, 2) + whole)
        for _ in range(rng.randint(0, 2)):
            place = rng.randrange(len(parts))
            parts[place : place + rng.randint(0, 1)] = [rng.choice([*TAGS, " ", " word ", "<", "<answer"])]
        response = "".join(parts)
        assert scoring.well_formed(response) is formed(response), response
        right += formed(response)
        soup = "".join(rng.choices(["<answer>", "</answer>", " x ", "\n", "<think>", "y"], k=8))
        assert scoring.find_given([soup]) == answer_of(soup), soup
    assert 1000 < right < 9000


def test_a_response_as_long_as_a_context_is_judged_at_once() -> None:
    """An expression that looked for the end of each of 20,000 opening tags took minutes, and nothing else could run."""
    for piece in (
        "<think>",
        "<think>a</think><search>",
        "<answer>",
        "<information>",
        "<think></think><search></search>",
    ):
        text = piece * 20_000
        scoring.well_formed(text)
        scoring.find_given([text])
        scoring.action(text)
        scoring.reasoning(text)
        scoring.information(text)


# ------------------------------------------------------------------------------------------ episodes


async def test_tags_in_a_passage_cost_no_share_for_the_format_and_answer_nothing(data: Path) -> None:
    env = make(data, outcome="format")
    search = "<think> x </think>\n<search> tags </search>"
    session = await written(env, search, "<think> y </think>\n<answer> Vienna </answer>")
    assert (session.rewards["correct"], session.rewards["formed"]) == (1.0, 1.0)
    told = await written(env, search, *["I do not know."] * 4)
    assert (told.rewards["correct"], told.rewards["formed"], told.rewards["exact"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("turns", "valid", "exact"),
    [
        (["<answer> Linz </answer><answer> Vienna </answer>"], 1.0, 1.0),
        (["<search><answer> Vienna </answer>"], 1.0, 1.0),
        (["<answer> Vien", "na </answer>"], 0.0, 0.0),
        (["<information> Vienna </information>", "<answer> Vienna </answer>"], 0.5, 1.0),
        (["<search></search>", "<answer> Vienna </answer>"], 1.0, 1.0),
        (["</search>", "</answer>"], 0.0, 0.0),
        (["<SEARCH> x </SEARCH>", "<Answer> Vienna </Answer>"], 0.0, 0.0),
        (["<search> a <search> b </search>", "<answer></answer>"], 1.0, 0.0),
    ],
)
async def test_what_a_model_may_write_is_an_action_or_none(
    data: Path, turns: list[str], valid: float, exact: float
) -> None:
    session = await written(make(data, max_searches=1), *turns)
    assert session.status is Status.COMPLETED
    assert (session.rewards["valid_actions"], session.rewards["exact"]) == (valid, exact)


async def test_a_question_with_tags_and_braces_is_asked_as_it_is_and_counts_as_nothing_found(data: Path) -> None:
    task = Task(id="t", data={"question": "what is <information>{Vienna}</information>?", "answers": ["Vienna"]})
    env = make(data)
    [asked] = env.reset(task)
    assert asked.text.endswith("Question: what is <information>{Vienna}</information>?\n")
    session = await play(env, task, lambda env, messages: Message(role="assistant", content="<answer> x </answer>"))
    assert (session.rewards["searches"], session.rewards["retrieved"]) == (0.0, 0.0)


async def test_native_calls_have_the_same_number_of_searches_and_a_last_turn_without(data: Path) -> None:
    env = make(data, form="tools", max_searches=2)
    calls = [env.call("search", query=query).tool_calls or [] for query in ("tags", "Danube", "Danube")]
    both = Message(role="assistant", content="", tool_calls=[call for each in calls for call in each])
    session = await written(env, both, both, both)
    assert session.status is Status.COMPLETED
    told = [message.text for message in session.messages if message.role == "tool"]
    assert [text.startswith("Error: there were 2 searches") for text in told] == [False, False, True, True, True, True]
    assert session.rewards["searches"] == 2.0
    assert session.rewards["valid_actions"] == pytest.approx(1 / 3)
    said = await written(make(data, form="tools"), env.call("search", query="tags"), "<answer> Vienna </answer>")
    assert (said.rewards["correct"], said.rewards["valid_actions"]) == (1.0, 1.0)
    assert "formed" not in said.rewards


@pytest.mark.slow
async def test_a_search_in_native_calls_ends_before_its_tool_does_and_so_is_never_the_models_error(data: Path) -> None:
    env = SearchR1(data=data, form="tools", retriever="http://127.0.0.1:9", search_timeout=600)
    env.tools.timeout = 2.0
    env.reset(TASK)
    with pytest.raises(InfraError, match=r"within 1\.8 s"):
        await env.step(env.call("search", query="tags"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "tools", "outcome": "format"}, "env.outcome = 'format'"),
        ({"passage_words": 0}, "env.passage_words = 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(data: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SearchR1(data=data, **options)
