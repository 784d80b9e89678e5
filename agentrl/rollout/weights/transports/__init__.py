"""Transports of weights. They stage what they can while engines still generate, then send while engines pause."""

from agentrl.rollout.weights.transports.base import Sent, Transport
from agentrl.rollout.weights.transports.disk import DeltaTransport, DiskTransport
from agentrl.rollout.weights.transports.distributed import DistributedTransport
from agentrl.rollout.weights.transports.inproc import InprocTransport
from agentrl.rollout.weights.transports.ipc import IpcTransport

__all__ = [
    "DeltaTransport",
    "DiskTransport",
    "DistributedTransport",
    "InprocTransport",
    "IpcTransport",
    "Sent",
    "Transport",
]
