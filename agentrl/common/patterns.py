"""Regular expressions that come in data, which may take exponential time.

Python's own engine can't be interrupted, so a pattern that may go back over a text is searched for in a process of
its own, whose processor time has a limit. That costs 20 ms, for the few patterns that repeat or choose anything; the
others are searched for here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

from agentrl.errors import DeadlineExceeded

SECONDS = 0.5
"""Of processor time that a search may take, the start of its process included."""
WAIT = 60.0
"""Seconds that it may take on a machine that has other things to do."""
MEMORY = 1 << 30
_PROGRAM = f"""
import json, re, resource, signal, sys
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_PROF, {SECONDS})
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
pattern, text, flags, most = json.loads(sys.stdin.buffer.read())
found = 0
try:
    for found, _ in enumerate(re.finditer(pattern, text, flags), 1):
        if found == most:
            break
    print(json.dumps(found))
except re.error as error:
    print(json.dumps(str(error)))
"""
_BACKTRACKING = frozenset("*+?{|(")


class PatternTooSlow(ValueError):
    """A search that took longer, or more memory, than any that a task needs."""


def count(pattern: str, text: str, flags: int = 0, most: int = sys.maxsize, around: tuple[str, str] = ("", "")) -> int:
    """Return how often a pattern from data is in a text, `most` times at the most.

    Args:
        pattern: the regular expression.
        text: what it is looked for in.
        flags: of `re`.
        most: matches after which the search ends.
        around: expressions of ours, before and after it.

    Raises:
        re.error: it is no regular expression.
        DeadlineExceeded: the machine left it no processor.
        PatternTooSlow: the search took more than `SECONDS`; whatever asked is to take it for a failure of the text.
    """
    whole = f"{around[0]}{pattern}{around[1]}"
    if not _BACKTRACKING.intersection(pattern):
        matches = re.finditer(whole, text, flags)
        return sum(1 for _ in zip(matches, range(most), strict=False))
    given = json.dumps([whole, text, int(flags), most]).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], input=given, capture_output=True, timeout=WAIT
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"a search had no {SECONDS:g} s of processor time in {WAIT:g} s") from None
    except ValueError:
        raise PatternTooSlow(f"the pattern {pattern[:80]!r} takes too long in a text of {len(text)}") from None
    if isinstance(found, str):
        raise re.error(found, whole)
    return int(found)


def is_in(pattern: str, text: str, flags: int = 0, around: tuple[str, str] = ("", "")) -> bool:
    """Return whether a pattern from data is anywhere in a text; see `count`."""
    return count(pattern, text, flags, 1, around) > 0
