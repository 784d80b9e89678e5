"""Policies beside the trained one: functions, the expert and APIs play agents, and nothing of theirs is trained."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config import RunConfig
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import play
from agentrl.errors import AgentRLError, ConfigError, EnvError
from agentrl.overrides import fields, parse_words, validate
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.opponents import check_partner, open_partners
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.workers.held import usage
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.types import MAIN, Message, Node, Session, Status, StepResult, Task

pytestmark = pytest.mark.slow


class Relay(Env):
    """A scout names a number, and a runner has to repeat it; both are a team."""

    agents = ("scout", "runner")
    teams: Mapping[str, tuple[str, ...]] = {"pair": ("scout", "runner")}

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        return [{"number": 7}]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        self.number, self.named = task["number"], ""
        return {"scout": f"It is {self.number}.", "runner": "Which number?"}

    def step(self, message: Message) -> StepResult:
        if message.name == "scout":
            return StepResult(others={"runner": [Message(role="user", content=message.text)]})
        self.named = message.text
        return StepResult(terminated=True)

    def expert(self, messages: Any) -> str:
        return str(self.number)

    @reward
    def found(self, session: Session) -> dict[str, float]:
        return {"pair": float(self.named == str(self.number))}

    @reward(weight=0.5)
    def short(self, session: Session) -> dict[str, float]:
        return {"runner": float(len(self.named) < 3)}


class Scout:
    """What plays the scout in the model's place: it acts, and is no script, which would play everybody."""

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        return conversation.demonstrate(Message(role="assistant", content="7"))


@pytest.fixture
def api() -> Iterator[str]:
    """An OpenAI-compatible server on this machine, whose model repeats the last message."""

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": body["messages"][-1]["content"]}
            used = {"prompt_tokens": 20, "completion_tokens": 1}
            data = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": used}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def configured(*words: str) -> RunConfig:
    return validate(parse_words(["env=unused", "agents.runner=other", *words]), RunConfig)


async def played(*words: str) -> Session:
    """A session in which the policy `other` of the settings plays the runner."""
    own, folder = configured(*words), Path("unused")
    main = own.learners[MAIN]
    async with open_partners(own.policies, own.agents, main, own.rollout, 0, folder, folder) as partners:
        rollouts = Rollouts(Relay, Policy(NullRenderer()), own.rollout, 0, partners)
        (group,) = await rollouts.collect([Task(id="t", data={"number": 7})], Scout(), phase="train", n=1)
    return group.sessions[0]


def rules(tmp_path: Path, body: str) -> str:
    file = tmp_path / "rules.py"
    file.write_text(body)
    return f"{file}:answer"


async def test_a_function_plays_an_agent_by_what_that_agent_was_sent(tmp_path: Path) -> None:
    session = await played(f"policies.other={rules(tmp_path, 'def answer(env, messages): return messages[-1].text')}")
    assert [(node.agent, node.message.text) for node in session.nodes if node.message.role == "assistant"] == [
        ("scout", "7"),
        ("runner", "7"),
    ]
    assert (session.status, session.reward) == (Status.COMPLETED, 1.0)
    assert session.agent_rewards == {"scout": 1.0}
    assert session.partner_rewards == {"runner": 1.5}
    assert {view.nodes[0].agent for view in session.by_agent()} == {"scout"}


async def test_the_environments_expert_and_an_agent_that_says_nothing_play_by_name() -> None:
    assert (await played("policies.other=expert")).reward == 1.0
    assert (await played("policies.other=demonstrator")).reward == 1.0
    assert (await played("policies.other=noop")).reward == 0.0


async def test_an_api_plays_an_agent_and_its_tokens_are_counted_apart_from_the_policys(api: str) -> None:
    session = await played(f"policies.other={api}", "policies.other.api.model=echo")
    assert session.reward == 1.0
    assert session.counters["other/prompt_tokens"] == 20
    assert usage([session]).prompt == 0
    assert not any(any(node.trainable) for node in session.nodes if node.agent == "runner")


def test_a_model_behind_an_api_is_evaluated_with_other_policies_beside_it(api: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy": api, "api": {"model": "echo"}, "agents": {"scout": "other"}}
    result = agentrl.evaluate(Relay, **settings, policies={"other": "expert"}, run_dir=str(tmp_path / "a"))
    assert (result.mean, result.tasks) == (1.5, 1)
    silent = agentrl.evaluate(Relay, **settings, policies={"other": "noop"}, run_dir=str(tmp_path / "b"))
    assert silent.mean == 0.5
    with pytest.raises(ConfigError, match=r"policies\.other\.model=start: policy=http.* has no weights to start from"):
        agentrl.evaluate(Relay, **settings, policies={"other": {"model": "start"}}, run_dir=str(tmp_path / "c"))
    with pytest.raises(ConfigError, match=r"policies\.other is for models, and policy=expert is a script"):
        agentrl.evaluate(Relay, policy="expert", agents={"scout": "other"}, policies={"other": "noop"})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def answer(env, messages): return 1 / 0", "raised ZeroDivisionError"),
        ("def answer(env, messages): return {'role': 'user', 'content': 'x'}", "returned a message of role 'user'"),
        ("def answer(env, messages): return 5", "raised ValidationError"),
    ],
)
async def test_a_function_that_fails_stops_the_run_with_the_setting_that_names_it(
    tmp_path: Path, body: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=r"policies\.other='.*rules\.py:answer' ") as caught:
        await played(f"policies.other={rules(tmp_path, body)}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["policies.other=rules.py:missing"], "policies.other='rules.py:missing'"),
        (["policies.other=expect"], "unknown kind of policy (policies.other) 'expect'; did you mean 'expert'?"),
        (["policies.other=http://localhost:1"], "needs policies.other.api.model=NAME"),
        (
            [
                "policies.other=https://example.invalid",
                "policies.other.api.model=x",
                "policies.other.api.key_env=NO_KEY",
            ],
            "NO_KEY, or policies.other.api.key_env",
        ),
        (["policies.other=expert"], "policies.other=expert: Silent has no expert"),
        (["policies.other=demonstrator"], "policies.other=demonstrator: Silent has no demonstrator"),
    ],
)
def test_a_policy_that_can_not_play_is_refused_before_the_run(words: list[str], told: str) -> None:
    class Silent(Relay):
        expert = Env.expert

    with pytest.raises(AgentRLError) as caught:
        check_partner("other", configured(*words).policies["other"], Silent())
    assert told in str(caught.value)


def test_settings_that_a_policy_does_not_use_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"policies\.other: api\.\* is of no use to a policy that is 'noop'"):
        configured("policies.other=noop", "policies.other.api.model=x")


def test_a_policys_name_is_listed_beside_its_settings() -> None:
    names = [name for name, _, _ in fields()]
    assert names.index("policies.NAME") < names.index("policies.NAME.temperature")


async def test_a_teams_reward_is_that_of_each_of_its_members() -> None:
    session = await play(Relay(), Task(id="t", data={"number": 7}))
    assert session.rewards == {"found/pair": 1.0, "short/runner": 1.0}
    assert session.agent_rewards == {"scout": 1.0, "runner": 1.5}


async def test_a_team_with_a_member_that_the_environment_does_not_have_is_named() -> None:
    class Wrong(Relay):
        teams: Mapping[str, tuple[str, ...]] = {"pair": ("scout", "dealer")}

    with pytest.raises(EnvError, match=r"Wrong\.teams\['pair'\] names the agent 'dealer'"):
        await play(Wrong(), Task(id="t", data={"number": 7}))
