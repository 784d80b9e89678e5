"""The command line: `agentrl`, or `python -m agentrl`. What it needs is loaded here; Ctrl-C meanwhile is silent."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from agentrl import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
