"""Tasks of inspect_ai against the library's own evaluation of the same turns."""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import eval_async
from inspect_ai._eval.loader import load_tasks
from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import value_to_float
from inspect_ai.solver._task_state import sample_state
from inspect_ai.tool import ToolCall as TheirCall

import agentrl
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.envs.episode import NO_DEADLINES, ScriptedActor, play, run_episode
from agentrl.envs.registry import factory
from agentrl.envs.turns import Player
from agentrl.errors import ConfigError, EnvError
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import FunctionCall, Message, Node, Session, Status, Task, ToolCall, VersionSpan

os.environ["INSPECT_DISPLAY"] = "none"
FILE = Path(__file__).with_name("inspect_tasks.py")
RIGHT, WRONG, UNKNOWN = ("add", {"a": 2, "b": 3}), ("add", {"c": 1}), ("subtract", {})


def turns(name: str, number: int) -> list[str | tuple[str, dict[str, Any]]]:
    """What a random agent says for a sample, in order: answers, calls right and wrong, critiques and grades."""
    rng = random.Random(number)
    answers: list[Any] = [str(rng.randrange(12)) for _ in range(4)]
    wanted = rng.choices([RIGHT, WRONG, UNKNOWN], k=rng.randrange(4))
    if name == "reacting":
        return [*wanted, "Let me think.", *(("submit", {"answer": answer}) for answer in answers)]
    if name == "graded":
        return [answers[0], f"It is so. GRADE: {rng.choice('CIP')}"]
    return [*wanted, *answers] if name == "tools" else answers


def ours(said: str | tuple[str, dict[str, Any]]) -> Message:
    if isinstance(said, str):
        return Message(role="assistant", content=said)
    name, arguments = said
    text = str(arguments).replace("'", '"')
    return Message(role="assistant", tool_calls=[ToolCall(id="c", function=FunctionCall(name=name, arguments=text))])


def theirs(said: str | tuple[str, dict[str, Any]]) -> ModelOutput:
    calls_ = None if isinstance(said, str) else [TheirCall("c", *said)]
    message = ChatMessageAssistant(content=said if isinstance(said, str) else "", tool_calls=calls_)
    return ModelOutput(model="m", choices=[ChatCompletionChoice(message=message)], usage=ModelUsage())


async def evaluated(name: str, folder: Path) -> dict[Any, Any]:
    """The library's own evaluation, by sample."""
    said: dict[Any, Any] = {}

    def answer(*_: Any) -> ModelOutput:
        state = sample_state()
        assert state is not None
        return theirs(next(said.setdefault(state.sample_id, iter(turns(name, int(state.sample_id))))))

    (task,) = load_tasks([f"{FILE}@{name}"])
    model = get_model("mockllm/direct", memoize=False, custom_outputs=answer)
    (log,) = await eval_async(task, model=model, log_dir=str(folder))
    assert log.status == "success", log.error
    return {sample.id: sample for sample in log.samples or ()}


def texts(messages: Sequence[Any]) -> list[tuple[str, str]]:
    found = []
    for message in messages:
        error = getattr(message, "error", None)
        text = message.text if error is None else error.message
        found.append((message.role, text))
    return found


@pytest.mark.parametrize("name", ["single", "tools", "several", "reacting", "limited", "critical", "graded"])
async def test_episodes_have_the_messages_and_scores_of_the_librarys_evaluation(name: str, tmp_path: Path) -> None:
    make = factory(f"inspect:{FILE}@{name}")
    direct = await evaluated(name, tmp_path)
    number = value_to_float()

    async def one(place: int, task: Any) -> None:
        said = iter(turns(name, place))
        session = await play(make(), task, lambda env, messages: ours(next(said)))
        sample = direct[place]
        assert session.status is Status.COMPLETED, session.error
        expected = {
            f"{scorer}.{key}" if key else scorer: number(value)
            for scorer, score in sample.scores.items()
            for key, value in (score.value.items() if isinstance(score.value, dict) else [("", score.value)])
        }
        expected = {scorer: value for scorer, value in expected.items() if not math.isnan(value)}
        assert session.info["scores"] == expected
        assert session.score == (None if "graded" in name and len(expected) < 2 else next(iter(expected.values())))
        paths = sum(node.parent is None for node in session.nodes)
        again = name == "reacting" and paths == 2  # after a wrong submission the library writes it into the turn before
        assert again or paths == {"critical": 3, "graded": 2}.get(name, 1)
        if paths == 1:
            said_ours = [(node.message.role, node.message.text) for node in session.nodes]
            said_theirs = texts(sample.messages)
            if name == "reacting":  # which writes what was submitted into the agent's last message
                said_ours, said_theirs = [
                    [each for each in said if each[0] != "assistant"] for said in (said_ours, said_theirs)
                ]
            assert said_ours == said_theirs

    tasks = list(calls.tasks(make(), "eval"))
    assert len(tasks) == len(direct)
    await asyncio.gather(*(one(place, task) for place, task in enumerate(tasks)))


async def test_an_episode_that_a_limit_cuts_off_is_scored_as_it_is() -> None:
    env = agentrl.make(f"inspect:{FILE}@several", scorer="lengths.messages")
    session = Session(id="cut", task=next(calls.tasks(env, "eval")), seed=0)
    policy = ScriptedActor(lambda env, messages: Message(role="assistant", content="0"))
    player = Player(Conversation(session, TurnGenerator(NullRenderer(), None)), policy)
    limits = RolloutConfig(**{**NO_DEADLINES.model_dump(), "max_turns": 2})
    await run_episode(env, session, {"agent": player}, limits)
    assert session.status is Status.TRUNCATED
    assert session.info["scores"]["includes"] == 1.0
    assert session.score == 5.0, "two turns, and three messages that ask"


@dataclass(frozen=True)
class Counted(ScriptedActor):
    """Says always the same, as an engine that sampled ten tokens, or as a provider that counted them."""

    provider: bool = False

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        node = await super().act(conversation, env, turn, deadline)
        if self.provider:
            conversation.session.count("prompt_tokens", 20)
            conversation.session.count("completion_tokens", 10)
        else:
            node.token_ids, node.versions = [7] * 14, [VersionSpan(0, 4, 14)]
        return node


@pytest.mark.parametrize("provider", [False, True])
@pytest.mark.parametrize(("limit", "turns", "score"), [(1000, 3, 1.0), (40, 2, 1.0), (13, 1, 0.0)])
async def test_the_tasks_token_limit_holds_for_what_the_run_or_a_provider_counts(
    limit: int, turns: int, score: float, provider: bool
) -> None:
    """Turns of ten tokens, with twenty of a provider's in each prompt, or of the run's own 4, 18 and 32."""
    env = agentrl.make(f"inspect:{FILE}@spending", limit=limit)
    session = Session(id="spent", task=next(calls.tasks(env, "eval")), seed=0)
    policy = Counted(lambda env, messages: Message(role="assistant", content="0"), provider)
    player = Player(Conversation(session, TurnGenerator(NullRenderer(), None)), policy)
    await run_episode(env, session, {"agent": player}, NO_DEADLINES)
    assert (session.status, session.turns) == (Status.COMPLETED, turns)
    assert session.score == score, "the turn that exceeds a limit is lost to the library"


async def test_a_task_runs_in_its_librarys_sandbox_where_that_is_allowed() -> None:
    env = agentrl.make(f"inspect:{FILE}@sandboxed", isolated=False)

    def policy(env: Env, messages: Sequence[Message]) -> Message:
        command = "echo $((0 + 0)) > sum.txt; pwd"
        return ours(("shell", {"command": command})) if len(messages) == 1 else ours("Done.")

    session = await play(env, next(calls.tasks(env, "eval")), policy)
    assert (session.status, session.reward) == (Status.COMPLETED, 1.0)
    (told,) = [node.message.text.strip() for node in session.nodes if node.message.role == "tool"]
    assert not (Path(told) / "sum.txt").exists(), "the sandbox's folder goes with its sample"
    assert (await play(env, next(calls.tasks(env, "eval")), lambda env, messages: ours("Done."))).reward == 0.0


def test_a_sandbox_that_can_not_be_started_is_named() -> None:
    """Such as Docker's where its engine is older than the library wants."""
    with pytest.raises(EnvError, match=r"evaluation has ended: .*there is no engine"):
        agentrl.make(f"inspect:{FILE}@elsewhere")


async def test_a_sample_that_the_scorer_leaves_out_has_no_reward() -> None:
    """The library counts it in no metric; its NaN, and its absence, ended the run."""
    session = await play(
        agentrl.make(f"inspect:{FILE}@undecided"),
        Task(id="sample-0", data={"place": 0}),
        lambda env, messages: Message(role="assistant", content="0"),
    )
    assert (session.status, session.reward) == (Status.COMPLETED, None)
    assert session.info["scores"] == {}


async def test_a_call_that_cant_be_read_is_answered_and_the_tools_are_shown() -> None:
    env = agentrl.make(f"inspect:{FILE}@tools")
    (schema,) = env.tools.schemas()
    assert set(schema["function"]["parameters"]["properties"]) == {"a", "b"}
    await calls.reset(env, next(calls.tasks(env, "eval")))
    for arguments, answer in (
        ('{"a": 1', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("[" * 5000, "nests too deeply"),
        ('{"a": 1, "b": 1}', "2"),
    ):
        call = ToolCall(id="c", function=FunctionCall(name="add", arguments=arguments))
        result = await calls.step(env, Message(role="assistant", tool_calls=[call]))
        assert answer in result.messages[0].text
    await calls.close(env)


async def test_a_solver_that_rewrites_the_conversation_begins_a_new_path() -> None:
    """Critiques, graded answers and histories that were cut can't go on with the tokens that there are."""
    env = agentrl.make(f"inspect:{FILE}@forgetful")
    session = await play(
        env, next(calls.tasks(env, "eval")), lambda env, messages: Message(role="assistant", content="0")
    )
    assert [node.message.text for node in session.nodes] == ["What is 0 + 0?", "0", "Once more: what is it?", "0"]
    assert [node.parent for node in session.nodes] == [None, 0, None, 2]
    assert session.reward == 1.0


async def test_a_session_that_is_cut_off_before_the_agent_could_grade_itself_is_not_right() -> None:
    env = agentrl.make(f"inspect:{FILE}@graded")
    said = lambda env, messages: Message(role="assistant", content="0")  # noqa: E731
    session = await play(env, next(calls.tasks(env, "eval")), said, max_turns=1)
    assert (session.status, session.reward) == (Status.TRUNCATED, 0.0)
    right = agentrl.make(f"inspect:{FILE}@graded", scorer="includes", grader="strict/any")
    session = await play(right, next(calls.tasks(right, "eval")), said, max_turns=1)
    assert (session.status, session.reward) == (Status.COMPLETED, 1.0), "another model grades"


async def test_a_solver_that_fails_is_named() -> None:
    env = agentrl.make(f"inspect:{FILE}@broken")
    with pytest.raises(EnvError, match=r"sample 0 failed: .*the solver is broken"):
        await play(env, next(calls.tasks(env, "eval")), lambda env, messages: Message(role="assistant", content="x"))


def test_the_contract_holds_and_mistakes_are_named() -> None:
    assert agentrl.check_env(f"inspect:{FILE}@tools", tasks=2, scored=8) == []
    for source, words in (
        (f"{FILE}@sandboxed", "the task's sandbox is `local`.*env.isolated=false"),
        (f"{FILE}@unscored", "no scorer"),
        (f"{FILE}@nothing", "nothing"),
        (str(FILE), "is a file: allowed: a task of it"),
        ("no_such_package/task", "no_such_package"),
    ):
        with pytest.raises(ConfigError, match=words):
            agentrl.make(f"inspect:{source}")
