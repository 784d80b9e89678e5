"""A retriever of Search-R1's environment for tests: no server, no wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.retrieval.index import open_index


class InProcess:
    """The data folder's index, searched without a server."""

    def __init__(self, data: Path) -> None:
        self.index = open_index(data / "bm25")

    async def search(self, queries: Sequence[str], topk: int) -> Any:
        return self.index.search(queries, topk)
