"""A kernel user for each sandbox.

The kernel counts much by user and not by container: inotify instances, pipe and message-queue memory, pending signals,
descriptors in flight. Under one user, a sandbox that takes all of them leaves none to the others, which then fail
through no fault of theirs. Numbers need no account anywhere; they go round in a range that ordinary accounts don't
reach and that seven octal digits of an archive's header still hold. Each process begins somewhere else in it.
"""

from __future__ import annotations

import itertools
import secrets

from agentrl.tools.threads import in_forked_child

RANGE = range(1 << 20, 1 << 21)
REMAPPED = range(10_000, 60_000)
"""Where the daemon maps users (rootless, or userns-remap), and gives a container 65,536 of them."""
_numbers = itertools.count(secrets.randbelow(len(RANGE)))


@in_forked_child
def _begin_elsewhere() -> None:
    global _numbers
    _numbers = itertools.count(secrets.randbelow(len(RANGE)))


def own_user(remapped: bool = False) -> str:
    """A user that no other sandbox of this process has: uid:gid."""
    among = REMAPPED if remapped else RANGE
    number = among[next(_numbers) % len(among)]
    return f"{number}:{number}"


def is_own(user: str) -> bool:
    """Whether `own_user` may have said so."""
    uid, _, gid = user.partition(":")
    return uid == gid and uid.isdigit() and (int(uid) in RANGE or int(uid) in REMAPPED)
