"""The retrieval server as a process of its own: `python -m agentrl.retrieval --index FOLDER --fd N`; see `service`.

It ends when its standard input does: with the process that started it, however that ends.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from pathlib import Path

from agentrl.errors import AgentRLError
from agentrl.retrieval.index import open_index
from agentrl.retrieval.server import REFUSED, serve


def _end_with_input() -> None:
    while os.read(0, 4096):  # not by `sys.stdin`, whose lock would be in the way when the process ends first
        pass
    os._exit(0)


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="a listening socket that was inherited")
    parser.add_argument("--cached", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    given = parser.parse_args()
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        index = open_index(given.index)
    except AgentRLError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    serve(index, socket.socket(fileno=given.fd), cached=given.cached, timeout=given.timeout)


if __name__ == "__main__":
    main()
