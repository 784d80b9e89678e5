"""An agent loop as verl's registry holds it: an answer, and a second one behind a hint; nothing of agentrl.

agentrl train env=prompts env.path=rows.jsonl model=FOLDER agent="verl:verl_loop.py:TwoAnswers tokenizer=FOLDER"
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register


@register("two_answers")
class TwoAnswers(AgentLoopBase):
    """Two turns on one path of tokens."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Generate, add the hint's tokens, generate again; the reward is whether the answer is in it."""
        prompt = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
        ids, mask = list(prompt), []
        hint = self.tokenizer.encode("\nOnce more: ", add_special_tokens=False)
        for turn in range(2):
            if turn:
                ids, mask = ids + hint, mask + [0] * len(hint)
            reply = await self.server_manager.generate(
                request_id=uuid4().hex, prompt_ids=ids, sampling_params=sampling_params
            )
            ids, mask = ids + reply.token_ids, mask + [1] * len(reply.token_ids)
        answer = kwargs["reward_model"]["ground_truth"]
        said = self.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=ids[len(prompt) :],
            response_mask=mask,
            reward_score=float(answer in said),
            num_turns=4,
            metrics={},
        )
