"""Several agents in one session: each sees only its own messages, and is credited by its own reward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agentrl.attachments import critic_view
from agentrl.config import AlgoConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env, reward
from agentrl.envs.episode import EXPERT, converse, play
from agentrl.envs.turns import Player
from agentrl.envs.wrappers import TurnLimit
from agentrl.errors import EnvError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.train.algorithms.returns import group_relative
from agentrl.types import MAIN, FinishReason, Group, Message, Node, Sampling, Session, Status, StepResult, Task, Turn
from agentrl.types import VersionSpan as Span


class Bids(Env):
    """Two bidders name a price, the second without having seen the first one's; the higher price wins."""

    agents = ("buyer", "rival")

    def __init__(self) -> None:
        self.prices: dict[str, int] = {}

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        return [{"prices": {"buyer": 3, "rival": 5}}]

    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        self.wanted = task["prices"]
        return {agent: f"{agent}, you have {price}" for agent, price in self.wanted.items()}

    def step(self, message: Message) -> StepResult:
        assert message.name is not None
        self.prices[message.name] = int(message.text)
        if len(self.prices) < len(self.wanted):
            return StepResult(reward=0.5)
        loser, winner = sorted(self.prices, key=self.prices.__getitem__)
        told = Message(role="user", content=f"{winner} won")
        return StepResult([told], terminated=True, others={self.agents[0]: [told]}, rewards={loser: -0.25})

    def expert(self, messages: Sequence[Message]) -> str:
        return messages[0].text.rpartition(" ")[2]

    @reward
    def won(self, session: Session) -> dict[str, float]:
        return {agent: float(price == max(self.prices.values())) for agent, price in self.prices.items()}

    @reward(weight=0.5)
    def both_bid(self, session: Session) -> float:
        return float(len(self.prices) == 2)


def texts(session: Session, agent: str) -> list[str]:
    return [node.message.text for node in session.nodes if node.agent == agent]


async def test_each_agent_has_paths_of_its_own_and_sees_what_is_sent_to_it_alone() -> None:
    session = await play(Bids(), Task(id="t", data={"prices": {"buyer": 3, "rival": 5}}))
    assert session.status is Status.COMPLETED
    assert texts(session, "buyer") == ["buyer, you have 3", "3", "rival won"]
    assert texts(session, "rival") == ["rival, you have 5", "5", "rival won"]
    assert [node.parent for node in session.nodes].count(None) == 2
    tree.check(session)


async def test_rewards_are_by_agent_where_they_are_given_so_and_everyones_where_not() -> None:
    session = await play(Bids(), Task(id="t", data={"prices": {"buyer": 3, "rival": 5}}))
    assert session.rewards == {"won/buyer": 0.0, "won/rival": 1.0, "both_bid": 1.0}
    assert session.agent_rewards == {"buyer": 0.5, "rival": 1.5}
    assert session.reward == 1.0
    assert [view.score for view in session.by_agent()] == [0.5 + 0.5 - 0.25, 1.5]
    assert session.score == pytest.approx((0.75 + 1.5) / 2)


async def test_rollouts_of_several_agents_are_stored_with_their_rewards_and_read_back_as_they_were() -> None:
    rollouts = Rollouts(Bids, Policy(NullRenderer()), RolloutConfig(), seed=5)
    tasks = [Task(id="t", data={"prices": {"buyer": 3, "rival": 5}})]
    (group,) = await rollouts.collect(tasks, EXPERT, phase="test", n=2)
    with Store(":memory:") as store:
        for session in group.sessions:
            store.save(session)
            assert store.load(session.id) == session


class Lost(Bids):
    def step(self, message: Message) -> StepResult:
        return StepResult(next="dealer")


class Unasked(Bids):
    def reset(self, task: Task, *, seed: int | None = None) -> dict[str, str]:
        return {"buyer": "you are alone"}

    def step(self, message: Message) -> StepResult:
        return StepResult(next="rival")


class Unnamed(Bids):
    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        return "welcome"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Lost, "Lost.step names the agent 'dealer'; agents: buyer, rival"),
        (Unasked, "Unasked.step: it is 'rival''s turn, which has no message to answer"),
        (Unnamed, "expected messages by agent (agents: buyer, rival)"),
    ],
)
async def test_an_environment_that_names_agents_wrongly_gets_an_error(env: type[Env], told: str) -> None:
    said = lambda env, messages: Message(role="assistant", content="1")  # noqa: E731
    with pytest.raises(EnvError) as caught:
        await play(env(), Task(id="t", data={"prices": {"buyer": 3}}), said)
    assert told in str(caught.value)


class Viewed(Bids):
    def critic_view(self, agent: str) -> list[float]:
        return [float(agent == "rival"), float(len(self.prices))]


class Watched:
    """Plays the expert, and notes what a turn of a model would have carried."""

    def __init__(self) -> None:
        self.views: dict[str, tuple[float, ...]] = {}

    async def act(self, conversation: Conversation, env: Env, turn: int, deadline: float) -> Node:
        attached = conversation.attached.get(critic_view.NAME)
        if attached is not None:
            self.views[conversation.agent] = critic_view.unpack(attached)
        return conversation.demonstrate(await calls.expert(env, conversation.messages))


@pytest.mark.parametrize("wrapped", [False, True])
async def test_turns_of_the_trained_policy_carry_what_the_environment_tells_a_critic(wrapped: bool) -> None:
    env = TurnLimit(Viewed(), turns=9) if wrapped else Viewed()
    session, actor = Session("s", Task(id="t", data={"prices": {"buyer": 3, "rival": 5}})), Watched()
    generator = TurnGenerator(NullRenderer(), None)
    players = {
        agent: Player(Conversation(session, generator, agent=agent), actor, rewarded=agent == "rival")
        for agent in env.agents
    }
    await converse(env, session, players, RolloutConfig())
    assert actor.views == {"rival": (1.0, 1.0)}  # the buyer is another policy's, and has had its turn


@pytest.mark.parametrize("views", [False, True])
async def test_an_environment_is_asked_for_a_critics_view_only_where_a_critic_reads_it(views: bool) -> None:
    asked: list[str] = []

    class Asked(Bids):
        def critic_view(self, agent: str) -> list[float]:
            asked.append(agent)
            return [0.0]

    rollouts = Rollouts(Asked, Policy(NullRenderer()), RolloutConfig(), seed=5, views=views)
    await rollouts.collect([Task(id="t", data={"prices": {"buyer": 3, "rival": 5}})], EXPERT, phase="test", n=1)
    assert asked == (["buyer", "rival"] if views else [])


async def test_a_view_that_is_no_finite_number_is_the_environments_fault() -> None:
    class Endless(Bids):
        def critic_view(self, agent: str) -> list[float]:
            return [float("inf")]

    with pytest.raises(EnvError, match=r"Endless.critic_view gave numbers that are not finite, or too large: inf"):
        await play(Endless(), Task(id="t", data={"prices": {"buyer": 3, "rival": 5}}))


def sampled(session: Session, agent: str, policy: str, *, trained: bool) -> None:
    root = tree.add(session, None, Message(role="user", content="go"), [1, 2], agent=agent)
    turn = Turn((3, 4), (-0.5, -0.5), (Span(0, 0, 2),), FinishReason.STOP)
    said = Message(role="assistant", content="x")
    tree.add_turn(session, root.id, [5], turn, Sampling(), said, agent=agent, policy=policy, trained=trained)


def group_of(*rewards: dict[str, float | None]) -> Group:
    sessions = []
    for number, each in enumerate(rewards):
        session = Session(f"s{number}", Task(id="t"), group="g", status=Status.COMPLETED, agent_rewards=each)
        sampled(session, "frozen", "opponent", trained=False)
        for agent in ("buyer", "seller"):
            sampled(session, agent, MAIN, trained=True)
        tree.check(session)
        sessions.append(session)
    return Group("g", Task(id="t"), sessions)


def test_credit_compares_an_agent_with_itself_in_other_sessions_and_trains_no_frozen_policy() -> None:
    group = group_of({"buyer": 1.0, "seller": 5.0}, {"buyer": 0.0, "seller": 7.0}, {"buyer": 0.5, "seller": None})
    credit = group_relative(group.by_agent(), AlgoConfig())
    advantages = {key: share.advantage for key, (share,) in credit.shares.items()}
    assert advantages == {
        ("s0/buyer", 1): 0.5,
        ("s1/buyer", 1): -0.5,
        ("s0/seller", 1): -1.0,
        ("s1/seller", 1): 1.0,
        ("s2/buyer", 1): 0.0,
    }  # the seller of s2 has no reward


def test_the_turns_of_a_policy_that_is_not_trained_are_stored_untrainable_with_its_name_and_version() -> None:
    (frozen,) = [node for node in group_of({"buyer": 1.0}).sessions[0].nodes if node.policy == "opponent"]
    assert (frozen.agent, frozen.trainable, frozen.versions) == ("frozen", [False] * 3, [Span(0, 1, 3)])


@pytest.mark.slow
def test_a_group_of_single_agents_is_its_own_view() -> None:
    group = Group("g", Task(id="t"), [Session("s", Task(id="t"), reward=1.0)])
    assert group.by_agent() == [group]
    assert group.by_agent()[0] is group
