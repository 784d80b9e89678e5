"""Decoding rows that begin alike, so that attention reads their common keys and values once.

The samples of a group share their prompt, and prompts of agents are long: at 800 tokens of prompt and 8 samples,
seven eighths of what a decoding step would read from memory is the same. Only prompts are looked at, by the hashes
of their blocks that the prefix store needs anyway, and equal hashes are believed only after a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agentrl.rollout.engines.local.arena import BLOCK
from agentrl.rollout.engines.local.flat import BLOCK as KEYS
from agentrl.rollout.engines.local.parts import Shared
from agentrl.rollout.engines.local.request import Request


def shared_beginnings(decoding: Sequence[Request]) -> list[Shared]:
    """Each row belongs to at most one of these: the longest beginning that it has in common with another."""
    alike: dict[tuple[int, int], list[Request]] = defaultdict(list)
    for request in decoding:
        for keys in range(KEYS, request.prompt + 1, KEYS):
            alike[keys, request.hashes[keys // BLOCK - 1]].append(request)
    found: list[Shared] = []
    taken: set[Request] = set()
    for (keys, _), requests in sorted(alike.items(), key=lambda item: -item[0][0]):
        first = next((request for request in requests if request not in taken), None)
        if first is None:
            continue
        beginning = first.ids[:keys]
        same = [r for r in requests if r not in taken and r.ids[:keys] == beginning]
        if len(same) > 1:
            found.append(Shared(tuple(request.row for request in same), keys))
            taken.update(same)
    return found
