"""A metrics back end as a plug-in: it gets each step's numbers, in a thread of its own.

It is a subclass of `Tracker` with `log` and `close`; what it is told of the run is `TrackedRun`. It can neither end a
run nor make it wait.

- Named by `metrics=[file.py:CLASS]`, or an entry point in the group `agentrl.trackers`.
- Proven by `check_tracker`.
- See docs/metrics.md.
"""

from agentrl.plugins.suites.tracker import check_tracker
from agentrl.train.trackers import TRACKERS, Tracker
from agentrl.train.trackers.base import TrackedRun

__all__ = ["TRACKERS", "TrackedRun", "Tracker", "check_tracker"]
