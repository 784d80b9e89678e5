"""The source that `data=` names, read and written as the sessions that a run trains on."""

from __future__ import annotations

import filecmp
from pathlib import Path

from agentrl.config import AlgoConfig, DataConfig, RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.judged import JudgedRows
from agentrl.rollout.sources.pairs import Compared
from agentrl.rollout.sources.runs import RecordedRun, is_run, read_run
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers.base import Renderer
from agentrl.train.algorithms import make_algorithm

ReadData = Conversations | JudgedRows | RecordedRun


def read_data(data: DataConfig | None, algo: AlgoConfig) -> ReadData:
    """Read what `data=` names.

    Raises:
        ConfigError: it can't be read.
    """
    assert data is not None
    algorithm = make_algorithm(algo)
    needs = algorithm.needs
    if not is_run(data.name):
        compared: Compared | None = "pairs" if needs.pairs else "labels" if needs.labels else None
        return algorithm.read_rows(data) or read_conversations(data, compared)
    if needs.head is not None and needs.head.classes:
        raise ConfigError(
            f"data={data.name}: algo={algo.name} learns {', '.join(needs.head.labels)}, and recorded "
            "sessions have rewards: a file has labels, or algo=reward_model learns from rewards (algo.target=pairs or "
            "score)"
        )
    return read_run(data, demonstrated=not needs.engine, ends=needs.head is not None, pairs=needs.pairs)


def prepare_data(config: RunConfig, data: ReadData, renderer: Renderer, base: Path) -> None:
    """Render conversations, or see that recorded tokens are the model's.

    Args:
        config: the run's.
        data: from `read_data`.
        renderer: the model's.
        base: the model's folder.

    Raises:
        ConfigError: nothing is left to train on, or the tokens are of another tokenizer.
    """
    assert config.data is not None
    if not isinstance(data, RecordedRun):
        own = ModelFacts.read(base).context
        limit = min((each for each in (config.data.max_tokens, own) if each is not None), default=None)
        data.prepare(TreeWriter(renderer, config.data, limit))
        return
    recorded = Path(config.data.name) / "model" / "tokenizer.json"
    if not recorded.exists() or not filecmp.cmp(recorded, base / "tokenizer.json", shallow=False):
        raise ConfigError(
            f"data={config.data.name} has tokens of that run's model, and model={config.model.name} has another "
            f"tokenizer: model={config.data.name}/model, or one of its checkpoints, has the same"
        )
