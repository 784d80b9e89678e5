"""The conformance suite of weight transports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import AgentRLError, EngineError
from agentrl.plugins.suites.findings import expect, find_problems_async
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.rollout.weights.buckets import Named, Weights
from agentrl.rollout.weights.receiver import EngineReceiver, LoadCommit, Receiver
from agentrl.rollout.weights.transports.base import Transport

SHAPES = {
    "model.embed_tokens.weight": (64, 16),
    "model.layers.0.mlp.up_proj.weight": (48, 16),
    "model.norm.weight": (16,),
}
"""The tensors that are sent."""


class RecordingEngine:
    """The part of an engine that receivers call: it keeps what was published, and can refuse."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.version, self.refuses = -1, False

    async def publish(self, weights: Iterable[Named], version: int) -> None:
        """Keep the weights, or refuse."""
        if self.refuses:
            raise EngineError("this engine refuses weights")
        self.tensors = {name: tensor.clone() for name, tensor in weights}
        self.version = version


def weights_of(version: int) -> dict[str, Tensor]:
    """The weights of a version."""
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@dataclass
class _Subject:
    """A transport, and two engines."""

    transport: Transport
    receiver: Callable[[Any], Receiver]
    engines: dict[str, RecordingEngine] = field(
        default_factory=lambda: {name: RecordingEngine() for name in ("first", "second")}
    )

    async def publish(self, version: int) -> dict[str, AgentRLError | None]:
        await self.transport.stage(Weights(lambda: iter(weights_of(version).items())), version)
        return await self.send(version)

    async def send(self, version: int) -> dict[str, AgentRLError | None]:
        receivers = {name: self.receiver(engine) for name, engine in self.engines.items()}
        return dict(await self.transport.send(receivers, LoadCommit(version, flush=True)))

    def require(self, name: str, version: int) -> None:
        """Require that an engine has the weights of a version, whole."""
        engine, expected = self.engines[name], weights_of(version)
        expect(engine.version == version, f"an engine has version {engine.version}, not {version}")
        expect(engine.tensors.keys() == expected.keys(), "an engine has other tensors than were sent")
        same = all(torch.equal(engine.tensors[each], expected[each]) for each in expected)
        expect(same, f"an engine has other weights than version {version}'s")


async def every_engine_gets_all_weights(subject: _Subject) -> None:
    """Version after version, each engine has every tensor as it was sent, under the version's number."""
    for version in (1, 2, 3):
        sent = await subject.publish(version)
        expect(sent == dict.fromkeys(subject.engines), f"`send` answered {sent} where all went well")
        for name in subject.engines:
            subject.require(name, version)


async def an_engine_that_refuses_harms_no_other(subject: _Subject) -> None:
    """The error of one engine is in the answer, the others have the weights, and it is sent to again."""
    subject.engines["second"].refuses = True
    sent = await subject.publish(4)
    expect(sent.get("first", 1) is None, f"`send` answered {sent.get('first')} for an engine that took the weights")
    expect(isinstance(sent.get("second"), AgentRLError), "`send` does not say which engine refused, and why")
    subject.require("first", 4)
    subject.engines["second"].refuses = False
    again = await subject.send(4)
    expect(again.get("second", 1) is None, f"sent again, `send` answered {again.get('second')}")
    subject.require("second", 4)


async def a_folder_is_of_the_staged_weights(subject: _Subject) -> None:
    """`folder`, from which restarted engines load, is None or a folder that is there."""
    folder = subject.transport.folder()
    expect(folder is None or folder.is_dir(), f"folder() is {folder}, which is no folder")


async def it_closes_twice(subject: _Subject) -> None:
    """`close` may be called again."""
    await subject.transport.close()
    await subject.transport.close()


CHECKS: tuple[Callable[[_Subject], Awaitable[None]], ...] = (
    every_engine_gets_all_weights,
    an_engine_that_refuses_harms_no_other,
    a_folder_is_of_the_staged_weights,
    it_closes_twice,
)


async def check_transport(
    transport: Transport, receiver: Callable[[Any], Receiver] = EngineReceiver
) -> list[ContractFinding]:
    """Find promises that a weight transport does not keep; it is closed here.

    Args:
        transport: what a plug-in's `make` returned.
        receiver: the receiver of an object with `Engine.publish`, where the transport calls more than `load_folder` and
            `load_tensors`.

    Returns:
        What is wrong; nothing, where the transport keeps its contract.
    """
    return await find_problems_async(CHECKS, _Subject(transport, receiver))
