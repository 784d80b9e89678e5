"""GSM8K: real problems, an expert that works them out, and numbers compared as numbers."""

from __future__ import annotations

import http.server
import importlib.util
import io
import json
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.builtin.gsm8k import calculations, final_number
from agentrl.envs.check import check_env
from agentrl.envs.data.hub import dataset_file
from agentrl.envs.episode import play
from agentrl.envs.registry import make
from agentrl.errors import ConfigError, EnvError
from agentrl.train.driver.setup import complete
from agentrl.types import Message, Task
from tests.conftest import need

ROWS = [
    {
        "question": f"Ann has {n} eggs and buys twice as many. How many?",
        "answer": f"She buys {n}*2=<<{n}*2={2 * n}>>{2 * n}."
        f"\nIn all {n}+{2 * n}=<<{n}+{2 * n}={3 * n}>>{3 * n}.\n#### {3 * n:,}",
    }
    for n in range(400, 500)
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 72\n#### 72", 72),
        ("#### $1,234,567.50 in all", Fraction("1234567.5")),
        ("first #### 3 then #### 4 of 5", 4),
        ("She has 12 eggs, then 7", 7),
        ("-3.50", Fraction("-3.5")),
        ("costs .5", Fraction(1, 2)),
        ("It is 7.", 7),
        ("1,2 and 3", 3),
        ("12,345", 12345),
        ("#### none", None),
        ("", None),
        ("9" * 41, None),
    ],
)
def test_the_final_number_is_found(text: str, number: Fraction | None):
    assert final_number(text) == number


def test_only_what_can_be_worked_out_becomes_a_call():
    assert calculations("<<48/2=24>> <<a+b=3>> <<5=5>> <<10*.5=5>> <<>> <<1/0=0>>") == ["48/2", "5", "10*.5"]


async def test_the_expert_calculates_what_is_annotated_and_gives_the_worked_answer(file: Path):
    env = make("gsm8k", path=str(file))
    task = Task(id="t", data=ROWS[0])
    session = await play(env, task)
    assert [m.role for m in session.messages] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    assert [m.text for m in session.messages if m.role == "tool"] == ["800", "1200"]
    assert session.answer == "She buys 400*2=800.\nIn all 400+800=1200.\n#### 1,200"
    assert session.rewards == {"correct": 1.0}


async def test_an_answer_is_compared_as_a_number(file: Path):
    for said, reward in (("#### 1200.00", 1), ("I get 1,200", 1), ("#### 1201", 0), ("", 0)):
        answer = Message(role="assistant", content=said)
        session = await play(make("gsm8k", path=file), Task(id="t", data=ROWS[0]), lambda env, messages, a=answer: a)
        assert session.reward == reward


@pytest.mark.slow
async def test_without_tools_examples_stand_before_the_question_and_the_form_is_a_small_reward_of_its_own(file: Path):
    def env() -> Env:
        return make("gsm8k", path=file, tools=False, shots=2, reward_form=True)

    assert not len(env().tools)
    opening = await calls.reset(env(), Task(id="t", data=ROWS[0]))
    assert [m.role for m in opening] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "calculator" not in opening[0].text
    assert all(shot.text not in {row["question"] for row in ROWS} for shot in opening[:-1])
    expected = [
        ("It is 1200.\n#### 1,200", {"correct": 1.0, "form": 1.0}),
        ("It is 9.\n#### 9", {"correct": 0.0, "form": 1.0}),
        ("#### 9", {"correct": 0.0, "form": 0.0}),
        ("It is 1200", {"correct": 1.0, "form": 0.0}),
        ("a #### 9\nand #### 1200", {"correct": 1.0, "form": 0.0}),
        ("It is 9.\n#### 9 and more", {"correct": 0.0, "form": 0.0}),
    ]
    for said, rewards in expected:
        answer = Message(role="assistant", content=said)
        session = await play(env(), Task(id="t", data=ROWS[0]), lambda env, messages, a=answer: a)
        assert session.rewards == rewards
        assert session.reward == pytest.approx(rewards["correct"] + 0.1 * rewards["form"])
    assert (await play(env(), Task(id="t", data=ROWS[0]))).rewards == {"correct": 1.0, "form": 1.0}
    assert check_env("gsm8k", path=str(file), tools=False, shots=2, reward_form=True, scored=8) == []


@pytest.mark.parametrize(("options", "words"), [({"shots": 3}, "allowed is 0 to 2"), ({"shots": 1}, "env.tools=false")])
def test_examples_that_there_are_not_are_refused(file: Path, options: dict[str, int], words: str):
    with pytest.raises(ConfigError, match=words):
        make("gsm8k", path=str(file), **options)


def test_the_recipe_of_a_small_model_gives_it_a_start_and_the_users_own_words_stand(file: Path):
    config = complete({"env": {"name": "gsm8k", "path": str(file), "shots": 1}, "model": "smollm2-135m"})
    wanted = {"path": str(file), "tools": False, "shots": 1, "reward_form": True}
    assert config.env.kwargs == wanted
    assert complete({"env": "gsm8k", "model": "some/other"}).env.kwargs == {}


def test_one_file_serves_both_splits_by_the_question_alone(file: Path, tmp_path: Path):
    def questions(path: Path, split: str) -> set[str]:
        return {task["question"] for task in make("gsm8k", path=str(path)).tasks(split)}

    train, held = questions(file, "train"), questions(file, "eval")
    assert not train & held
    assert len(train | held) == 100
    assert 2 <= len(held) <= 25
    shuffled = tmp_path / "half.jsonl"
    shuffled.write_text("".join(json.dumps(row) + "\n" for row in ROWS[::-2]))
    assert questions(shuffled, "eval") <= held
    assert questions(shuffled, "train") <= train


def test_an_eval_file_of_its_own_leaves_the_other_whole(file: Path, tmp_path: Path):
    other = tmp_path / "eval.jsonl"
    other.write_text(json.dumps(ROWS[0]) + "\n")
    env = make("gsm8k", path=str(file), eval_path=str(other))
    assert (len(env.tasks("train")), len(env.tasks("eval"))) == (100, 1)
    with pytest.raises(ConfigError, match=r"without env\.path"):
        make("gsm8k", eval_path=str(other))


@pytest.mark.slow
def test_it_passes_the_check(file: Path):
    assert check_env("gsm8k", path=str(file), scored=8) == []


@pytest.mark.slow
def test_the_real_problems_pass_the_check_and_all_are_solved_by_their_annotations(shared_data: Path):
    path = str(shared_data / "gsm8k_train_2000.jsonl")
    assert check_env("gsm8k", path=path, tasks=6, scored=8) == []
    tasks = [task for split in ("train", "eval") for task in make("gsm8k", path=path).tasks(split)]
    assert len(tasks) == 2000
    assert sum(len(calculations(task["answer"])) for task in tasks) > 6000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not a JSON object"),
        ("3", "line 2: not a JSON object"),
        ('{"question": "a"}', "line 2: .*answer"),
        ('{"question": 3, "answer": "#### 3"}', "line 2: question and answer must be text"),
        ('{"question": "a", "answer": "none"}', "line 2: .*hold a number"),
        ('{"question": "a", "answer": "14 March 2020"}', "line 2: .*not '14 March 2020'; env=questions"),
        ('{"question": "a", "answer": "It was then.\\n#### 2020-03-14"}', "line 2: .*not '2020-03-14'"),
        ('{"question": "a", "answer": "#### 1/2"}', "line 2: .*not '1/2'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=words):
        list(calls.tasks(make("gsm8k", path=str(path))))


@pytest.mark.parametrize("answer", ["4", "$4", "-1,200.50", "so #### 4%", "#### 12 dollars", "#### $1,000\n"])
def test_a_number_is_an_answer_with_its_sign_of_money_and_its_unit(tmp_path: Path, answer: str):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "a", "answer": answer}) + "\n")
    (task,) = calls.tasks(make("gsm8k", path=str(path), eval_path=str(path)))
    assert final_number(task["answer"]) is not None


def test_a_missing_or_empty_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"env\.path = '/': it is a folder: name a file"):
        make("gsm8k", path="/")
    with pytest.raises(ConfigError, match=r"env\.path = '/no/such': there is no such file"):
        make("gsm8k", path="/no/such")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ConfigError, match="holds no problems"):
        list(calls.tasks(make("gsm8k", path=str(empty))))


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """A hub of our own on this machine: its address, and the paths that were asked for."""
    need(importlib.util.find_spec("pyarrow") is not None, "pyarrow, of the extra parquet")
    import pyarrow
    import pyarrow.parquet as parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), buffer)
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path.startswith("/datasets/openai/gsm8k/resolve/main/main/")
            body = buffer.getvalue() if known else b"broken" if "broken" in self.path else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_without_a_file_the_hubs_is_fetched_once(
    hub: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agentrl.envs.data.hub.CACHE", tmp_path)
    env = make("gsm8k", endpoint=hub[0])
    assert [task["question"] for task in env.tasks("train")] == [row["question"] for row in ROWS]
    assert (
        len(make("gsm8k", endpoint=hub[0]).tasks("train")) == len(make("gsm8k", endpoint=hub[0]).tasks("eval")) == 100
    )
    assert len(hub[1]) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".jsonl"]


@pytest.mark.slow
def test_a_hub_without_the_file_or_out_of_reach_is_named(hub: tuple[str, list[str]], tmp_path: Path):
    with pytest.raises(EnvError, match="answered 404; give a local file"):
        dataset_file("no/such", "a.parquet", endpoint=hub[0], cache=tmp_path)
    with pytest.raises(EnvError, match="not a readable Parquet file"):
        dataset_file("is/broken", "a.parquet", endpoint=hub[0], cache=tmp_path)
    with pytest.raises(EnvError, match="can't be fetched"):
        dataset_file("no/such", "a.parquet", endpoint="http://127.0.0.1:1", cache=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
