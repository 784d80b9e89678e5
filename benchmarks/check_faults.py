"""`python -m benchmarks.check_faults [WORDS]`: does `agentrl check` find planted faults, and nothing in correct ones?

Plays every fault of `tests/envs/check/faults.yaml` and every correct environment of `tests/envs/check/planting.py`,
or those with one of the words in their names, and prints what was missed and what was a false alarm. The word `faults`
stands for all faults, and `correct` for all that is correct. Each line has the seconds that the check took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.envs.check.planting import CORRECT, check, check_fault, faults, working_in


def main(words: list[str]) -> None:
    """Print a line for each environment, what was judged wrongly, and the sums."""
    began, found, alarms = time.monotonic(), 0, 0
    chosen = [fault for fault in faults() if _is_chosen(fault.name, "faults", words)]
    for fault in chosen:
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = check_fault(fault, Path(folder))
        found += outcome.names(fault)
        said = "" if outcome.names(fault) else "".join(f"\n    {each}" for each in outcome.findings) or "\n    nothing"
        _tell("missed" if said else "found", f"{fault.name} ({fault.rule}: {fault.words}){said}", since)
    correct = [each for each in CORRECT if _is_chosen(each[0], "correct", words)]
    for name, env, options in correct:
        since = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
            outcome = check(env, options=options)
        alarms += bool(outcome.findings)
        said = "".join(f"\n    {each}" for each in (*outcome.findings, *outcome.notes))
        _tell("false alarm" if outcome.findings else "passed", f"{name}{said}", since)
    print(
        f"{found} of {len(chosen)} faults found for the right reason, {alarms} false alarms in {len(correct)} correct"
    )
    print(f"{time.monotonic() - began:.0f} s")


def _is_chosen(name: str, kind: str, words: list[str]) -> bool:
    return not words or kind in words or any(word in name for word in words)


def _tell(verdict: str, text: str, since: float) -> None:
    print(f"{time.monotonic() - since:4.0f} s  {verdict}: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
