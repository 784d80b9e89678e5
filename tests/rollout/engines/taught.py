"""A server as a teacher by its URL: it says of paths what transformers computes, and the wrong one is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config import PolicyConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.train.algorithms.advantages.distill import TeacherValues
from agentrl.train.algorithms.credit import trainable_nodes
from agentrl.train.algorithms.divergences import IDS, LOGPS, Divergence
from agentrl.train.trainers.teachers.scorers import PathScorer
from agentrl.train.trainers.teachers.server import TeacherServer
from tests.train.trees import as_group, path, random_session

TOP_K = 3


async def check_teacher(url: str, folder: Path, model: Any, tmp_path: Path, way: str) -> None:
    """Its log-probabilities and most probable tokens of trees, and its refusals.

    Args:
        url: the server's API, with the weights of `model`.
        folder: the model's.
        model: computes the same in this process.
        tmp_path: for another tokenizer.
        way: how it is to be asked.
    """
    own, tokenizer = PolicyConfig.model_validate({"model": url}), load_tokenizer(folder)
    session = random_session(random.Random(2), "s", [5, 6, 7], depth=4, branching=2)
    for node in session.nodes:
        node.sampling = None if node.sampling is None else type(node.sampling)(temperature=1.0)
    server = TeacherServer("teacher", own, tokenizer, TOP_K)
    try:
        await server.start()
        assert server.way == way
        found = await PathScorer(server.read, Divergence(1.0, TOP_K)).score([as_group([session], "g")], 512, 0)
        last = [5, model.config.vocab_size - 1, 6, 7]  # SGLang calls the last id 0
        said = await server.read(last, 1.0, 1)
        with pytest.raises(EngineError, match=r"policies\.teacher"):
            await server.read([5] * 4000, 1.0, 1)  # longer than its context
    finally:
        await server.close()
    assert isinstance(found, TeacherValues)
    with torch.no_grad():
        logp = model(torch.tensor([last])).logits[0].float().log_softmax(-1)
    wanted = [float(logp[place, token]) for place, token in enumerate(last[1:])]
    np.testing.assert_allclose(said.logps[1:], wanted, atol=2e-3)
    nodes = trainable_nodes(session)
    assert len(nodes) > 3
    for node in nodes:
        _check_node(found, session, node, model)
    await _check_refusals(url, folder, tmp_path)


@torch.no_grad()
def _check_node(found: TeacherValues, session: Any, node: Any, model: Any) -> None:
    ids = [token for each in path(session, node.id) for token in each.token_ids]
    logp = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    told, first = found.told[session.id, node.id], len(ids) - len(node.token_ids)
    for place in (i for i, used in enumerate(node.trainable) if used):
        before = logp[first + place - 1]
        assert found[session.id, node.id][place] == pytest.approx(float(before[node.token_ids[place]]), abs=2e-3)
        np.testing.assert_allclose(told[LOGPS][place], before.topk(TOP_K).values, atol=2e-3)
        np.testing.assert_allclose(before[told[IDS][place]], told[LOGPS][place], atol=2e-3)


async def _check_refusals(url: str, folder: Path, tmp_path: Path) -> None:
    """Another tokenizer, and an API that knows no prompts' log-probabilities."""
    other = tiny.build(tmp_path / "other", ["five of these read the make and 3 Two"], shape=tiny.TinyShape(vocab=280))
    for address, tokens, problem in (
        (url, other, "its tokenizer is not the student's: token"),
        (f"{url}/nothing", folder, "does not return the 3 most probable tokens|set policies.NAME.api.model"),
    ):
        server = TeacherServer("teacher", PolicyConfig(name=address), load_tokenizer(tokens), TOP_K)
        try:
            if problem.startswith("its"):
                with pytest.raises(ConfigError, match=problem):
                    await server.start()
            else:
                with pytest.raises((ConfigError, EngineError)):
                    await server.start()
        finally:
            await server.close()
