"""Sandboxes of another machine, over the loopback: what every backend does, who may ask, and what is left behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trustme

from agentrl.config import SandboxConfig
from agentrl.envs import sandboxes
from agentrl.envs.sandbox_server import SandboxServer, SandboxServerConfig, running
from agentrl.errors import Blame, ConfigError, InvalidInput, SandboxError
from agentrl.overrides import validate
from agentrl.tools.sandbox.base import PathError, Sandbox, SandboxDied
from agentrl.tools.sandbox.conformance import check_sandbox
from agentrl.tools.sandbox.remote import backend as remote
from agentrl.tools.sandbox.remote.backend import RemoteSandbox, create_remote
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.sandbox.toolkit import Toolkit
from tests.tools.sandbox.conftest import SMALL

KEY = "a key of the tests' own"
SPEC = SandboxSpec()
LONG = "echo $$ > {pid}; sleep 300"
"""A command of the subprocess backend's, whose file is this machine's."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AGENTRL_SANDBOX_KEY", KEY)
    yield
    remote.use(None)


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[str]:
    """A server in this process, which `create_remote` uses from now on."""
    async with running(SandboxServerConfig(**{"sandbox": "subprocess", "port": 0, **settings})) as url:
        remote.use(url)
        yield url


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what another process does
            await asyncio.sleep(0.01)


async def begun(pid: Path) -> int:
    """The number of the process that `LONG` has started."""
    words: list[str] = []

    def written() -> bool:
        words.extend(pid.read_text().split() if pid.exists() else ())
        return bool(words)

    await until(written)
    return int(words[0])


def lives(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def numbers(url: str) -> dict[str, float]:
    async with httpx.AsyncClient(timeout=60) as http:
        page = (await http.get(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"})).text
    lines = [line.split() for line in page.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0].removeprefix("agentrl_sandboxes_"): float(value) for name, value in lines}


async def counted(url: str, what: str, least: int) -> dict[str, float]:
    """The server's numbers, once one of them is so large."""
    async with asyncio.timeout(60):
        while (found := await numbers(url)).get(what, 0) < least:  # noqa: ASYNC110 - the server's own clock
            await asyncio.sleep(0.1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["subprocess", "docker"])
async def test_the_remote_backend_conforms(backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "docker":
        request.getfixturevalue("docker")
    async with served(sandbox=backend) as url:
        assert [v for v in await check_sandbox("remote", SMALL) if not v.ok] == []
        counts = await numbers(url)
        assert counts["held"] == 0
        assert counts["bytes_received"] > 1 << 20, "the suite writes a file of 1.2 MiB"
        assert counts["bytes_sent"] > 1 << 20


@pytest.mark.slow
async def test_the_tools_of_an_agent_work_on_another_machine() -> None:
    async with served():
        sandbox, tools = await create_remote(SPEC), Toolkit(["python"], timeout=60)
        assert await tools.python("x = 6", sandbox) == ""
        assert await tools.python("x * 7", sandbox) == "42"
        impatient = Toolkit(["python"], timeout=1.5, interrupt_timeout=60.0)  # a busy machine answers late
        while await impatient.python("6 * 7", sandbox) != "42":  # what is interrupted before it has begun ends
            pass
        endless = await impatient.python("while True: pass", sandbox)
        assert "interrupted; variables are still there" in endless
        assert await tools.python("import os; os._exit(3)", sandbox) == "[exit code 3]"
        assert "NameError" in await tools.python("x", sandbox)
        await sandbox.close()


@pytest.mark.slow
async def test_who_has_no_key_or_names_another_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as url:
        monkeypatch.setenv("AGENTRL_SANDBOX_KEY", "another key of the same length")
        remote._servers.clear()
        with pytest.raises(ConfigError, match="refuses the key") as refused:
            await create_remote(SPEC)
        assert KEY not in str(refused.value)
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.post(f"{url}/sandboxes/1/create", content=b"x" * 1000)).status_code == 401
            named = {"host": "sandboxes.example", "authorization": f"Bearer {KEY}"}
            assert (await http.post(f"{url}/alive", headers=named)).status_code == 421
        counts = await numbers(url)
        assert (counts["refused"], counts["clients"], counts["held"]) == (3, 0, 0)


@pytest.mark.parametrize("content", [None, "short", "ä" * 20])
async def test_no_server_begins_without_a_proper_key(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTRL_SANDBOX_KEY")
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(ConfigError, match="16 printable ASCII characters"):
        async with served(key_file=None if content is None else str(tmp_path / "key")):
            raise AssertionError("it began")


async def test_no_server_is_asked_for_without_an_address_or_where_none_answers() -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.url"):
        validate({"name": "remote"}, SandboxConfig)
    with pytest.raises(ConfigError, match=r"sandbox\.url"):
        await create_remote(SPEC)
    remote.use("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="no sandbox server answers"):
        await sandboxes.Supplier("remote").check(SPEC)
    with pytest.raises(SandboxError, match="ConnectError"):
        await create_remote(SPEC)


@pytest.mark.slow
async def test_more_sandboxes_than_there_are_places_are_refused_until_one_is_given_back() -> None:
    async with served(sandboxes=1, wait=0.05):
        first = await opened_in_time()
        with pytest.raises(SandboxError, match=r"of 1 places: no sandbox .* was free in time \(1 alive\)"):
            await create_remote(SPEC)
        with pytest.raises(SandboxError, match="of 1 places"):
            await first.fork()
        assert (await first.exec("echo still here")).ok
        await first.close()
        second = await opened_in_time()
        await second.close()


async def opened_in_time() -> Sandbox:
    """A sandbox, once a place that was given back is free."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await create_remote(SPEC)
            except SandboxError:
                continue


@pytest.mark.slow
async def test_too_many_bytes_are_refused_and_cost_nothing_else(tmp_path: Path) -> None:
    async with served(request_bytes=100_000, file_bytes=1000):
        sandbox = await create_remote(SPEC)
        with pytest.raises(PathError, match="takes 1000 bytes, not 2000"):
            await sandbox.write("large", b"x" * 2000)
        with pytest.raises(PathError, match="the sandbox server takes 100000 in a request"):
            await sandbox.write("larger", b"x" * 200_000)
        with pytest.raises(InvalidInput, match="limit=5000"):
            await sandbox.exec("true", limit=5000)
        with pytest.raises(InvalidInput, match="timeout"):
            await sandbox.exec("true", timeout=7200)
        await sandbox.exec("head -c 200000 /dev/zero > tree")
        with pytest.raises(PathError, match="too many for an answer"):
            await sandbox.download(".", tmp_path)
        assert (await sandbox.exec("echo fine")).stdout == b"fine\n"
        await sandbox.close()


async def test_a_request_of_another_form_is_refused() -> None:
    app: Any = SandboxServer(SandboxServerConfig(sandbox="subprocess", request_bytes=1000), KEY)
    known = {"authorization": f"Bearer {KEY}", "x-agentrl-client": "c" * 32}

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 500

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box", headers=known) as http:
        for path, content, status in (
            ("1/create", b"x" * 1001, 413),
            ("1/create", chunks(), 413),
            ("1/create", b"nothing", 422),
            ("1/create", msgspec.msgpack.encode({"spec": "{}", "fork_of": "2"}), 422),
            ("1/create", msgspec.msgpack.encode({"spec": '{"image": 1}', "fork_of": None}), 422),
            ("1/exec", b"\x80", 422),
            ("1", b"", 404),
        ):
            assert (await http.post(f"/sandboxes/{path}", content=content)).status_code == status, (path, content)
    assert not app.supplier.pool.counts


@pytest.mark.slow
async def test_a_specification_that_is_weaker_or_larger_than_the_server_gives_is_refused() -> None:
    async with served(allow=["writable_root"]):
        for wrong, word in (
            ({"network": "host"}, "network"),
            ({"user": "0:0"}, "user"),
            ({"egress": ("example.org:443",)}, "egress"),
            ({"daemon": "tcp://10.0.0.1:2375"}, "daemon"),
            ({"runtime": "runc"}, "runtime"),
            ({"writable_root": True, "disk_mb": None}, "disk_mb"),
            ({"memory_mb": 100_000}, "memory_mb=8192 at most"),
        ):
            with pytest.raises(ConfigError, match=word):
                await create_remote(SandboxSpec(**wrong))
        sandbox = await create_remote(SandboxSpec(writable_root=True))
        await sandbox.close()


@pytest.mark.slow
async def test_a_command_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    async with served():
        sandbox = await create_remote(SPEC)
        running = asyncio.ensure_future(sandbox.exec(LONG.format(pid=tmp_path / "pid")))
        number = await begun(tmp_path / "pid")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: not lives(number))
        assert (await sandbox.exec("echo on")).stdout == b"on\n", "the sandbox is not lost with the command"
        await sandbox.close()


CLIENT = """
import asyncio, sys
from agentrl.tools.sandbox.spec import SandboxSpec
from agentrl.tools.sandbox.remote import backend as remote
async def main():
    remote.use(sys.argv[1])
    await (await remote.create_remote(SandboxSpec())).start(sys.argv[2])
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_nothing_is_left_of_a_client_that_was_killed(tmp_path: Path) -> None:
    async with served(lease=1.5) as url:
        command = LONG.format(pid=tmp_path / "pid")
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, url, command)
        number = await begun(tmp_path / "pid")
        client.kill()
        await client.wait()
        await until(lambda: not lives(number))
        assert (await counted(url, "leases_ended", 1))["held"] == 0


@pytest.mark.slow
async def test_a_client_that_lives_keeps_what_it_does_not_use() -> None:
    async with served(lease=3.0) as url:
        sandbox = await create_remote(SPEC)
        await counted(url, "renewals", 4)
        assert (await sandbox.exec("echo here")).stdout == b"here\n"
        await sandbox.close()


@pytest.mark.slow
async def test_a_server_that_is_killed_amid_a_command_is_an_infrastructure_failure(tmp_path: Path) -> None:
    words = ["sandbox", "serve", "sandbox=subprocess", "port=0"]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentrl", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert server.stdout is not None
    line = (await server.stdout.readline()).decode().strip()
    assert line.startswith("sandboxes are served on http://127.0.0.1:")
    remote.use(line.rpartition(" ")[2])
    sandbox = await create_remote(SPEC)
    running = asyncio.ensure_future(sandbox.exec(LONG.format(pid=tmp_path / "pid")))
    number = await begun(tmp_path / "pid")
    server.send_signal(signal.SIGKILL)
    with pytest.raises(SandboxDied, match="the connection to the sandbox server") as failed:
        await running
    assert failed.value.blame is Blame.INFRA
    with pytest.raises(SandboxDied):
        await sandbox.read("x")
    assert not await sandbox.healthy()
    await sandbox.close()
    await server.wait()
    await until(lambda: not lives(number))


@pytest.mark.slow
async def test_a_server_that_began_anew_has_none_of_the_sandboxes() -> None:
    async with served() as url:
        sandbox, other = await create_remote(SPEC), await create_remote(SPEC)
        process = await sandbox.start("sleep 300")
    with pytest.raises(SandboxDied):
        await process.wait(30)
    async with served(port=int(url.rpartition(":")[2])):
        with pytest.raises(SandboxDied, match="does not have it"):
            await other.exec("true")
        await sandbox.close()
        await other.close()


@pytest.mark.slow
async def test_a_sandbox_that_was_given_back_serves_its_next_user_only() -> None:
    async with served():
        sandbox = await create_remote(SPEC)
        assert isinstance(sandbox, RemoteSandbox)
        renewed = sandbox.renewed()
        with pytest.raises(SandboxDied, match="given back"):
            await sandbox.exec("true")
        await sandbox.close()
        await renewed.reset()
        assert (await renewed.exec("ls -A", timeout=60)).stdout == b""
        with pytest.raises(PathError):
            await renewed.exec(["echo", "\ud800"])
        await renewed.close()


@pytest.mark.slow
async def test_a_runs_sandboxes_are_those_of_the_server_that_its_settings_name() -> None:
    async with served() as url:
        sandboxes.configure(validate({"name": "remote", "url": url, "total": 1}, SandboxConfig))
        try:
            supplier = sandboxes.supplier("docker")
            assert (supplier.name, supplier.pool.total) == ("remote", 1)
            await supplier.check(SPEC)
            kept, _ = await supplier.acquire(SPEC)
            assert isinstance(kept, RemoteSandbox)
            await kept.write("left", "x")
            await supplier.release(kept)
            again, _ = await supplier.acquire(SPEC)
            assert (again.id, (await again.exec("ls -A")).stdout) == (kept.id, b""), "emptied, and used again"
            await supplier.release(again)
            await sandboxes.close_all()
            assert (await numbers(url))["held"] == 0
        finally:
            sandboxes.configure(SandboxConfig())


@pytest.mark.slow
async def test_the_server_speaks_https_to_whoever_trusts_its_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = {"tls_certificate": str(tmp_path / "certificate.pem"), "tls_key": str(tmp_path / "key.pem")}
    async with served(**tls) as url:
        with pytest.raises(SandboxError, match="certificate"):
            await create_remote(SPEC)
        remote.use(url, None, str(tmp_path / "ca.pem"))
        sandbox = await create_remote(SPEC)
        assert (await sandbox.exec("echo over TLS")).stdout == b"over TLS\n"
        await sandbox.close()
