r"""A reward that an HTTP service gives, for any environment.

    agentrl train env=calculator rewards.judge=examples/plugins/reward_service.py:Service \
        rewards.judge.url=http://127.0.0.1:9000/score rewards.judge.weight=0.5

The service is given {"task": …, "messages": […]} of the finished session and answers {"score": number from 0 to 1}.
A failed call is repeated after a pause, within the reward's `timeout`. A service that is down is not the model's fault:
the session ends as INFRA_ERROR, is generated again, and is never trained on with a reward of 0.
"""

from __future__ import annotations

import asyncio

import httpx
from pydantic import NonNegativeFloat, PositiveInt

from agentrl.plugins.reward import InfraError, Reward, RewardConfig, Session


class ServiceConfig(RewardConfig):
    """Where the service is, and how often it is called."""

    url: str
    """Where sessions are posted to."""
    attempts: PositiveInt = 3
    """Calls in all before the session ends as INFRA_ERROR."""
    pause: NonNegativeFloat = 0.5
    """Seconds before the second call; they double with each further one."""


class Service(Reward):
    """What the service answers."""

    settings = ServiceConfig
    config: ServiceConfig

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config)
        self._client = httpx.AsyncClient(timeout=config.timeout, trust_env=False)

    async def compute(self, session: Session) -> float:
        """The service's score."""
        messages = [node.message.model_dump(exclude_none=True) for node in session.nodes]
        body = {"task": session.task.data, "messages": messages}
        problem = ""
        for attempt in range(self.config.attempts):
            if attempt:
                await asyncio.sleep(self.config.pause * 2 ** (attempt - 1))
            try:
                answer = await self._client.post(self.config.url, json=body)
                answer.raise_for_status()
                return float(answer.json()["score"])
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise InfraError(f"the reward service {self.config.url} failed {self.config.attempts} times: {problem}")

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()
