"""Tasks for a shell in three levels: what is there, what is asked for, and what must be so afterwards."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from agentrl.envs.builtin.math_tools import is_held_out
from agentrl.types import Task

NAMES = ("alpha", "bravo", "delta", "echo", "gamma", "kilo", "lima", "omega", "sierra", "tango", "victor", "zulu")
WORDS = ("apple", "brick", "cloud", "door", "engine", "field", "glass", "house", "iron", "jacket", "kettle", "lamp")


@dataclass
class Problem:
    """A task: plain JSON as a mapping.

    Attributes:
        words: what is asked for.
        files: those that are there, by path.
        modes: permissions of some of them, in octal, where they are not 644.
        programs: Python files of those that run in the background from the beginning.
        checks: what must be so afterwards (`verify.list_passed`).
        commands: the expert's.
    """

    words: str
    files: dict[str, str]
    checks: list[dict[str, Any]]
    commands: list[str]
    modes: dict[str, str] = field(default_factory=dict)
    programs: list[str] = field(default_factory=list)


def tasks(seed: int, level: int | None, split: str) -> Iterator[Task]:
    """Tasks without end; whether one is for `eval` is decided by its words and files."""
    for index in count():
        rng = random.Random(f"terminal/{seed}/{split}/{level}/{index}")
        of = level or rng.choice(list(LEVELS))
        while True:
            problem = rng.choice(LEVELS[of])(rng)
            if is_held_out(f"{problem.words}{sorted(problem.files.items())}") == (split == "eval"):
                break
        yield Task(id=f"terminal-{seed}-{split}-{level or 'all'}-{index}", data={"level": of, **asdict(problem)})


# ------------------------------------------------------------------------------ level 1: files


def _move(rng: random.Random) -> Problem:
    names = rng.sample(NAMES, 8)
    kept, moved, gone = names[:3], names[3:6], names[6:]
    end, old = rng.sample(("csv", "log", "txt", "tmp", "dat"), 2)
    other = rng.choice(("md", "cfg"))
    folder = rng.choice(WORDS)
    files = {
        f"inbox/{name}.{suffix}": f"{name}\n"
        for group, suffix in ((kept, other), (moved, end), (gone, old))
        for name in group
    }
    checks: list[dict[str, Any]] = [
        *({"path": f"inbox/{name}.{other}", "text": f"{name}\n"} for name in kept),
        *({"path": f"{folder}/{name}.{end}", "text": f"{name}\n"} for name in moved),
        *({"path": f"inbox/{name}.{end}", "absent": True} for name in moved),
        *({"path": f"inbox/{name}.{old}", "absent": True} for name in gone),
    ]
    words = (
        f"Move every .{end} file of the folder inbox into a new folder {folder}, and delete every .{old} file of inbox."
    )
    return Problem(words, files, checks, [f"mkdir {folder} && mv inbox/*.{end} {folder}/ && rm inbox/*.{old}"])


def _rename(rng: random.Random) -> Problem:
    names, prefix = rng.sample(NAMES, 5), rng.choice(WORDS)
    files = {f"photos/{name}.JPG": f"{rng.random()}\n" for name in names[:3]} | {
        f"photos/{name}.png": "x\n" for name in names[3:]
    }
    checks: list[dict[str, Any]] = []
    for path, text in files.items():
        if path.endswith(".JPG"):
            new = path.replace("photos/", f"photos/{prefix}-").replace(".JPG", ".jpg")
            checks += [{"path": new, "text": text}, {"path": path, "absent": True}]
        else:
            checks.append({"path": path, "text": text})
    words = f"In the folder photos, rename each NAME.JPG to {prefix}-NAME.jpg. Leave other files as they are."
    command = f'cd photos && for f in *.JPG; do mv "$f" "{prefix}-${{f%.JPG}}.jpg"; done'
    return Problem(words, files, checks, [command])


def _permissions(rng: random.Random) -> Problem:
    names = rng.sample(NAMES, 4)
    files = {
        f"{names[0]}.key": "secret\n",
        f"{names[1]}.key": "secret\n",
        f"{names[2]}.sh": "echo hello\n",
        f"{names[3]}.txt": "text\n",
    }
    checks = [
        *({"path": f"{name}.key", "text": "secret\n", "mode": "600"} for name in names[:2]),
        {"path": f"{names[2]}.sh", "text": "echo hello\n", "mode": "755"},
        {"path": f"{names[3]}.txt", "text": "text\n", "mode": "644"},
    ]
    words = (
        "Make every .key file readable and writable by its owner and by nobody else, and every .sh file executable and "
        "readable by everybody, and writable by its owner alone."
    )
    return Problem(words, files, checks, ["chmod 600 *.key && chmod 755 *.sh"])


# ------------------------------------------------------------------------------ level 2: text


def _sums(rng: random.Random) -> Problem:
    rows = [(rng.choice(WORDS[:5]), rng.randint(1, 99), rng.choice(NAMES)) for _ in range(rng.randint(30, 80))]
    sums: Counter[str] = Counter()
    for thing, number, _ in rows:
        sums[thing] += number
    text = "thing,number,person\n" + "".join(f"{thing},{number},{person}\n" for thing, number, person in rows)
    answer = "".join(f"{thing} {sums[thing]}\n" for thing in sorted(sums))
    words = (
        "sales.csv has the columns thing, number and person. Write to sums.txt one line for each thing, with the "
        "thing, a space and the sum of its numbers, sorted by thing."
    )
    command = """awk -F, 'NR > 1 {s[$1] += $2} END {for (t in s) print t, s[t]}' sales.csv | LC_ALL=C sort > sums.txt"""
    return Problem(
        words,
        {"sales.csv": text},
        [{"path": "sums.txt", "text": answer}, {"path": "sales.csv", "text": text}],
        [command],
    )


def _replace(rng: random.Random) -> Problem:
    old, new = rng.sample(NAMES, 2)
    files = {}
    for folder in rng.sample(WORDS, 3):
        for name in rng.sample(("main", "test", "prod", "local"), 2):
            hosts = [rng.choice((old, f"{old}2", f"my{old}", "other")) for _ in range(4)]
            files[f"etc/{folder}/{name}.cfg"] = "".join(
                f"key{place} = {host}.example\n" for place, host in enumerate(hosts)
            )
        files[f"etc/{folder}/notes.txt"] = f"{old}.example is old\n"
    files[f"etc/{rng.choice(WORDS)}.cfg"] = f"host = {old}.example\n"
    checks = []
    for path, text in files.items():
        wanted = re.sub(rf"\b{old}\.example", f"{new}.example", text) if path.endswith(".cfg") else text
        checks.append({"path": path, "text": wanted})
    words = (
        f"In all .cfg files in and below the folder etc, replace the host {old}.example by {new}.example. Other hosts, "
        f"such as {old}2.example and my{old}.example, and other files, stay as they are."
    )
    command = f"find etc -name '*.cfg' -exec sed -i 's/\\b{old}\\.example/{new}.example/g' {{}} +"
    return Problem(words, files, checks, [command])


def _log(rng: random.Random) -> Problem:
    people = rng.sample(NAMES, 6)
    lines = [_request(rng, rng.choice(people), number) for number in range(rng.randint(60, 120))]
    failed = [line.split()[1] for line in lines if line.split()[4] == "500"]
    text, answer = "".join(f"{line}\n" for line in lines), "".join(f"{name}\n" for name in sorted(set(failed)))
    words = (
        "Each line of access.log has a date, a user, a method, a path, a status and a number. Write to failed.txt the "
        "users who got the status 500, each once, sorted."
    )
    command = "awk '$5 == 500 {print $2}' access.log | LC_ALL=C sort -u > failed.txt"
    return Problem(
        words,
        {"access.log": text},
        [{"path": "failed.txt", "text": answer}, {"path": "access.log", "text": text}],
        [command],
    )


def _request(rng: random.Random, person: str, number: int) -> str:
    day, status = rng.randint(1, 28), rng.choice((200, 200, 404, 500))
    return f"2026-03-{day:02} {person} {rng.choice(('GET', 'POST'))} /{rng.choice(WORDS)} {status} {number}"


# ------------------------------------------------------------------------------ level 3: programs and processes

LINES = "import collections, sys\nlines = sys.stdin.read().splitlines()\n"
PROGRAMS: tuple[tuple[str, str, Callable[[list[str]], str]], ...] = (
    (
        "prints the lines that occur more than once, each once, in the order of their first occurrence",
        f"{LINES}for line, n in collections.Counter(lines).items():\n    if n > 1:\n        print(line)\n",
        lambda lines: "".join(f"{line}\n" for line, number in Counter(lines).items() if number > 1),
    ),
    (
        "prints the longest line, the first one of several that are as long",
        f"{LINES}print(max(lines, key=len))\n",
        lambda lines: max(lines, key=len) + "\n",
    ),
    (
        "prints how many lines there are of each length, one length on a line as LENGTH:COUNT, short ones first",
        f"{LINES}for n, c in sorted(collections.Counter(map(len, lines)).items()):\n    print(n, c, sep=':')\n",
        lambda lines: "".join(f"{length}:{number}\n" for length, number in sorted(Counter(map(len, lines)).items())),
    ),
    (
        "prints each line backwards, the last line first",
        f"{LINES}for line in reversed(lines):\n    print(line[::-1])\n",
        lambda lines: "".join(f"{line[::-1]}\n" for line in reversed(lines)),
    ),
)
"""Programs: a description of what one does with the lines of its input, the expert's text, and the output."""
HIDDEN = 3
"""Inputs that the agent does not see."""


def _program(rng: random.Random) -> Problem:
    what, source, meant = rng.choice(PROGRAMS)
    name = f"{rng.choice(WORDS)}.py"
    shown, *inputs = [_input(rng, meant) for _ in range(HIDDEN + 1)]
    files = {"example.txt": "".join(f"{line}\n" for line in shown)}
    checks = [
        {"run": ["python3", name], "stdin": "".join(f"{line}\n" for line in lines), "stdout": meant(lines)}
        for lines in inputs
    ]
    words = (
        f"Write a Python program {name} that reads lines from its standard input and {what}. example.txt is an "
        "example of its input."
    )
    return Problem(words, files, checks, [f"cat > {name} <<'EOF'\n{source}EOF\npython3 {name} < example.txt"])


def _input(rng: random.Random, meant: Callable[[list[str]], str]) -> list[str]:
    """Lines for which the program has to print something."""
    while True:
        lines = [rng.choice(WORDS) + rng.choice(("", "", f" {rng.choice(NAMES)}")) for _ in range(rng.randint(6, 20))]
        if meant(lines):
            return lines


WORKER = """import pathlib, time
target = pathlib.Path({target!r})
while True:
    target.write_text(str(time.time()))
    time.sleep(0.5)
"""


def _process(rng: random.Random) -> Problem:
    names, targets = rng.sample(NAMES, 3), rng.sample(WORDS, 3)
    files = {f"{name}.py": WORKER.format(target=f"{target}.out") for name, target in zip(names, targets, strict=True)}
    chosen = rng.randrange(3)
    checks = [{"program": f"{name}.py", "running": place != chosen} for place, name in enumerate(names)]
    words = (
        f"Three programs run in the background. End the one that writes to {targets[chosen]}.out, and leave the others "
        "running."
    )
    commands = [f"grep -l {targets[chosen]}.out *.py", f"pkill -f '[{names[chosen][0]}]{names[chosen][1:]}.py'"]
    return Problem(words, files, checks, commands, programs=sorted(files))


LEVELS: dict[int, tuple[Callable[[random.Random], Problem], ...]] = {
    1: (_move, _rename, _permissions),
    2: (_sums, _replace, _log),
    3: (_program, _process),
}
