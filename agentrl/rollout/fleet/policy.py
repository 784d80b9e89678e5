"""The choice of an engine for a request: the one with the session's prefix, unless it is far busier than another.

A turn's prompt is all of its session so far, and an engine that made the last turn has its keys and values. So a
session stays on its engine, and a new one goes to the engine with the fewest requests. Only where its engine has
`max_imbalance` requests more than the idlest does a session move: computing a prefix anew costs less than that wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

REMEMBERED = 65_536
"""Sessions whose engine is remembered; the longest unseen are forgotten first."""


class Affinity:
    """The engine that each session uses.

    Args:
        max_imbalance: by how many requests a session's engine may be busier than the idlest.
    """

    def __init__(self, max_imbalance: int) -> None:
        self.max_imbalance = max_imbalance
        self._engines: OrderedDict[str, str] = OrderedDict()

    def choose(self, session: str, loads: Mapping[str, int]) -> str:
        """The engine for a session's next request.

        Args:
            session: its affinity key.
            loads: each usable engine's open requests; not empty.
        """
        idlest = min(loads, key=lambda name: (loads[name], name))
        engine = self._engines.pop(session, None)
        if engine is None or engine not in loads or loads[engine] - loads[idlest] > self.max_imbalance:
            engine = idlest
        self._engines[session] = engine
        if len(self._engines) > REMEMBERED:
            self._engines.popitem(last=False)
        return engine

    def forget(self, engine: str) -> None:
        """An engine has lost its cache: no session is bound to it any more."""
        for session in [session for session, name in self._engines.items() if name == engine]:
            del self._engines[session]
