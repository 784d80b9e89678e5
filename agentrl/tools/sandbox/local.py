"""The subprocess backend: the same runner as a child process. It isolates NOTHING.

For developing an environment without Docker, with trusted commands: they run as this user, with this user's files and
network. A warning is logged every time one is made. Timeouts, bounded output and the killing of whole process trees
work as in a container, because the runner is the same; there are no limits on memory, disk and processes. Its writable
trees are folders in a temporary directory, and a specification's paths are mapped into it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import shutil
import signal
import tempfile
import uuid
from pathlib import Path

from agentrl.common import processes
from agentrl.errors import SandboxError
from agentrl.tools.sandbox.base import Sandbox, SandboxDied
from agentrl.tools.sandbox.runner.build import runner_binary
from agentrl.tools.sandbox.runner.client import RunnerClient
from agentrl.tools.sandbox.runner.loop import run_on_loop
from agentrl.tools.sandbox.runner.resident import ResidentSandbox
from agentrl.tools.sandbox.runner.transport import PipeStream
from agentrl.tools.sandbox.spec import SandboxSpec

logger = logging.getLogger(__name__)
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""The environment variables that a command inherits: none with a secret."""


class SubprocessSandbox(ResidentSandbox):
    """A folder and a runner. Make one with `create_subprocess`."""

    def __init__(self, id: str, spec: SandboxSpec, client: RunnerClient, root: Path) -> None:
        super().__init__(id, spec, client)
        self.root = root
        self.workdir = self._tree(spec.workdir)

    def _tree(self, tree: str) -> str:
        return str(self.root) + posixpath.normpath("/" + tree)

    def _path(self, path: str) -> str:
        """Paths in the specification's trees are in the temporary folder; all others are the machine's own."""
        whole = posixpath.normpath(posixpath.join(self.workdir, path))
        if whole.startswith(str(self.root)):
            return whole
        inside = any(whole == tree or whole.startswith(tree + "/") for tree in self.spec.trees)
        return self._tree(whole) if inside else whole

    async def _another(self) -> Sandbox:
        return await create_subprocess(self.spec)

    async def _close(self) -> None:
        processes.forget_sandbox(self.id)
        await super()._close()
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)


@run_on_loop
async def create_subprocess(spec: SandboxSpec) -> Sandbox:
    """Start one. The specification's image, limits and hardening are ignored.

    Raises:
        MissingExtra: there is no C compiler to make the runner with.
        SandboxDied: the runner did not start.
    """
    logger.warning(
        "sandbox=subprocess isolates nothing: commands run as this user, with its files and network; "
        "use it with commands that you trust, and sandbox=docker for a model's"
    )
    program = await asyncio.to_thread(runner_binary)
    root = Path(tempfile.mkdtemp(prefix="agentrl-sandbox-"))
    for tree in {*spec.trees, spec.workdir}:
        (root / tree.lstrip("/")).mkdir(parents=True, exist_ok=True)
        (root / tree.lstrip("/")).chmod(0o755)
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env["HOME"] = str(root / spec.workdir.lstrip("/"))
    stream = await PipeStream.open(program, root, env)
    client = RunnerClient(stream)
    try:
        await asyncio.wait_for(client.hello(spec.lease), spec.start_timeout)
        sandbox = SubprocessSandbox(f"subprocess-{uuid.uuid4().hex[:12]}", spec, client, root)
        processes.register_sandbox(sandbox.id, lambda: os.kill(stream.pid, signal.SIGKILL))
        await sandbox.ready()
        return sandbox
    except (TimeoutError, SandboxError) as error:
        client.close()
        shutil.rmtree(root, ignore_errors=True)
        raise SandboxDied(f"the runner did not start: {error}") from None
