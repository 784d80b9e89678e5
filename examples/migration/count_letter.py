"""A tool class of verl; `tools.yaml` names it as verl's `tool_config_path` does. Nothing of agentrl.

agentrl train env=verl:tools.yaml env.path=rows.jsonl rewards.right=verl rewards.right.function=rewards.py:compute_score
"""

from __future__ import annotations

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class CountLetter(BaseTool):
    """Counts a letter in the row's word."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.words: dict[str, str] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Keep the word of the row."""
        instance, response = await super().create(instance_id)
        self.words[instance] = kwargs["create_kwargs"]["word"]
        return instance, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Count."""
        letter = parameters["letter"]
        if len(letter) != 1:
            raise ValueError("give one letter")
        return ToolResponse(text=str(self.words[instance_id].count(letter))), self.config["step_reward"], {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the word."""
        del self.words[instance_id]
