"""Tests whose matrices are played by a covering design of pairs (`tests.suite.pairs`), with every combination.

python -m benchmarks.matrices            all of them
python -m benchmarks.matrices -k leases  what pytest takes
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run the files that have such a matrix."""
    files = [
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"suite\.pairs import|suite import .*pairs", file.read_text())
    ]
    return pytest.main(["--whole-matrices", "--numprocesses=2", *map(str, sorted(files)), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
