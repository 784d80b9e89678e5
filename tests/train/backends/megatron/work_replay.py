"""What workers do for the tests of replayed experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import InvalidInput
from agentrl.train.forest.forest import Forest
from agentrl.train.trainers.megatron.layout import ParallelLayout
from agentrl.train.trainers.megatron.moe import routers
from agentrl.train.trainers.megatron.rank import Rank
from tests.train.backends.megatron.work_train import Answer, answer, logprobs


def routed(
    folder: str, forests: Sequence[Forest], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """By forest: each trained token's log-probability, and by layer which experts each token went to, as a map."""
    rank = Rank(folder, config, layout, algo)
    seen: list[Any] = []
    for model in rank.models:
        for router in routers(model):
            router.register_forward_hook(lambda _, __, output: seen.append(output[1].detach().bool().clone()))
    logps, maps = [], []
    for forest in forests:
        seen.clear()
        logps += logprobs(rank, [forest]) or []
        maps.append([each[: len(forest)] for each in seen])
    return answer({"logps": logps, "maps": maps})


def refused(
    folder: str, forests: Sequence[Forest], config: TrainerConfig, layout: ParallelLayout, algo: AlgoConfig
) -> Answer:
    """What is said of each forest that does not fit the model."""
    rank, said = Rank(folder, config, layout, algo), []
    for forest in forests:
        try:
            logprobs(rank, [forest])
        except InvalidInput as error:
            said.append(str(error))
    return answer({"said": said})
