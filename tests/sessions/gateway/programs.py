"""Running other people's programs against a gateway, in an empty home, with a watch on what else they ask for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentrl.sessions.tree import tree
from agentrl.types import Session
from tests.conftest import need
from tests.sessions.gateway.fakes import ScriptedEngine

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).parent / "clients"
IN_CI = {
    *("", "ai_sdk", "node", "instructor", "pydantic_ai", "smolagents"),
    *("google_genai", "strands", "haystack", "mirascope"),
}
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""No telemetry, no updates, nothing that is fetched at the start."""


def installed(name: str) -> Path:
    """The folder of a client's environment; "" is the one that several share.

    Where it is missing, the test fails in CI if it is made there, and is skipped otherwise.
    """
    folder = ROOT / (f".venv-clients-{name}" if name else ".venv-clients")
    there = (folder / "installed").exists()
    if not there and name not in IN_CI:
        pytest.skip(f"no {folder.name}: make clients-all")
    need(there, f"no {folder.name}: make clients")
    return folder


def script(environment: str, program: str, home: Path) -> list[str | Path]:
    """The command that runs one of the programs of `clients/` in its environment; "own" is that of the tests."""
    if environment == "own":
        return [sys.executable, FOLDER / program]
    folder = installed(environment)
    if not program.endswith(".mjs"):
        return [folder / "bin" / "python", FOLDER / program]
    copy = home / program  # its modules are looked for beside it
    copy.write_text((FOLDER / program).read_text())
    (home / "node_modules").symlink_to(folder.resolve() / "node_modules")
    return ["node", copy]


def opencode(home: Path, tokens: int = 2000) -> list[str | Path]:
    """The command of opencode but for what it is to do; it sends temperature 0 and top-p."""
    own_models = {"name": "m", "tool_call": True, "temperature": True, "limit": {"context": 200_000, "output": tokens}}
    options = {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": own_models}}
    given = {"model": "agentrl/m", "small_model": "agentrl/m", "provider": {"agentrl": provider}}
    given["agent"] = {"build": {"temperature": 0, "top_p": 0.9}}
    (home / "opencode.json").write_text(json.dumps({**given, "autoupdate": False, "share": "disabled"}))
    return [installed("opencode") / "node_modules/.bin/opencode", "run"]


def qwen(home: Path, tokens: int = 2000) -> list[str | Path]:
    """The command of Qwen Code but for what it is to do; it sends temperature 0, top-p and a seed."""
    drawn = {"samplingParams": {"temperature": 0, "top_p": 0.9, "seed": 7, "max_tokens": tokens}}
    quiet = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}
    (home / ".qwen").mkdir()
    (home / ".qwen/settings.json").write_text(json.dumps({**quiet, "model": {"generationConfig": drawn}}))
    return [installed("qwen_code") / "node_modules/.bin/qwen", "--auth-type", "openai", "--model", "m", "--yolo"]


@dataclass
class Programs:
    """Runs programs that belong to one session.

    Attributes:
        access: what the gateway told when the session was opened.
        home: the programs' home, and the folder that they work in.
        outside: what they asked of anybody but this machine, each as the proxy was told.
    """

    access: dict[str, str]
    home: Path
    proxy: str
    outside: list[str] = field(default_factory=list)

    async def run(self, *command: str | Path, **more: str) -> tuple[int, str]:
        """A program's exit status and what it printed; `more` is set in its environment."""
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.proxy) | {
            "NO_PROXY": "127.0.0.1,localhost"
        }
        env = {
            **kept,
            **QUIET,
            **proxies,
            **{name.lower(): value for name, value in proxies.items()},
            "HOME": str(self.home),
            "OPENAI_BASE_URL": self.access["base_url"],
            "OPENAI_API_KEY": self.access["api_key"],
            "ANTHROPIC_BASE_URL": self.access["anthropic_base_url"],
            "ANTHROPIC_API_KEY": self.access["api_key"],
            "GOOGLE_GEMINI_BASE_URL": self.access["google_base_url"],
            "GEMINI_API_KEY": self.access["api_key"],
            **more,
        }
        none, pipe, both = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await asyncio.create_subprocess_exec(
            *map(str, command), env=env, cwd=self.home, stdin=none, stdout=pipe, stderr=both
        )
        try:
            async with asyncio.timeout(500):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, out.decode()


@contextlib.asynccontextmanager
async def programs(access: dict[str, str], home: Path) -> AsyncIterator[Programs]:
    """Programs for a session, behind a proxy that refuses and remembers every address but this machine's."""
    outside: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outside.append((await reader.readline()).decode(errors="replace").strip())
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield Programs(access, home, f"http://{host}:{port}", outside)


def saw_what_is_stored(engine: ScriptedEngine, session: Session) -> None:
    """Every path that the engine was given and went on with is stored token for token, and nothing else is."""
    drawn = [[*call.input_ids, *call.turn.token_ids] for call in engine.calls if call.turn]
    assert sorted(drawn) == sorted(tree.path_ids(session, n.id) for n in session.nodes if n.sampled)


def causes(session: Session) -> dict[str, int]:
    """How the turns found their places: the counters but for fields that were passed over."""
    return {
        name.removeprefix("gateway/"): number
        for name, number in session.counters.items()
        if not name.startswith("gateway/ignored/") and name != "gateway/dropped_tokens"
    }


def roots(session: Session) -> Sequence[int]:
    """The nodes that begin a path."""
    return [node.id for node in session.nodes if node.parent is None]
