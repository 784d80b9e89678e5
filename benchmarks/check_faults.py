"""`python -m benchmarks.check_faults [WORDS]`: does `agentrl check` find planted faults, and nothing in correct ones?

Plays every fault of `tests/envs/check/faults.yaml` and every correct environment of `tests/envs/check/planting.py`,
or those with one of the words in their names, and prints what was missed and what was a false alarm.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.envs.check.planting import CORRECT, check, check_fault, faults, working_in


def main(words: list[str]) -> None:
    """Print a line for each environment that is judged wrongly, and the sums."""
    began, found, alarms = time.monotonic(), 0, 0
    chosen = [fault for fault in faults() if not words or any(word in fault.name for word in words)]
    for fault in chosen:
        with tempfile.TemporaryDirectory() as folder:
            outcome = check_fault(fault, Path(folder))
        found += outcome.names(fault)
        if not outcome.names(fault):
            said = "\n    ".join(map(str, outcome.findings)) or "nothing"
            print(f"missed: {fault.name} ({fault.rule}: {fault.words})\n    {said}", flush=True)
    correct = [each for each in CORRECT if not words or any(word in each[0] for word in words)]
    for name, env, options in correct:
        with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
            outcome = check(env, options=options)
        alarms += bool(outcome.findings)
        for finding in outcome.findings:
            print(f"false alarm: {name}: {finding}", flush=True)
        for note in outcome.notes:
            print(f"note: {name}: {note}", flush=True)
    print(
        f"{found} of {len(chosen)} faults found for the right reason, {alarms} false alarms in {len(correct)} correct"
    )
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
