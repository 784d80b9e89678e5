"""Functions and classes of TRL, slime and verl, as they are: rewards, environments, agents; with the originals too."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.rewards import make_rewards
from agentrl.errors import ConfigError, InfraError, UnknownName
from agentrl.models import tiny
from agentrl.rollout.episodes.agents import load_agent
from agentrl.rollout.episodes.functions import SessionUrls
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Node, Sampling, Session, Status, Task, VersionSpan
from tests.conftest import need

ROOT = Path(__file__).parents[3]
MIGRATION = ROOT / "examples" / "migration"
PACKAGES = [ROOT / ".venv-verl", ROOT / ".venv-trl-functions"]
ROWS = str(MIGRATION / "rows.jsonl")
STOPS = [" ", "e", "a", "t"]
"""What ends the turns of a model that knows nothing."""


def said(text: str, row: dict[str, Any]) -> Session:
    """A session of one turn."""
    made = Session("s", Task(id="t", data=row), status=Status.COMPLETED)
    for place, (role, content) in enumerate((("user", "?"), ("assistant", text))):
        ids = list(range(len(content.split())))
        message = Message(role=role, content=content)  # type: ignore[arg-type]
        node = Node(place, place - 1 if place else None, message, ids, [bool(place)] * len(ids), [0.0] * len(ids))
        node.sampling = Sampling() if place else None
        made.nodes.append(node)
    return made


async def value(kind: str, function: str, session: Session, **more: Any) -> Any:
    (reward,) = make_rewards({"r": {"name": kind, "function": function, **more}})
    return await reward(session)


def trained(folder: Path, agent: str) -> Sequence[Session]:
    """The sessions of one step with an agent, on the examples' rows."""
    tiny.build(folder / "model", [tiny.render([{"role": "user", "content": f"How often is {n}?"}]) for n in range(60)])
    agentrl.train(
        "prompts",
        **{"env.path": ROWS, "agent": agent, "model": str(folder / "model"), "run_dir": str(folder / "run")},
        **{"steps": 1, "rollout.groups_per_step": 1, "rollout.group_size": 2, "rollout.turn_tokens": 24},
        **{"eval.tasks": 1, "warm_start.steps": 0, "weights.probe_tokens": 0, "weights.start_tokens": 0},
    )
    found = list(Store(folder / "run" / "sessions.db").sessions())
    assert len(found) >= 3
    return found


def one_path(session: Session) -> None:
    """Two turns were sampled, and the second request began with the first one's tokens."""
    (path,) = session.paths()
    assert [node.sampled for node in path] == [False, True, False, True]


async def test_a_reward_function_gets_its_rows_columns_and_gives_its_value_plain_or_async(tmp_path: Path) -> None:
    row = {"prompt": "?", "label": "3", "limit": 4, "data_source": "x", "reward_model": {"ground_truth": "3"}}
    rewards = f"{MIGRATION / 'rewards.py'}:"
    for text, short, right in (("3", 1.0, 1.0), ("It is 3.", 0.0, 1.0), ("4", 1.0, 0.0)):
        session = said(text, row)
        assert await value("trl", f"{rewards}short", session) == short
        assert await value("verl", f"{rewards}compute_score", session) == right
        assert await value("slime", f"{rewards}reward_func", session) == right
        assert session.info == {f"{rewards}compute_score": {"score": right, "length": len(text)}}
    own = tmp_path / "own.py"
    own.write_text(
        "async def later(completions, **kwargs):\n"
        "    return [None if completions[0][0]['content'] == 'no' else kwargs['bonus']]\n"
        "def two(completions, **kwargs):\n    return [1.0, 2.0]\n"
        "def other(prompts, answer):\n    return [1.0]\n"
        "async def keyed(args, sample, **kwargs):\n    return {'points': args.scale * len(sample.response)}\n"
    )
    talk = row | {"prompt": [{"role": "user", "content": "?"}]}
    assert await value("trl", f"{own}:later", said("no", talk), kwargs={"bonus": 2.0}) is None
    assert await value("trl", f"{own}:later", said("yes", talk), kwargs={"bonus": 2.0}) == 2.0
    assert await value("slime", f"{own}:keyed", said("yes", row), kwargs={"scale": 2}, reward_key="points") == 6.0
    wrong = [
        ("trl", f"{own}:two", row, "two returned [1.0, 2.0] for one completion"),
        ("trl", f"{own}:other", row, "other(prompts, answer): missing a required argument: 'answer'"),
        ("verl", f"{rewards}compute_score", {"prompt": "?"}, "has no 'reward_model.ground_truth'"),
        ("slime", f"{own}:keyed", row, "returned a mapping without 'score' (its keys: points)"),
    ]
    for kind, function, data, words in wrong:
        more = {"kwargs": {"scale": 1}} if kind == "slime" else {}
        with pytest.raises(InfraError if "returned" in words else ConfigError) as raised:  # that may be one answer's
            await value(kind, function, said("3", data), **more)
        assert words in str(raised.value)
    with pytest.raises(UnknownName, match=r"there is no 'shrt'.*did you mean 'short'"):
        make_rewards({"r": {"name": "trl", "function": f"{rewards}shrt"}})


def thought(row: dict[str, Any]) -> Session:
    """A session of one turn, whose renderer keeps reasoning apart, and whose tokens begin with a generation prompt."""
    made = said("yes", row)
    node = made.nodes[1]
    node.message = Message(role="assistant", content="yes", reasoning_content="hm")
    node.token_ids, node.trainable, node.logprobs = [7, 8, 9], [False, True, True], [0.0] * 3
    node.versions = [VersionSpan(0, 1, 3)]
    return made


ODD = """
import signal
import threading

import numpy

def spoil(prompts, completions, board, **kwargs):
    board[0].append("x")
    kwargs["more"].append("x")
    completions[0].clear()
    return [float(len(board[0]) == len(kwargs["more"]) == 1)]

def shown(prompts, completions, completion_ids, **kwargs):
    text = completions[0] if isinstance(completions[0], str) else completions[0][0]["content"]
    return [float(text == "<think>hm</think>yes" and completion_ids == [[8, 9]])]

def limited(completions, **kwargs):
    signal.signal(signal.SIGUSR2, signal.getsignal(signal.SIGUSR2))
    return [1.0]

def compute_score(data_source, solution_str, ground_truth, extra_info):
    ground_truth.append("x")
    return {"score": numpy.float32(len(ground_truth) == 1 and solution_str == "<think>hm</think>yes")}

async def sampled(args, sample):
    sample.prompt.append("x")
    tokens = (sample.tokens, sample.response_length) == ([0, 7, 8, 9], 2)
    return float(tokens and sample.response == "<think>hm</think>yes" and sample.status.value == args.end)

def plain(args, sample):
    return float(threading.current_thread() is not threading.main_thread() and getattr(args, "scale", 2.0) == 2.0)

async def reads(args, sample):
    return args.scale

async def short(sample):
    return 1.0

async def asks(args, sample):
    from slime.utils.http_utils import post

    return await post("http://127.0.0.1:9/judge", {})
"""


async def test_a_function_is_shown_what_its_framework_shows_and_spoils_nothing_for_the_next(tmp_path: Path) -> None:
    """Columns were the task's own lists, reasoning was left out, slime's tokens lacked the prompt's, and cut answers
    were complete."""
    (tmp_path / "odd.py").write_text(ODD)
    odd = f"{tmp_path / 'odd.py'}:"
    talk = [{"role": "user", "content": "?"}]
    session = thought({"prompt": talk, "board": [], "reward_model": {"ground_truth": []}})
    before, more = copy.deepcopy(session.task.data), {"more": list[str]()}
    (spoiling,) = make_rewards({"r": {"name": "trl", "function": f"{odd}spoil", "kwargs": more}})
    assert [await spoiling(session) for _ in range(2)] == [1.0, 1.0]
    assert [await value("trl", f"{odd}{name}", session) for name in ("shown", "limited")] == [1.0, 1.0]
    assert await value("trl", f"{odd}shown", thought({"prompt": "?"})) == 1.0
    assert await value("verl", f"{odd}compute_score", session) == 1.0
    for session.status, end in ((Status.COMPLETED, "completed"), (Status.TRUNCATED, "truncated")):
        assert await value("slime", f"{odd}sampled", session, kwargs={"end": end}) == 1.0
    assert session.task.data == before
    assert await value("slime", f"{odd}plain", session) == 1.0
    for name, words in (
        ("reads", "reads args.scale, which has no value here.* rewards.NAME.kwargs.scale=VALUE"),
        ("short", r"short\(sample\): too many positional arguments"),
        ("asks", "asked http://127.0.0.1:9/judge: only within agent=slime"),
    ):
        with pytest.raises(ConfigError, match=words):
            await value("slime", f"{odd}{name}", session)


AGENTS = """
from slime.utils.http_utils import post

async def done(args, sample, sampling_params):
    sample.prompt.append("x")
    return sample

async def reads(args, sample, sampling_params):
    return args.nothing

async def shows(args, sample, sampling_params):
    return await post("http://router/generate", {"text": "?", "image_data": ["x"]})

async def down(args, sample):
    raise OSError("the judge is down")
"""


async def test_a_failure_beside_a_generate_function_is_not_the_models(tmp_path: Path) -> None:
    """A reward function that failed made the session the agent's error, and images were left out in silence."""
    (tmp_path / "own.py").write_text(AGENTS)
    own, task = f"{tmp_path / 'own.py'}:", Task(id="t", data={"prompt": [{"role": "user", "content": "?"}]})
    for line, kind, words in (
        (f"done rm={own}down", InfraError, "rm raised OSError: the judge is down"),
        ("reads", ConfigError, "reads args.nothing, which has no value here: add nothing=VALUE behind the agent's"),
        ("shows", ConfigError, "sent image_data: allowed: text"),
    ):
        with pytest.raises(kind, match=words):
            await load_agent(f"slime:{own}{line}").run(task, SessionUrls.of("http://127.0.0.1:9", "s", "k"))
    assert task["prompt"] == [{"role": "user", "content": "?"}]


async def test_an_environment_of_trl_has_its_methods_as_tools_and_its_own_reward(tmp_path: Path) -> None:
    game = f"trl:{MIGRATION / 'word_game.py'}:WordGame"
    env = agentrl.make(game, path=ROWS, reward_funcs=[f"{MIGRATION / 'rewards.py'}:short"])
    assert env.tools.names == ["spell"]
    task = next(iter(env.tasks("train")))
    (opening,) = await calls.reset(env, task, seed=0)
    assert opening.text == f"{task['prompt']} Spell the answer with the tool."
    answers = [
        (await calls.step(env, env.call("spell", character=each))).messages[0].text for each in ("33", task["label"])
    ]
    assert answers == ["Error: give one character", task["label"]]
    session = said("done", dict(task.data))
    assert await calls.resolve(env.score(session)) == 2.0  # type: ignore[attr-defined]
    assert list(session.info["metrics"].values()) == [1.0, 1.0]
    (tmp_path / "bare.py").write_text(BARE)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "cells": []}\n')
    board = agentrl.make(f"trl:{tmp_path / 'bare.py'}:Board", path=str(tmp_path / "rows.jsonl"))
    (task,) = board.tasks("train")
    for _ in range(2):
        await calls.reset(board, task, seed=0)
        assert await calls.resolve(board.score(said("", dict(task.data)))) == 1.0  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"env.reward_funcs='math:pi' is 3.14\d*: allowed: a function"):
        agentrl.make(game, path=ROWS, reward_funcs=["math:pi"])
    for name, words in (
        ("Bare", "Bare has no get_reward: name functions in env.reward_funcs"),
        ("No", "no method reset"),
    ):
        with pytest.raises(ConfigError, match=words):
            agentrl.make(f"trl:{tmp_path / 'bare.py'}:{name}", path=ROWS)


BARE = """
import threading

class Bare:
    def reset(self, **row):
        pass

class No:
    pass

class Board:
    def reset(self, cells, **row):
        self.cells, self.thread = cells, threading.current_thread()
        cells.append("x")
    def get_reward(self):
        return float(len(self.cells) == 1 and self.thread is not threading.main_thread())
"""


def test_a_column_that_some_rows_lack_is_none_there_as_in_a_table(tmp_path: Path) -> None:
    """A function that names the column as an argument ended the run at the first such row."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "limit": 1}\n{"prompt": "b"}\n')
    env = agentrl.make("prompts", path=str(tmp_path / "rows.jsonl"))
    limits = {task["prompt"]: task["limit"] for split in ("train", "eval") for task in env.tasks(split)}
    assert limits == {"a": 1, "b": None}


def test_prompts_are_rows_and_a_row_without_one_is_named(tmp_path: Path) -> None:
    env = agentrl.make("prompts", path=ROWS)
    tasks = [*env.tasks("train"), *env.tasks("eval")]
    assert sorted(task["label"] for task in tasks) == ["2", "3", "3"]
    (tmp_path / "rows.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(ConfigError, match=r"row 1: no prompt \(env.prompt names its column; columns: question\)"):
        list(agentrl.make("prompts", path=str(tmp_path / "rows.jsonl")).tasks("train"))
    assert (
        agentrl.make("prompts", path=str(tmp_path / "rows.jsonl"), prompt="question").tasks("train")[0]["prompt"] == "?"
    )  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_generate_function_of_slime_is_trained_and_its_reward_function_scores_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        f"import sys\nsys.path.append({str(MIGRATION)!r})\nimport slime_generate\n"
        "async def generate(args, sample, sampling_params):\n"
        f"    return await slime_generate.generate(args, sample, {{**sampling_params, 'stop': {STOPS!r}}})\n"
    )
    agent = f"slime:{tmp_path / 'own.py'}:generate rm={MIGRATION / 'rewards.py'}:reward_func max_new_tokens=24"
    for session in trained(tmp_path, agent):
        assert session.reward in (0.0, 1.0)
        one_path(session)


def test_an_agents_line_that_is_wrong_is_refused_by_what_is_wrong() -> None:
    rewards = MIGRATION / "rewards.py"
    for line, words in (
        (f"slime:{rewards}:short", "allowed: an `async def`"),
        (f"slime:{rewards}:reward_func tokenizer", "'tokenizer' is no setting: allowed: NAME=VALUE"),
        (f"slime:{rewards}:nothing", "there is no 'nothing'"),
        (f"slime:{rewards}:reward_func max_new_tokens=0", "max_new_tokens=0: allowed: a whole number of tokens from 1"),
        (f"slime:{rewards}:reward_func x=[1", re.escape("x='[1': allowed: a value in YAML")),
        (f"slime:{rewards}:reward_func tokenizer=none", "tokenizer='none': there is no such folder"),
        (f"slime:{rewards}:reward_func apply_chat_template=true", "needs tokenizer=FOLDER"),
        (f"verl:{rewards}:short", "a loop needs a tokenizer"),
        (f"verl:{rewards}:short tokenizer=. config=none.yaml", "config='none.yaml': there is no such file"),
    ):
        with pytest.raises(ConfigError if "no '" not in words else UnknownName, match=words):
            load_agent(line)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_functions_and_classes_of_trl_and_verl_run_beside_their_libraries(tmp_path: Path) -> None:
    there = all((folder / "installed").exists() for folder in PACKAGES) and (PACKAGES[0] / "hydra").exists()
    need(there, "verl and TRL are not there: make .venv-verl/installed .venv-trl-functions/installed")
    command = [sys.executable, "-m", "tests.envs.adapters.originals", str(tmp_path), *map(str, PACKAGES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
