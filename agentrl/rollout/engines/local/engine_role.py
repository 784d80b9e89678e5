"""The local engine as a role of a cluster (`agentrl.cluster`): what a `ProcessEngine` calls."""

from __future__ import annotations

from pathlib import Path

from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.weights.snapshot import read_folder


class EngineRole(LocalEngine):
    """A `LocalEngine` that loads weights from a folder."""

    async def load(self, folder: Path, version: int) -> None:
        """Load a Hugging Face folder's weights, or an adapter's, and call them policy `version`."""
        await self.publish(read_folder(folder), version)
