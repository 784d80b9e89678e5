"""A user id for each sandbox.

The kernel limits many resources per user and not per container: inotify instances, pipe and message-queue memory,
pending signals, descriptors in flight. Under one user, a sandbox that takes all of them would make the others fail. The
ids need no account; they are cycled through in a range above those of ordinary accounts that fits into seven octal
digits of an archive's header. Each process begins at a random position in it.
"""

from __future__ import annotations

import itertools
import secrets

from agentrl.tools.threads import in_forked_child

RANGE = range(1 << 20, 1 << 21)
REMAPPED = range(10_000, 60_000)
"""Ids where the daemon maps users (rootless, or userns-remap), which gives a container 65,536 of them."""
_numbers = itertools.count(secrets.randbelow(len(RANGE)))


@in_forked_child
def _begin_elsewhere() -> None:
    global _numbers
    _numbers = itertools.count(secrets.randbelow(len(RANGE)))


def own_user(remapped: bool = False) -> str:
    """A user that no other sandbox of this process has, as uid:gid."""
    ids = REMAPPED if remapped else RANGE
    number = ids[next(_numbers) % len(ids)]
    return f"{number}:{number}"


def is_own(user: str) -> bool:
    """Return whether a user may come from `own_user`."""
    uid, _, gid = user.partition(":")
    return uid == gid and uid.isdigit() and (int(uid) in RANGE or int(uid) in REMAPPED)
