"""A Docker daemon of a test's own, which it may kill: with its own containerd, images, containers and socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 60.0
"""A busy machine takes long to begin."""


class OwnDaemon:
    """A daemon below a folder; `address` is for `SandboxSpec.daemon`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/socket"

    def start(self) -> None:
        """Start it, and wait until it answers; harmless where it runs."""
        end = time.monotonic() + SECONDS
        while not self.answers():
            assert time.monotonic() < end, (self.folder / "log").read_text()[-2000:]
            (self.folder / "pid").unlink(missing_ok=True)
            roots = [f"--{kind}-root={self.folder}/{kind}" for kind in ("data", "exec")]
            places = [*roots, f"--pidfile={self.folder}/pid", f"--host={self.address}"]
            apart = ["unshare", "--net"]  # a daemon without a bridge removes the docker0 that it finds
            command = [*apart, "dockerd", *places, "--bridge=none", "--iptables=false"]
            with open(self.folder / "log", "ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            while self._process.poll() is None and not self.answers() and time.monotonic() < end:
                time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it does."""
        return self.docker("version").returncode == 0

    def docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the client."""
        return subprocess.run(["docker", "-H", self.address, *words], capture_output=True, text=True, check=False)

    def load(self, image: str) -> None:
        """Take an image from the usual daemon."""
        saved = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        subprocess.run(["docker", "-H", self.address, "load"], stdin=saved.stdout, check=True, capture_output=True)
        assert saved.wait() == 0

    def containers(self) -> list[str]:
        """The ids of all there are, in whatever state."""
        return self.docker("ps", "-aq").stdout.split()

    def processes(self, words: str) -> list[int]:
        """The processes of this daemon whose command begins with a word."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
            except OSError:
                continue
            if words in command.partition("\0")[0] and str(self.folder) in command:
                found.append(int(entry.name))
        return found

    def kill(self, words: str, number: int | None = None) -> None:
        """Kill its processes of a kind, or the first few."""
        for process in self.processes(words)[:number]:
            os.kill(process, signal.SIGKILL)

    def end(self) -> None:
        """End everything of it, and leave no mounts."""
        if self.answers():
            self.docker("rm", "-f", *self.containers())
        self._process.terminate()
        self._process.wait(SECONDS)
        for words in ("dockerd", "containerd"):
            self.kill(words)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if str(self.folder) in (mount := line.split()[1]):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def killed(*kinds: str) -> Callable[[OwnDaemon], None]:
    """Processes of these kinds are killed, the daemon among them, and it is started again."""

    def work(daemon: OwnDaemon) -> None:
        for words in kinds:
            daemon.kill(words)
        daemon._process.wait(SECONDS)
        daemon.start()

    return work


DEATHS: dict[str, Callable[[OwnDaemon], object]] = {
    "the shim of a container": lambda daemon: daemon.kill("containerd-shim", 1),
    "every shim": lambda daemon: daemon.kill("containerd-shim"),
    "every container": lambda daemon: daemon.docker("kill", *daemon.containers()),
    "containers that are removed": lambda daemon: daemon.docker("rm", "-f", *daemon.containers()),
    "the daemon with all that is below it": killed("dockerd", "containerd"),
}
"""What dies in the middle of sessions."""
