"""The same gate on the families' published files: `HF_HUB_OFFLINE=0 pytest -m hub`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from agentrl.sessions.renderers.proof.check import ON_PURPOSE, check_renderer
from tests.sessions.renderers.support import tokenizer

PUBLISHED = {
    "smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", ("chat",)),
    "qwen2.5": ("Qwen/Qwen2.5-0.5B-Instruct", ("chat", "tools", "parallel calls")),
    "qwen3": ("Qwen/Qwen3-0.6B", ("chat", "tools", "parallel calls")),
    "qwen3-coder": ("Qwen/Qwen3-Coder-30B-A3B-Instruct", ("chat", "tools", "parallel calls")),
    "llama-3": ("unsloth/Llama-3.2-1B-Instruct", ("chat", "tools")),
    "deepseek-v3": ("deepseek-ai/DeepSeek-V3", ("chat",)),
    "deepseek-v3.1": ("deepseek-ai/DeepSeek-V3.1", ("chat", "tools", "parallel calls")),
    "glm-4.5": ("zai-org/GLM-4.5", ("chat", "tools", "parallel calls")),
    "glm-4.6": ("zai-org/GLM-4.6", ("chat", "tools", "parallel calls")),
    "minimax-m2": ("MiniMaxAI/MiniMax-M2", ("chat", "tools", "parallel calls", "reasoning")),
    "qwen3.5": ("Qwen/Qwen3.5-4B", ("chat", "tools", "parallel calls", "reasoning")),
}
"""Repository, and the kinds of conversation in which our rendering must equal its template, or differ on purpose."""


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> None:
    if "hub" not in request.config.getoption("-m").split():
        pytest.skip("needs a reachable hub; run with -m hub")


@pytest.mark.hub
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("family", PUBLISHED)
def test_the_published_template_is_what_we_write(family: str) -> None:
    from huggingface_hub import snapshot_download

    repository, kinds = PUBLISHED[family]
    folder = snapshot_download(repository, allow_patterns=["tokenizer*", "chat_template*"], etag_timeout=20)
    rows = {row.question: row for row in check_renderer(folder, family, count=100)}
    for kind in kinds:
        row = rows[f"{family} equals the template: {kind}"]
        assert row.answer in ("yes", ON_PURPOSE), row.detail
    assert rows[f"{family} reads back its own tool call"].ok


# ------------------------------------------------------------------------------ a hub on the loopback

SERVED = ("qwen3", "llama-3")
"""Families that a hub of ours serves: that the others equal their templates is `test_conformance`'s to prove."""


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as downloading a repository takes."""

    folders: dict[str, Path]
    commit = "0" * 40

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0]).strip("/").split("/")
        name = "/".join(path[2:4] if path[0] == "api" else path[:2])
        if name not in self.folders:  # the client asks for other things, too
            return self._answer(b"{}", 404)
        if path[:2] == ["api", "models"]:
            sizes = {file.name: file.stat().st_size for file in self.folders[name].iterdir()} | {"model.safetensors": 1}
            if "tree" in path:
                files = [{"type": "file", "path": n, "size": size, "oid": n} for n, size in sizes.items()]
                return self._answer(json.dumps(files).encode())
            siblings = [{"rfilename": file} for file in sizes]
            return self._answer(json.dumps({"id": name, "sha": self.commit, "siblings": siblings}).encode())
        return self._answer((self.folders[name] / path[-1]).read_bytes())

    do_HEAD = do_GET

    def _answer(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def loopback() -> Iterator[str]:
    folders = {}
    for family in SERVED:
        path = tokenizer(family).path
        assert path is not None
        folders[PUBLISHED[family][0]] = path
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Hub,), {"folders": folders}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.mark.slow
def test_the_gate_for_published_files_passes_against_a_hub_on_the_loopback(loopback: str, tmp_path: Path) -> None:
    """What `pytest -m hub` does where a hub is reachable: download, check, compare."""
    fresh = {"HF_ENDPOINT": loopback, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    wanted = " or ".join(f"[{family}]" for family in SERVED)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hub", "-k", wanted, "-p", "no:cacheprovider", __file__]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **fresh}, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.startswith("." * len(SERVED)), done.stdout[-3000:]
    stored = {path.name for path in tmp_path.rglob("snapshots/*/*")}
    assert "tokenizer.json" in stored
    assert "model.safetensors" not in stored
