"""Exceptions of other people's code: which of them are the infrastructure's, and what they say.

An environment's code raises what the libraries below it raise. A connection that breaks and a full disk say nothing
about the model or the code, so such exceptions are told apart by their kind alone. Libraries are recognised by the
names of their classes, so that none of them is imported for it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from agentrl.common.untrusted import safe_text

RESOURCES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Error numbers of a machine that has no more of something, or whose disk fails."""
DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Error numbers of a disk that is full, read-only or fails, and of a limit to a file's size (`ulimit -f`)."""
UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})
"""Error numbers of a file that may not be used, or is a folder, or lies in what is none."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
NETWORK = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT})
"""Error numbers of a network that does not connect."""
CONNECTIONS = frozenset(
    {
        ("httpx", "TransportError"),
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("aiohttp", "ClientConnectionError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
        ("socket", "gaierror"),
    }
)
"""The package and the class of libraries' transport errors; their subclasses count as well."""
NOT_SENT = frozenset({("httpx", "UnsupportedProtocol"), ("httpx", "LocalProtocolError")})
"""Those of them that an address or a request is wrong for: the code's own."""
TIMEOUTS = frozenset(
    {("httpx", "TimeoutException"), ("openai", "APITimeoutError"), ("anthropic", "APITimeoutError")}
    | {("requests", "Timeout"), ("urllib3", "TimeoutError")}
)
"""Libraries' classes of time-outs."""

GROUPED = 3
"""Exceptions of a group that its text names."""


def is_foreign(error: BaseException) -> bool:
    """Return whether other people's code has failed with it: every exception, exit(), a panic of a Rust library.

    False for what must pass: Ctrl-C, the end of a generator, and a cancellation of the task that awaits the code. One
    that the code has made itself would be taken for that.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return False
    import asyncio  # a third of the modules that a wrong word needs

    if not isinstance(error, asyncio.CancelledError):
        return True
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop, hence nobody who has cancelled anything
        return True
    return task is None or not task.cancelling()


def is_infrastructure(error: BaseException, *, own_deadlines: bool = False) -> bool:
    """Return whether an exception says that a connection, an answer in time or a resource of the machine was missing.

    Args:
        error: what was raised; a group counts where each of its exceptions does.
        own_deadlines: a TimeoutError without an error number may be a deadline that the code has set for itself, as in
            `asyncio.timeout`, and does not count.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_infrastructure(each, own_deadlines=own_deadlines) for each in error.exceptions)
    if isinstance(error, ConnectionError) or is_transport(error):
        return True
    if isinstance(error, TimeoutError) and error.errno is None:
        return not own_deadlines
    return isinstance(error, OSError) and error.errno in RESOURCES | NETWORK


def disk_failure(error: BaseException) -> OSError | None:
    """Return the error of a disk that can't be written, or of a file that may not be used; None where it is another.

    Libraries in Rust, such as safetensors, have classes of their own for it, and its number in the text.
    """
    if isinstance(error, OSError):
        is_denied = error.errno in UNUSABLE and error.filename is not None  # a port may be, too
        return error if is_denied or error.errno in DISK else None
    number = int(found[1]) if (found := OS_ERROR.search(text_of(error))) else 0
    return OSError(number, os.strerror(number)) if number in DISK else None


def port_advice(error: Exception) -> str:
    """Return what to do where a port can't be listened at, to end its error with; nothing unless it is taken."""
    return "; port=0 takes a free one" if getattr(error, "errno", None) == errno.EADDRINUSE else ""


def is_transport(error: BaseException) -> bool:
    """Return whether it is a library's error of its transport: no connection, a broken one, no answer in time."""
    names = set(_names(error))
    if isinstance(error, OSError) and isinstance(reason := getattr(error, "reason", None), BaseException):  # urllib's
        return isinstance(reason, ConnectionError | TimeoutError) or is_transport(reason)
    return bool(names & CONNECTIONS) and not names & NOT_SENT


def is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether an exception is of one of these kinds.

    ConnectionError stands for libraries' transport errors and for networks that don't connect as well, and TimeoutError
    for libraries' time-outs. A group counts where each of its exceptions does.
    """
    if isinstance(error, kinds):
        return True
    if isinstance(error, BaseExceptionGroup):
        return all(is_one_of(each, kinds) for each in error.exceptions)
    if any(issubclass(TimeoutError, kind) for kind in kinds) and TIMEOUTS & set(_names(error)):
        return True
    if not any(issubclass(ConnectionError, kind) for kind in kinds):
        return False
    return is_transport(error) or (isinstance(error, OSError) and error.errno in NETWORK)


def words(error: BaseException) -> str:
    """The exception's class and what it says, whatever its own methods do; of a group also what is in it."""
    text = text_of(error)
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(map(words, error.exceptions[:GROUPED]))}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return an exception's text, or say that its `__str__` fails."""
    try:
        return safe_text(str(error))
    except (Exception, SystemExit) as failed:
        return f"its __str__ raised {type(failed).__name__}"


def _names(error: BaseException) -> Iterator[tuple[str, str]]:
    for kind in type(error).__mro__:
        yield str(kind.__module__).partition(".")[0], kind.__name__
