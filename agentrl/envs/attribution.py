"""Blame for a failed call of an environment.

Whatever an environment's own code raises becomes an EnvError that says which method of which class it was, with the
original as its cause; connections that fail and resources that are used up (`foreign_errors`) become an InfraError, and
our named errors pass as they are. So an episode runner has three outcomes to tell apart (the model's fault, the
environment's, the infrastructure's) and never an anonymous exception.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType

from pydantic import ValidationError

from agentrl.common.foreign_errors import is_foreign, is_infrastructure, text_of, words
from agentrl.envs.base import Env
from agentrl.errors import AgentRLError, EnvError, InfraError

watch: ContextVar[Callable[[Env, str], AbstractContextManager[None]] | None] = ContextVar("watch", default=None)
"""Entered around every call of an environment's method, with the method's name, where it is set: `check_env` does."""


class blamed(AbstractContextManager[None]):
    """The block is a call of an environment's method: what it raises gets a name that says whose fault it is.

    Raises:
        EnvError: in place of everything that is no `AgentRLError`.
        InfraError: in place of what says by its kind that the infrastructure failed.
    """

    def __init__(self, env: Env, method: str) -> None:
        self._env, self._method = env, method

    def __enter__(self) -> None:
        watching = watch.get()
        self._watched = None if watching is None else watching(self._env, self._method)
        if self._watched is not None:
            self._watched.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watched is not None:
            self._watched.__exit__(kind, error, trace)
        if error is None or isinstance(error, AgentRLError) or not is_foreign(error):
            return
        where = f"{type(self._env.unwrapped).__name__}.{self._method}"
        if isinstance(error, ValidationError):
            problems = "; ".join(
                ": ".join([*filter(None, [".".join(map(str, e["loc"]))]), e["msg"]]) for e in error.errors()
            )
            what = "task" if self._method in ("tasks", "brief", "fixtures") else "message"
            raise EnvError(f"{where} gave something that is not a {what}: {problems}") from error
        if isinstance(error, NotImplementedError):
            raise EnvError(text_of(error) or f"{where} is not implemented") from error
        fault = InfraError if is_infrastructure(error) else EnvError
        raise fault(f"{where} raised {words(error)}") from error  # exit() would end the run
