"""A message that the model's format has no place for costs its own session, wherever in the episode it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import agentrl
from agentrl.config import RolloutConfig
from agentrl.envs import calls
from agentrl.envs.episode import EXPERT
from agentrl.errors import InfraError, UnlistedTools
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.stream.health import sessions_of, with_retries
from agentrl.sessions.renderers.base import ToolSchema
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.renderers.proof.markers import REFUSES_TOOLS
from agentrl.sessions.renderers.turns import text_of
from agentrl.types import Group, Message, Node, Session, Status, StepResult, Task

PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


class TextOnly(NullRenderer):
    """A format that has no place for images."""

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] = (), after: Node | None = None
    ) -> list[list[int]]:
        for message in messages:
            text_of(message, "text-only")
        return super().render(messages, tools=tools, after=after)


class Painter(agentrl.Env):
    """Shows a picture where its task says: at the opening, as an answer, in a sub-agent, never."""

    max_turns = 3

    def tasks(self, split: str = "train") -> list[dict[str, str]]:
        return [{"where": where} for where in ("nowhere", "reset", "step", "spawn")]

    def reset(self, task: Task, *, seed: int | None = None) -> Any:
        self.where = task["where"]
        return self._say("reset")

    def _say(self, place: str) -> Any:
        shown = agentrl.image(PICTURE) if self.where == place else "a text"
        return [{"role": "user", "content": [shown, "What is it?"]}]

    @agentrl.tool
    async def ask(self) -> str:
        """Ask somebody else."""
        return await self.spawn(self._say("spawn"), tools=[], max_turns=1, name="helper")

    def step(self, message: Message) -> StepResult | Any:
        return super().step(message) if message.tool_calls else StepResult(self._say("step"))

    def expert(self, messages: list[Message]) -> str | Message:
        return self.call("ask") if self.where == "spawn" and len(messages) == 1 else "done"

    @agentrl.reward
    def right(self, session: Session) -> float:
        return 1.0


async def played(renderer: NullRenderer, *places: str) -> list[Group]:
    rollouts = Rollouts(Painter, Policy(renderer), RolloutConfig(retries=0), seed=5)
    tasks = [task for task in calls.tasks(Painter()) if task["where"] in places]
    return await rollouts.collect(tasks, EXPERT, phase="eval", n=1)


async def test_a_message_without_a_place_in_the_format_ends_its_session_alone() -> None:
    """One row of a data set with a picture ended a run of a model that reads texts, after however many steps."""
    sessions = sessions_of(await played(TextOnly(), "nowhere", "reset", "step", "spawn"))
    ends = [(session.task["where"], session.status) for session in sessions]
    lost = Status.INFRA_ERROR
    assert ends == [("nowhere", Status.TRUNCATED), ("reset", lost), ("step", lost), ("spawn", lost)]
    for session in sessions[1:]:
        assert "can't be written for the model: content of the user message holds 'image_url'" in (session.error or "")


async def test_messages_that_never_have_a_place_end_the_run_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.rollout.stream.health.RETRY_SECONDS", 0.0)
    with pytest.raises(InfraError, match=r"all 2 sessions failed .*; text-only takes text only"):
        await with_retries(lambda: played(TextOnly(), "reset", "step"), "step 1", print)


async def test_tools_that_the_format_does_not_list_end_the_run_at_once() -> None:
    """They are the same for each session: a setting has to change."""
    renderer = TextOnly()
    setattr(renderer, REFUSES_TOOLS, "the template does not list tools")
    with pytest.raises(UnlistedTools, match="does not list tools"):
        await played(renderer, "nowhere")
