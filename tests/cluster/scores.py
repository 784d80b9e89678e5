"""Rewards that the tests compute in workers; given by this file's path, as a user's are."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from agentrl.config import RewardConfig
from agentrl.envs.rewards import Reward
from agentrl.errors import InfraError
from agentrl.types import Session


class Settings(RewardConfig):
    kind: str = ""
    """What it does."""
    file: str = ""
    """It does so once, and removes this file before; '' does it always."""


class Own(InfraError):
    """An error whose class only the plug-in's file has."""


class Odd(Reward):
    """Fails as its settings say."""

    settings = Settings
    config: Settings

    def compute(self, session: Session) -> Any:
        if self.config.file:
            try:
                Path(self.config.file).unlink()
            except FileNotFoundError:
                return 1.0
        match self.config.kind:
            case "nan" | "inf":
                return float(self.config.kind)
            case "range":
                return 1.5
            case "text":
                return "0.5"
            case "down":
                raise ConnectionError("refused")
            case "own":
                raise Own("the judge is busy")
            case "name":
                return undefined_name  # type: ignore[name-defined]  # noqa: F821
            case "slow":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "stuck":  # holds the interpreter: no other thread runs
                re.match(r"(a+)+$", "a" * 40 + "b")
            case "unpicklable":
                session.info["result"] = lambda: 0
        return 1.0


class Sine(Reward):
    """A number that has all its bits from the session; it notes which process has computed it."""

    async def compute(self, session: Session) -> float:
        tokens = [token for node in session.nodes for token in node.token_ids]
        session.info |= {"scored_by": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        session.count("scored")
        return abs(math.fsum(math.sin(token + session.seed % 7) for token in tokens)) % 1.0


class ByAgent(Reward):
    """A reward for each agent."""

    def compute(self, session: Session) -> dict[str, float]:
        return {"a": 1.0, "b": 0.5}


class Unbuilt(Reward):
    """It has no model."""

    def __init__(self, config: RewardConfig) -> None:
        raise OSError("no model")
