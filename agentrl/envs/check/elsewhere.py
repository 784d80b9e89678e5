"""`python -m agentrl.envs.check.elsewhere NAME OPTIONS N`: an environment's tasks, as another process has them."""

from __future__ import annotations

import json
import sys
from itertools import islice

from agentrl.envs import calls
from agentrl.envs.registry import factory

MARK = "the tasks of every split: "
"""Before them, in a line of their own: an environment's code may print, also as the process ends."""


def main(name: str, options: str, number: str) -> None:
    """Write the first tasks of every split as one line of JSON."""
    env = factory(name, **json.loads(options))()
    listed = {
        split: [task.model_dump() for task in islice(calls.tasks(env, split), int(number))] for split in env.splits
    }
    print(f"\n{MARK}{json.dumps(listed, default=str)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
