"""The source that `data=` names, read and written as the sessions that a run trains on."""

from __future__ import annotations

import filecmp
from pathlib import Path

from agentrl.config import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.sources.files import Conversations, read_conversations
from agentrl.rollout.sources.judged import JudgedRows
from agentrl.rollout.sources.pairs import Compared
from agentrl.rollout.sources.runs import RecordedRun, is_run, read_run
from agentrl.rollout.sources.trees import TreeWriter
from agentrl.sessions.renderers.base import Renderer
from agentrl.train.algorithms import Algorithm

ReadData = Conversations | JudgedRows | RecordedRun


def read_data(data: DataConfig, algorithm: Algorithm) -> ReadData:
    """Read what `data=` names."""
    needs = algorithm.needs
    if not is_run(data.name):
        compared: Compared | None = "pairs" if needs.pairs else "labels" if needs.labels else None
        return algorithm.read_rows(data) or read_conversations(data, compared)
    if needs.head is not None and needs.head.classes:
        raise ConfigError(
            f"data={data.name}: algo={algorithm.config.name} learns {', '.join(needs.head.labels)}, and recorded "
            "sessions have rewards: a file has labels, or algo=reward_model learns from rewards (algo.target=pairs or "
            "score)"
        )
    gap = getattr(algorithm.config, "min_gap", 0.0) if needs.pairs else 0.0
    return read_run(data, demonstrated=not needs.engine, ends=needs.head is not None, pairs=needs.pairs, min_gap=gap)


def prepare_data(config: DataConfig, data: ReadData, renderer: Renderer, base: Path, model: str) -> None:
    """Render conversations, or see that recorded tokens are the model's.

    Raises:
        ConfigError: nothing is left to train on, or the tokens are of another tokenizer.
    """
    if not isinstance(data, RecordedRun):
        own = ModelFacts.read(base).context
        limit = min((each for each in (config.max_tokens, own) if each is not None), default=None)
        data.prepare(TreeWriter(renderer, config, limit))
        return
    recorded = Path(config.name) / "model" / "tokenizer.json"
    if not recorded.exists() or not filecmp.cmp(recorded, base / "tokenizer.json", shallow=False):
        raise ConfigError(
            f"data={config.name} has tokens of that run's model, and model={model} has another "
            f"tokenizer: model={config.name}/model, or one of its checkpoints, has the same"
        )
