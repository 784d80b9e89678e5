"""Every failure has a type of its own, a standard-library parent, and a `blame`: user, agent or infrastructure.

    AgentRLError
    ├── ConfigError         (ValueError)        a setting is wrong or contradicts another
    │   └── NewerFormat                         a later agentrl wrote what was to be read
    ├── UnknownName         (LookupError)       no environment, model, algorithm … of that name
    ├── MissingExtra        (ImportError)       an optional dependency is not installed
    ├── Diverged            (RuntimeError)      a rerun differs from the run that it repeats
    ├── NoSignal            (RuntimeError)      no token that a run samples is trained
    ├── InvalidInput        (ValueError)        a value handed to a public function is wrong
    │   ├── InvalidWeights                      a model's files don't hold the weights of its configuration
    │   ├── TreeError                           an edit would break the session tree's invariants
    │   └── RenderError                         messages that the model's format cannot express
    │       └── UnlistedTools                   tools on offer that it does not show
    ├── TokenBudgetExceeded (RuntimeError)      a token budget is used up: the session ends TRUNCATED
    ├── EnvError            (RuntimeError)      the environment's own code failed
    │   ├── InvalidMessage                      its model can't be shown a message: its session does not count
    │   ├── InvalidNumber                       what it gave is no finite number: its session does not count
    │   │   └── InvalidReward                   a reward is none, or out of its range
    │   └── StateUnsupported (NotImplementedError) it can't save, restore or fork its episode
    ├── AgentError          (RuntimeError)      the model or the user's agent program failed
    │   ├── ToolError                           a tool refused; the model gets the reason
    │   │   ├── UnknownTool     (LookupError)
    │   │   ├── ToolArguments   (ValueError)
    │   │   └── ToolTimeout     (TimeoutError)
    │   └── SessionClosed                       a request for a session that is closed
    └── InfraError          (RuntimeError)      our own failure: retried, never a reward of 0
        ├── EngineError
        ├── TrainerError                        the trainer's processes died or don't answer
        ├── WorkerLost                          a worker of a pool died during a call
        │   └── WorkerTimeout                   it did not answer in time, and was ended
        ├── Unproven                            what was to be trained lacks a proof of where it comes from
        ├── SandboxError
        ├── RetrievalError                      no proper answer from a retrieval server
        ├── StoreError          (OSError)
        ├── OutputError         (OSError)           a command's output can't be written
        │   └── OutputClosed                        nothing reads it any more
        └── DeadlineExceeded    (TimeoutError)  a wait ran past its deadline

`blame` decides how a session ends: AGENT makes it AGENT_ERROR, INFRA makes it INFRA_ERROR, USER stops
the run, because no retry can help. All of them survive pickling, since they cross process borders.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Blame(StrEnum):
    """The cause of a failure."""

    USER = "user"
    AGENT = "agent"
    INFRA = "infra"


class AgentRLError(Exception):
    """The root of every error that agentrl raises on purpose.

    Subclasses keep to one positional message, so that pickling needs no help.
    """

    blame: Blame = Blame.USER


class ConfigError(AgentRLError, ValueError):
    """A setting is unknown, has the wrong type, or contradicts another."""


class UntrustedCode(ConfigError):
    """A record names a plug-in by an import path, and reading the record must not run it."""


class NewerFormat(ConfigError):
    """A later agentrl wrote a run, a checkpoint or a store, in a format that this one does not know."""


class UnknownName(AgentRLError, LookupError):
    """A name that is not registered; build it with `unknown_name`, which lists what is."""


class MissingExtra(AgentRLError, ImportError):
    """An optional part is not installed; build it with `missing_extra`, which says how to get it."""


class Diverged(AgentRLError, RuntimeError):
    """A rerun generated or computed something else than the run that it repeats."""


class NoSignal(AgentRLError, RuntimeError):
    """A run has nothing to learn from: no token that it samples is trained."""

    blame = Blame.AGENT


class InvalidInput(AgentRLError, ValueError):
    """A value handed to a public function is wrong."""


class InvalidWeights(InvalidInput):
    """A model's files don't hold the weights that its configuration describes."""


class TreeError(InvalidInput):
    """An edit would break an invariant of the session tree."""


class RenderError(InvalidInput):
    """Messages that the model's conversation format cannot express."""


class UnlistedTools(RenderError):
    """Tools are on offer that the model's conversation format does not show to it."""


class TokenBudgetExceeded(AgentRLError, RuntimeError):
    """A token budget is used up; not a failure: the session ends TRUNCATED."""


class EnvError(AgentRLError, RuntimeError):
    """The environment's own code failed, or broke its contract."""


class InvalidNumber(EnvError):
    """An environment gave no finite number: its session is not trained on, and not played again."""

    blame = Blame.INFRA


class InvalidMessage(EnvError):
    """An environment's message has a broken image, or no place in the model's format: its session ends untrained."""

    blame = Blame.INFRA


class InvalidReward(InvalidNumber):
    """A reward that is no finite number in its range."""


class StateUnsupported(EnvError, NotImplementedError):
    """The environment can't save, restore or fork an episode, never or not at this point."""


class AgentError(AgentRLError, RuntimeError):
    """The model, or the user's agent program, failed."""

    blame = Blame.AGENT


class ToolError(AgentError):
    """A tool call failed in a way whose message the model gets as the answer."""


class UnknownTool(ToolError, LookupError):
    """The model called a tool that does not exist."""


class ToolArguments(ToolError, ValueError):
    """The model called a tool with arguments that do not fit its schema."""


class ToolTimeout(ToolError, TimeoutError):
    """A tool took longer than its time limit."""


class SessionClosed(AgentError):
    """A request came for a session that is already closed."""


class InfraError(AgentRLError, RuntimeError):
    """The infrastructure failed, not the model."""

    blame = Blame.INFRA


class EngineError(InfraError):
    """An engine died, refused or gave invalid output."""


class TrainerError(InfraError):
    """The trainer's processes died, failed or do not answer; another trainer can go on from a checkpoint."""


class Unproven(InfraError):
    """The run's record does not prove where something comes from that was to be trained on."""


class SandboxError(InfraError):
    """A sandbox, or the daemon that runs it, failed."""


class RetrievalError(InfraError):
    """A retrieval server is down, too slow, or answered with something else than passages."""


class StoreError(InfraError, OSError):
    """The session store could not read or write."""


class OutputError(InfraError, OSError):
    """A command's output can't be written, as on a full disk."""


class OutputClosed(OutputError):
    """Nothing reads a command's output any more: `agentrl envs | head -1`."""


class DeadlineExceeded(InfraError, TimeoutError):
    """A wait ran past its deadline."""


class WorkerLost(InfraError):
    """A worker died, or can't be reached, while it was called; another one takes the next call."""


class WorkerTimeout(WorkerLost, DeadlineExceeded):
    """A worker did not answer a call in time, and was ended."""


class TrainerTimeout(TrainerError, DeadlineExceeded):
    """The trainer's processes did not answer in time."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None where none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Ask in a message whether the known name most like `name` was meant; '' where none is close."""
    guess = nearest(name, known)
    return f"; did you mean {guess!r}?" if guess else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """An UnknownName that says what exists and which of it was probably meant."""
    names = sorted(known)
    return UnknownName(f"unknown {kind} {name!r}{suggest(name, names)} (known: {', '.join(names) or 'none'})")


def missing_extra(package: str, extra: str) -> MissingExtra:
    """A MissingExtra that names the extra which brings `package`.

    A package that is there is missing where its import was broken off: Python raises ModuleNotFoundError then, too.
    """
    if _is_installed(package):
        why = f"{package!r} is there, and was not loaded to its end, as after Ctrl-C: begin again, or install it anew"
        return MissingExtra(f"{why}: {install_command(extra)}")
    return MissingExtra(f"{package!r} is not installed; it comes with the extra {extra!r}: {install_command(extra)}")


@contextmanager
def require_extra(extra: str, package: str = "") -> Iterator[None]:
    """Raise `missing_extra` where an import within the block fails.

    Args:
        extra: what brings the package.
        package: by the name that it is installed by; "": the module that was not found, and no other ImportError.
    """
    try:
        yield
    except ImportError as error:
        if not package and not isinstance(error, ModuleNotFoundError):
            raise
        raise missing_extra(package or error.name or extra, extra) from error


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return "." not in package and find_spec(package) is not None
    except (ImportError, ValueError):  # it is kept from being found
        return False


def install_command(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install 'agentrl-platform[{extra}]'"


_CAUSE = re.compile(r"\b[A-Z]\w*(Error|Exception)\b")
_CAUSES = 3


def brief(text: object, width: int = 240) -> str:
    """Return an error's text in a few lines that are safe to print, whoever wrote it.

    The first line stays, and of the others the last few that name an error (a traceback's or a log's), or else the
    last ones. Lines are cut at `width`; what is not printable (a terminal's escape sequences) becomes `?`.
    """
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    lines = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
    rest = list(dict.fromkeys(lines[1:]))
    kept = lines[:1] + ([line for line in rest if _CAUSE.search(line)] or rest)[-_CAUSES:]
    return "\n  ".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in kept)
