"""Environments of an OpenEnv server, run by the library's own Python: python openenv_server.py KIND PORT SESSIONS."""

import random
import sys

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guess a number from 0 to 9."""

    number: int


class Word(Action):
    """Say a word."""

    word: str


class Seen(Observation):
    """What is said of a guess."""

    text: str = ""


class Guessing(Environment):
    """Guess the number that the seed decides; each wrong guess costs 0.1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, low=0, **kwargs):
        self.number, self.taken = random.Random(seed).randrange(low, 10), 0
        return Seen(text=f"A number from {low} to 9.")

    def step(self, action, timeout_s=None, **kwargs):
        said = action.number if isinstance(action, Guess) else int(action.word)
        if said > 9:
            raise ValueError("no number from 0 to 9")
        self.taken += 1
        if said == self.number:
            return Seen(text="Yes.", reward=1.0, done=True)
        return Seen(text="Higher." if said < self.number else "Lower.", reward=-0.1)

    @property
    def state(self):
        return State(step_count=self.taken)


kind, port, sessions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = create_fastapi_app(Guessing, Word if kind == "text" else Guess, Seen, max_concurrent_envs=sessions)
uvicorn.run(app, port=port, log_level="warning")
