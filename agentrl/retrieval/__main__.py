"""The retrieval server as a process of its own: `python -m agentrl.retrieval --index FOLDER --fd N`; see `service`.

It ends with the process that started it, however that ends: a guard sees to that.
"""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

from agentrl.errors import AgentRLError
from agentrl.retrieval.index import open_index
from agentrl.retrieval.server import REFUSED, serve


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="a listening socket that was inherited")
    parser.add_argument("--cached", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    given = parser.parse_args()
    try:
        index = open_index(given.index)
    except AgentRLError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    serve(index, socket.socket(fileno=given.fd), cached=given.cached, timeout=given.timeout)


if __name__ == "__main__":
    main()
