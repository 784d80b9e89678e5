"""`python -m tests.planted`: plant each fault in a copy of the package and see that its test finds it.

Prints how often the test failed, of how many times with other random numbers, and in which of hypothesis's examples at
the latest: about that size is what the test needs. Ends with 1 where a fault is not found every time or no longer
applies, or where its test fails without it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.planted.fault import Fault, NoLongerApplies, entries
from tests.planted.scratch import Broken, Scratch

TIMEOUT_SECONDS = 300.0
"""A test that takes longer on a fault has found it."""


def check(faults: Iterable[Fault]) -> list[str]:
    """What is wrong with the entries themselves: a sentence for each fault that can't be planted."""
    wrong = []
    for fault in faults:
        try:
            fault.check()
        except NoLongerApplies as error:
            wrong.append(str(error))
    return wrong


def run(faults: list[Fault], times: int, sound: bool = True, timeout: float = TIMEOUT_SECONDS) -> list[str]:
    """Plant the faults one after the other; a sentence for each that was not found every time.

    Args:
        times: how often a test runs on each fault.
        sound: first run each test once without a fault.
    """
    wrong = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        scratch = Scratch(Path(folder))
        for test in dict.fromkeys(fault.test for fault in faults) if sound else ():
            if scratch.run(test, 1, timeout).failed:
                raise Broken(f"{test} fails without a fault")
        for fault in faults:
            began = time.monotonic()
            found = scratch.try_fault(fault, times, timeout)
            example = f"example {found.example:3}" if found.example else " " * 11
            spent = f"{time.monotonic() - began:6.1f} s"
            print(f"{found.failed:2} of {times}  {example} {spent}  {fault}\n{'':32}{fault.test}", flush=True)
            if found.failed < times:
                wrong.append(f"found {found.failed} times of {times}: {fault} by {fault.test}")
    return wrong


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose function or test has one of these in it")
    parser.add_argument("--times", type=int, default=1, help="how often each test runs, with other random numbers")
    parser.add_argument("--check", action="store_true", help="only check that every fault still applies")
    parser.add_argument("--unsound", action="store_true", help="don't run the tests without a fault first")
    given = parser.parse_args(arguments)
    faults = [
        fault
        for fault in entries()
        if not given.words or any(word in f"{fault.function} {fault.test}" for word in given.words)
    ]
    wrong = check(faults)
    if not wrong and not given.check:
        try:
            wrong = run(faults, given.times, sound=not given.unsound)
        except Broken as error:
            wrong = [str(error)]
    print("\n".join([*wrong, f"{len(faults)} faults, {len(wrong)} of them not in order"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
