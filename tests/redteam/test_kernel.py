"""No sandbox of any provider that isolates lets a command across the kernel's borders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.docker.plain import create_plain
from agentrl.tools.sandbox.runner.loop import blocking
from tests.redteam.attack import Attack, ids
from tests.redteam.kernel import KERNEL, REFUSED
from tests.tools.sandbox.attacks.conftest import PRELUDE
from tests.tools.sandbox.attacks.conftest import Attack as Run
from tests.tools.sandbox.conftest import SMALL

pytestmark = pytest.mark.slow

ABOUT_THE_RUNNER = {"entering namespaces", "what the kernel would tell"}
"""They look into the first process, too."""


@pytest.fixture(scope="module")
def plain(docker: None) -> Iterator[Sandbox]:
    """A sandbox without a runner."""
    sandbox = blocking(create_plain(SMALL, "a test wants it"), 90)
    yield sandbox
    blocking(sandbox.close(), 60)


@pytest.mark.parametrize("provider", ["docker", "plain"])
@pytest.mark.parametrize("case", KERNEL, ids=ids(KERNEL))
async def test_refused(case: Attack, provider: str, request: pytest.FixtureRequest) -> None:
    if provider == "plain" and case.name in ABOUT_THE_RUNNER:
        pytest.skip("without a runner, the first process is one of the user's own, with nothing to hide")
    sandbox: Sandbox = request.getfixturevalue("jail" if provider == "docker" else "plain")
    result = await sandbox.exec(["python3", "-c", PRELUDE + case.payload], timeout=20)
    lines = result.stdout.decode().splitlines()
    assert len(lines) >= 2, f"the attack did not run: {result}"
    for line in lines:
        words = {word for word in line.split()[1:] if word.isupper() or word.isdigit() or word == "done"}
        assert words, line
        assert words <= REFUSED, f"{case.must_not}: {line}"
    assert result.exit_code == 0, result.stderr.decode()
    await sandbox.exec("rm -rf /work/* /tmp/*")


async def test_a_set_uid_program_gains_nothing(attack: Run, jail: DockerSandbox) -> None:
    result = await attack("""
import shutil, subprocess
shutil.copy("/usr/bin/python3", "/work/py"); os.chmod("/work/py", 0o6755)
done = subprocess.run(["/work/py", "-c", "import os; print(os.getresuid())"], capture_output=True, text=True)
print(done.stdout.strip())
wanted = ("NoNewPrivs", "Seccomp:", "CapEff", "CapBnd", "CapPrm")
print([line.split()[1] for line in open("/proc/self/status").read().splitlines() if line.startswith(wanted)])
""")
    users, status = result.stdout.decode().splitlines()
    assert set(users.strip("()").split(", ")) == {(await jail.inspect())["Config"]["User"].partition(":")[0]}
    assert status == str(["0" * 16] * 3 + ["1", "2"])
