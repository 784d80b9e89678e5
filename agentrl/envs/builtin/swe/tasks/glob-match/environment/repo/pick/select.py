"""Patterns applied to many paths."""

import re
from functools import lru_cache

from pick.translate import translate


@lru_cache(maxsize=256)
def compiled(pattern):
    return re.compile(translate(pattern), re.DOTALL)


def matches(path, pattern):
    """Whether a pattern covers a whole path."""
    return compiled(pattern).fullmatch(path) is not None


def select(paths, *patterns):
    """The paths that the patterns leave: each in turn adds, or removes where it starts with "-"."""
    chosen = dict.fromkeys(paths, False)
    for pattern in patterns:
        wanted = not pattern.startswith("-")
        for path in chosen:
            if matches(path, pattern.removeprefix("-")):
                chosen[path] = wanted
    return [path for path, wanted in chosen.items() if wanted]
