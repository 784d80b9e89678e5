"""python -m count [-l] [-w] [-m] [-c] [FILE...]."""

import argparse
import sys

from count.counting import Counts, count

COLUMNS = {"l": "lines", "w": "words", "m": "characters", "c": "bytes", "L": "longest"}


def main(arguments, stdin=None, out=None):
    parser = argparse.ArgumentParser(prog="count")
    for letter, name in COLUMNS.items():
        parser.add_argument(f"-{letter}", action="store_true", help=f"print {name}")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args(arguments)
    chosen = [name for letter, name in COLUMNS.items() if getattr(options, letter)] or ["lines", "words", "bytes"]
    out = out or sys.stdout
    total, status = Counts(), 0
    for path in options.files or ["-"]:
        try:
            if path == "-":
                counts = count(stdin or sys.stdin.buffer)
            else:
                with open(path, "rb") as stream:
                    counts = count(stream)
        except OSError as error:
            print(f"count: {path}: {error.strerror}", file=sys.stderr)
            status = 1
            continue
        total += counts
        print(*[getattr(counts, name) for name in chosen], *([path] if path != "-" else []), file=out)
    if len(options.files) > 1:
        print(*[getattr(total, name) for name in chosen], "total", file=out)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
