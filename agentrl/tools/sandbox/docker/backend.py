"""The Docker backend: a hardened container whose first process is the resident runner.

A start is three calls: create, attach (before the start, so that no output is missed), start. The sandbox is ready when
the runner answers the hello frame. The daemon closes the container's standard input when the controller disconnects,
and the runner then exits: a controller that dies leaves stopped containers, never running ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from agentrl.common import processes
from agentrl.errors import MissingExtra, SandboxError
from agentrl.tools.sandbox.base import Sandbox, SandboxDied
from agentrl.tools.sandbox.docker.container import ContainerSandbox, create_container, describe_end, remove
from agentrl.tools.sandbox.docker.daemon import Daemon, connect
from agentrl.tools.sandbox.docker.hardening import RUNNER
from agentrl.tools.sandbox.runner.client import RunnerClient
from agentrl.tools.sandbox.runner.loop import on_loop
from agentrl.tools.sandbox.runner.resident import ResidentSandbox
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
_logged: set[str] = set()
_without_runner: dict[str, str] = {}
"""Specifications, by key, whose runner can't start here, and why."""


class DockerSandbox(ContainerSandbox, ResidentSandbox):
    """A container with a resident runner. Make one with `create_docker`."""

    shared_trees = ("/dev/shm", "/dev/mqueue")

    def __init__(self, id: str, spec: SandboxSpec, client: RunnerClient, daemon: Daemon) -> None:
        super().__init__(id, spec, client)
        self.daemon = daemon
        self._removal: asyncio.Future[None] | None = None
        processes.register_sandbox(id, lambda: daemon.api.kill(id))

    async def _diagnose(self, reason: str) -> str:
        try:
            return f"{reason}; {await describe_end(self.daemon, self.id)}"
        except (SandboxError, KeyError) as error:
            return f"{reason}; {error}"

    async def _ran_out_of_memory(self, since: float) -> bool:
        """By the daemon's events: the kernel killed for memory in this container, and nothing else killed it.

        A command can cause this with kernel memory that counts for no process (not in the writable trees, which fit
        into the limit, but in pipes and sockets). As an infrastructure failure it would let a model have every bad
        session generated again.
        """

        def events() -> set[str]:
            span = {"since": f"{since - 1:.6f}", "until": f"{time.time() + 0.1:.6f}"}
            found = self.daemon.api.events(**span, filters={"container": self.id}, decode=True)
            return {event["Action"] for event in found}

        for _ in range(5):  # the event may come a moment after the end
            try:
                seen = await self.daemon.call(events)
            except SandboxError:
                return False
            if "oom" in seen or "kill" in seen:
                return "oom" in seen and "kill" not in seen
            await asyncio.sleep(0.1)
        return False

    async def _another(self) -> Sandbox:
        return await create_docker(self.spec)

    async def _close(self) -> None:
        processes.forget_sandbox(self.id)
        await super()._close()
        if self._removal is None:
            self._removal = asyncio.ensure_future(remove(self.daemon, self.id))
        await asyncio.shield(self._removal)


async def create_docker(spec: SandboxSpec) -> Sandbox:
    """Start a sandbox.

    Raises:
        DaemonError: the daemon is not there, refuses or is too slow.
        SandboxDied: the container ended before its runner answered.
        ConfigError: the image or the runtime is not there; no retry helps.
    """
    from agentrl.tools.sandbox.docker.plain import create_plain

    why = "the specification says runner='none'" if spec.runner == "none" else _without_runner.get(spec.key)
    if why:
        return await create_plain(spec, why)
    _log_loosened(spec)
    try:
        return await on_loop(_create(spec))
    except (MissingExtra, SandboxError) as error:
        if not _is_about_the_runner(str(error)):
            raise
        _without_runner[spec.key] = str(error)
        return await create_plain(spec, str(error))


def _is_about_the_runner(reason: str) -> bool:
    """True if a start failed because the runner can't be compiled, mounted or executed here."""
    mounted = "bind source path does not exist" in reason or "invalid mount config" in reason
    executed = RUNNER in reason and any(
        word in reason for word in ("format error", "no such file", "permission denied")
    )
    return "sandbox runner" in reason or mounted or executed


async def _create(spec: SandboxSpec) -> Sandbox:
    daemon = await connect(spec.daemon)
    container = await create_container(daemon, spec)
    deadline = time.monotonic() + spec.start_timeout
    try:
        stream = await daemon.attach(container, spec.start_timeout)
        client = RunnerClient(stream)
        ready = client.hello(spec.lease)
        try:
            await daemon.call(daemon.api.start, container, timeout=max(1.0, deadline - time.monotonic()))
            await asyncio.wait_for(asyncio.shield(ready), max(1.0, deadline - time.monotonic()))
        except BaseException:
            client.close()
            raise
        sandbox = DockerSandbox(container, spec, client, daemon)
        await asyncio.wait_for(_serve_egress(sandbox), max(1.0, deadline - time.monotonic()))
        await sandbox.ready()
        return sandbox
    except (TimeoutError, SandboxDied):
        reason = "and the daemon does not say why"
        with contextlib.suppress(SandboxError):
            reason = await describe_end(daemon, container)
        await remove(daemon, container)
        raise SandboxDied(f"the sandbox's runner did not answer: {reason}") from None
    except BaseException:
        await asyncio.shield(remove(daemon, container))
        raise


async def _serve_egress(sandbox: DockerSandbox) -> None:
    if sandbox.spec.egress:
        from agentrl.tools.sandbox.egress import serve

        await serve(sandbox.client, sandbox.spec.egress)


def _log_loosened(spec: SandboxSpec) -> None:
    if spec.loosened and spec.key not in _logged:
        _logged.add(spec.key)
        logger.warning("sandboxes of %s are weaker than the default: %s", spec.image, ", ".join(spec.loosened))
