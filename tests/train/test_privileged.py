"""A teacher that knows more reads the student's turns behind a longer prompt, token for token."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config import PolicyConfig
from agentrl.errors import InvalidInput
from agentrl.models import tiny
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import Renderer
from agentrl.train.algorithms.divergences import IDS, LOGPS, Divergence
from agentrl.train.trainers.teachers.scorers import ForestScorer, OwnScorer
from agentrl.train.trainers.teachers.teachers import Privileged
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Group, Message, Node, Sampling, Session, Status, Task
from tests.train.trees import path

TEXTS = [f"<|im_start|>user\nwhat is {n} + {n}? it is {n + n}<|im_end|>\n" for n in range(40)]
PROMPT = [Message(role="system", content="you answer"), Message(role="user", content="what is 3 + 3?")]
SAID = "it is {}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", TEXTS, shape=tiny.TinyShape(vocab=288, context=512))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return get_renderer(folder)


def added(session: Session, parent: Node | None, message: Message, ids: list[int], trained: int = 0) -> Node:
    """A node at the end, of whose tokens the last `trained` were sampled."""
    number, first = len(session.nodes), len(ids) - trained
    above = None if parent is None else parent.id
    node = Node(number, above, message, ids, [at >= first for at in range(len(ids))], [0.0] * len(ids))
    session.nodes.append(node)
    return node


def sampled(renderer: Renderer, session: Session, parent: Node, text: str, temperature: float) -> Node:
    """A turn of the model's behind a message, its opening untrained."""
    message = Message(role="assistant", content=text)
    ids = renderer.turn(message)
    node = added(session, parent, message, [*renderer.generation_prompt(parent), *ids], len(ids))
    node.sampling = Sampling(temperature=temperature)
    return node


def asked(renderer: Renderer, name: str, answers: list[str], temperature: float = 1.0) -> Session:
    """The prompt, a first turn, a question, and a turn for each further answer below it."""
    session = Session(name, Task(id="t", data={"hint": 6}), group="g", status=Status.COMPLETED, reward=1.0)
    parent: Node | None = None
    for message, ids in zip(PROMPT, renderer.render(PROMPT), strict=True):
        parent = added(session, parent, message, ids)
    assert parent is not None
    turn = sampled(renderer, session, parent, answers[0], temperature)
    more = Message(role="user", content="what is it?")
    question = added(session, turn, more, renderer.render([more], after=turn)[0])
    for answer in answers[1:]:
        sampled(renderer, session, question, answer, temperature)
    return session


@pytest.fixture
def group(renderer: Renderer) -> Group:
    sessions = [asked(renderer, "a", ["3 + 3", "it is 6", "6"]), asked(renderer, "b", ["is 3", "what"], 0.7)]
    return Group("g", sessions[0].task, sessions)


def test_the_turns_are_the_same_tokens_behind_what_the_renderer_writes_for_the_longer_prompt(
    renderer: Renderer, group: Group
) -> None:
    (seen,) = Privileged(renderer, "hint", SAID)([group])
    longer = renderer.render([PROMPT[0], Message(role="user", content="what is 3 + 3?\n\nit is 6")])
    for before, after in zip(group.sessions, seen.sessions, strict=True):
        assert [node.token_ids for node in after.nodes[:2]] == longer
        assert [node.token_ids for node in after.nodes[2:]] == [node.token_ids for node in before.nodes[2:]]
        assert [node.trainable for node in after.nodes[2:]] == [node.trainable for node in before.nodes[2:]]
        assert before.nodes[1].token_ids == renderer.render(PROMPT)[1], "the student's session is as it was"


@pytest.mark.slow
async def test_forests_and_the_policy_itself_say_what_transformers_says_of_the_longer_paths(
    renderer: Renderer, group: Group, folder: Path
) -> None:
    """Shared prompts are computed once, positions move by the text, each token at its own temperature."""
    seen = Privileged(renderer, "hint", SAID)([group])
    entered: list[bool] = []

    @asynccontextmanager
    async def computing() -> Any:
        entered.append(True)
        yield

    wanted = Divergence(0.0, 4)
    trainer = TorchTrainer(folder, TorchConfig(device="cpu"))
    copied = await ForestScorer(folder, PolicyConfig(), wanted).score(seen, 256, 0)
    itself = await OwnScorer(trainer, computing, wanted).score(seen, 256, 0)
    plain = await OwnScorer(trainer, computing).score(seen, 256, 0)
    assert entered == [True, True]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    checked = 0
    for session in seen[0].sessions:
        for node in (node for node in session.nodes if node.sampling is not None):
            key, ids = (session.id, node.id), [token for each in path(session, node.id) for token in each.token_ids]
            with torch.no_grad():
                logp = (model(torch.tensor([ids])).logits[0] / node.sampling.temperature).log_softmax(-1)
            for at, used in enumerate(node.trainable):
                if not used:
                    continue
                before = logp[len(ids) - len(node.token_ids) + at - 1]
                for found in (copied, itself, plain):
                    assert found[key][at] == pytest.approx(float(before[node.token_ids[at]]), abs=2e-5)
                best = before.topk(4)
                for found in (copied, itself):
                    assert found.told[key][LOGPS][at] == pytest.approx(best.values.numpy(), abs=2e-5)
                    assert set(found.told[key][IDS][at]) == set(best.indices.tolist())
                checked += 1
    assert checked > 15


def test_a_task_without_the_field_and_a_prompt_in_another_format_are_refused_by_name(
    renderer: Renderer, group: Group
) -> None:
    with pytest.raises(InvalidInput, match=r"algo.privileged=answer: task 't' has no such field \(fields: hint\)"):
        Privileged(renderer, "answer", SAID)([group])
    group.sessions[1].nodes[1].token_ids = group.sessions[1].nodes[1].token_ids[:-1]
    with pytest.raises(InvalidInput, match="the prompt of session 'b' is not what chatml writes"):
        Privileged(renderer, "hint", SAID)([group])
