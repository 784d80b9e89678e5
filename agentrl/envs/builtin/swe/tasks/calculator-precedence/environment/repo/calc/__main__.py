"""python -m calc "1 + 2"."""

import sys

from calc import CalcError, evaluate


def main(arguments):
    try:
        print(f"{evaluate(' '.join(arguments)):g}")
    except CalcError as error:
        print(f"calc: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
