"""Functions and classes of TRL, slime and verl, as they are: rewards, environments, agents; with the originals too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.envs import calls
from agentrl.envs.rewards import make_rewards
from agentrl.errors import ConfigError, UnknownName
from agentrl.models import tiny
from agentrl.rollout.episodes.agents import load_agent
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Node, Sampling, Session, Status, Task
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
        with pytest.raises(ConfigError) as raised:
            await value(kind, function, said("3", data), **more)
        assert words in str(raised.value)
    with pytest.raises(UnknownName, match=r"there is no 'shrt'.*did you mean 'short'"):
        make_rewards({"r": {"name": "trl", "function": f"{rewards}shrt"}})


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
    (tmp_path / "bare.py").write_text("class Bare:\n    def reset(self, **row):\n        pass\nclass No:\n    pass\n")
    for name, words in (
        ("Bare", "Bare has no get_reward: name functions in env.reward_funcs"),
        ("No", "no method reset"),
    ):
        with pytest.raises(ConfigError, match=words):
            agentrl.make(f"trl:{tmp_path / 'bare.py'}:{name}", path=ROWS)


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
