"""Joining a Ray cluster: whether one answers at an address, asked before, signals and an output that stay one's own.

`ray.init` takes no deadline: where nothing listens it tries again for a quarter of an hour, in C++ code that can't be
interrupted. So a process of its own joins first, and is killed at the deadline.
"""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ConfigError, brief

logger = logging.getLogger(__name__)
JOIN_SECONDS = 120.0
"""Seconds that joining may take; on a busy machine the import of Ray alone takes 15."""
CONNECT_SECONDS = 10.0
"""Seconds that a connection to a host may take."""
_JOIN = """
import logging, sys, ray
ray.init(sys.argv[1], include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
"""
_DIED = "A worker died or was killed"
_RAISED = re.compile(r"[\w.]*(Error|Exception): \S")
_REFUSED = re.compile(r"AuthToken|AuthenticationError|Unauthenticated")


def require_answer(address: str, timeout: float = JOIN_SECONDS) -> None:
    """Make sure that this machine can join the cluster.

    Args:
        address: `auto`, or host:port.
        timeout: seconds that it may take.

    Raises:
        ConfigError: it can't, or not in time; with what to check.
    """
    if found := re.fullmatch(r"\[?([^/]*?)\]?:(\d+)", address):
        host, port = found[1], int(found[2])
        try:
            socket.create_connection((host, port), min(timeout, CONNECT_SECONDS)).close()
        except (OSError, OverflowError) as error:
            raise _refusal(address, f"{host} does not accept connections on port {port}: {error}") from None
    try:
        done = subprocess.run([sys.executable, "-c", _JOIN, address], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _refusal(address, f"no answer within {timeout:g} s", str(error.stderr)) from None
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise _refusal(address, brief(last) or f"joining it ended with exit code {done.returncode}", done.stderr)


def say_briefly(message: Mapping[str, Any], *, ignore_prefix: bool = False) -> None:
    """Log a message of Ray's nodes in a line, in place of `print_to_stdstream` of Ray's, which prints a page of causes.

    Nothing is said of a process's death: whoever waits for its worker has an error with the worker's name.
    """
    for text in message["lines"]:
        if not text.startswith(_DIED):
            logger.warning("Ray: %s", in_a_line(text))


def in_a_line(error: object) -> str:
    """An error of Ray's in one line: what was raised in it, where something was, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return brief(raised[-1] if raised else lines[0])


def _refusal(address: str, reason: str, output: str = "") -> ConfigError:
    """The reason why a cluster can't be joined, given what the process that tried to has printed."""
    if _REFUSED.search(output):
        check = (
            "it requires a token: set RAY_AUTH_MODE=token, with the cluster's token in ~/.ray/auth_token of this "
            "machine (docs/cluster.md)"
        )
    else:
        check = (
            "check that `ray start --head` runs there, that this is its port (6379 by default), that this machine "
            "reaches it and has joined it (`ray start --address=…`)"
        )
    return ConfigError(f"cluster.address={address!r}: no Ray cluster can be joined there: {reason}; {check}")
