"""The start of a Megatron rank: it joins the others and builds its part of a model."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl.config import LoraConfig
from agentrl.train.trainers.megatron.settings import MegatronConfig
from agentrl.train.trainers.ranks.worker import Builder, RankSettings, join

if TYPE_CHECKING:
    from agentrl.train.trainers.megatron.rank import Rank


class MegatronBuilder(Builder):
    """Builds a rank of Megatron; the role's layout is a `ParallelLayout`."""

    def __init__(self, role: RankSettings) -> None:
        super().__init__(role)
        from agentrl.train.trainers.megatron import cpu

        alone = cpu.install()
        from megatron.core import parallel_state

        join(role, gpus=not alone)
        layout = role.layout
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            virtual_pipeline_model_parallel_size=layout.interleave if layout.interleave > 1 else None,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=1 if layout.expert > 1 else None,
        )

    def build(
        self,
        folder: str,
        config: MegatronConfig,
        algo: Mapping[str, Any],
        total_steps: int,
        lora: LoraConfig | None = None,
    ) -> Rank:
        """Build this rank's part of a model, from the same generators whatever was built before."""
        import torch
        from megatron.core import tensor_parallel

        from agentrl.train.trainers.megatron.rank import Rank

        gc.collect()  # models are in reference cycles
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        torch.manual_seed(self.role.seed)
        tensor_parallel.model_parallel_cuda_manual_seed(self.role.seed, force_reset_rng=True)
        return Rank(folder, config, self.role.layout, algo, total_steps, seed=self.role.seed, lora=lora)
