"""Sixty secrets, where people put them: no file, log, page or message of a run has one, its failures included."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl import tracing
from agentrl.config import RunConfig
from agentrl.config.secrets import HIDDEN, address, command, know, list_hidden, public, scrub, secret_values
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError
from agentrl.overrides import merge_settings, validate
from agentrl.sessions.store.store import Store
from agentrl.train.driver.setup import complete
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import Session, Task
from agentrl.viewer.app import create_app
from tests.collector import Collector, collecting
from tests.command_line import run_agentrl

ADDRESSES = [
    "env.database=postgres://shop:{}@db.internal:5432/shop",
    "env.bucket=https://store.internal/data?X-Amz-Signature={}&X-Amz-Date=20260101",
    "env.blob=https://acct.blob.internal/c?sv=2024&sig={}",
    "env.hook=https://{}@hooks.internal/services",
    "env.search=http://search.internal/v1?api-key={}",
    "env.feed=https://feed.internal/rss#access_token={}",
    "env.redis=redis://:{}@cache.internal:6379/0",
    "env.amqp=amqps://worker:{}@mq.internal/v",
    "env.git=https://oauth2:{}@git.internal/repo.git",
    "env.mirror=https://user%40corp:{}@mirror.internal/simple",
    "env.sse=https://live.internal/sse?ticket={}",
    "env.sql=jdbc:sqlserver://db.internal;user=shop;password={}",
    "env.cdn=//shop:{}@cdn.internal/x",
    "env.matrix=https://m.internal/a;token={}/b",
    "env.sheets=[https://a.internal/?key={},https://b.internal/?code={}]",
    "policies.rival.name=https://llm.internal/v1?subscription-key={}",
    "checkpoint_url=s3://key:{}@bucket/runs",
    "tracing=http://collector.internal:4318?token={}",
]
NAMED = [
    *(f"env.{name}={{}}" for name in ("api_key", "apiKey", "openai_apikey", "hf_token", "PGPASSWORD", "db_pass")),
    *(
        f"env.{name}={{}}"
        for name in ("Cookie", "session_cookie", "access_key", "aws_secret_access_key", "client_secret")
    ),
    *(f"env.{name}={{}}" for name in ("passphrase", "auth", "bearer", "dsn", "connection_string", "pat", "sas", "pwd")),
    "env.headers={Authorization: Bearer {}}",
    "env.extra.headers={X-Trace: {}, Accept: {}}",
    "env.cookies={sid: {}}",
    "env.service.env={MYSQL_PWD: {}, LICENSE: {}}",
    "env.backends=[{token: {}},{password: {}}]",
    "engine.server.api_key={}",
    "api.extra.secret={}",
]
DECLARED = [
    "env.declared={}",
    "env.typed={}",
    "engine.api_key={}",
    "rewards.judge.door={}",
    "rewards.judge.gate={}",
    "rewards.judge.by_name={north: {}, south: {}}",
    "tools.svc.headers={X-Door: {}, Cookie: session={}}",
    "tools.files.env={PGPASSWORD: {}, PLAIN: {}}",
]
COMMANDS = [
    "tools.files.command=python server.py --api-key {} --port 8080",
    "agent=run-agent --token={} -p{} -H 'Cookie: a={}' OPENAI={} postgres://u:{}@db/x ?",
]
PLACES = [*ADDRESSES, *NAMED, *DECLARED, *COMMANDS]
CODE = """
import logging, agentrl, agentrl.tracing
from pydantic import SecretStr
from agentrl.config import RewardConfig
from agentrl.config.secrets import Secret, Secrets
from agentrl.envs.rewards import Reward

class JudgeConfig(RewardConfig):
    door: Secret
    gate: SecretStr
    by_name: Secrets

class Judge(Reward):
    settings = JudgeConfig
    def compute(self, session):
        if session.task.id.endswith("1"):
            raise RuntimeError(f"401: {self.config.door} {self.config.gate.get_secret_value()} {self.config.by_name}")
        return 1.0

class Leaky(agentrl.Env):
    max_turns = 3
    def __init__(self, declared: Secret = "", typed: SecretStr = SecretStr(""), pin: Secret = "", **given): WHAT
    def tasks(self, split="train"): return [{"n": n} for n in range(4)]
    def reset(self, task, *, seed=None):
        self.n = task["n"]
        logging.getLogger("agentrl.leaky").warning("begins with %s", self.told)
        return "look"
    @agentrl.tool
    def look(self) -> str:
        "Look."
        agentrl.tracing.note(told=self.told, pin=f"pin {self.pin} opens")
        raise ValueError(f"refused: {self.told}, pin {self.pin}!")
    @agentrl.tool
    def reach(self) -> str:
        "Reach."
        raise ConnectionResetError(f"gone: {self.told}")
    def expert(self, messages):
        if len(messages) == 1: return self.call("look")
        return self.call("reach") if self.n == 2 else "done"
    @agentrl.reward
    def right(self, session): return 1.0
"""
NAMES = sorted({word.removeprefix("env.").split("=")[0].split(".")[0] for word in PLACES if word.startswith("env.")})
PARAMETERS = "".join(f", {name}=None" for name in NAMES if name not in ("declared", "typed"))
KEPT = ", ".join(name if name != "typed" else "typed.get_secret_value()" for name in NAMES)
PROGRAM = CODE.replace(", **given): WHAT", f"{PARAMETERS}): self.pin, self.told = pin, repr([{KEPT}])")


@dataclass
class Planted:
    """Settings with a secret in each place."""

    words: list[str]
    secrets: list[str]

    @classmethod
    def of(cls, places: Sequence[str]) -> Planted:
        secrets: list[str] = []

        def next_secret() -> str:
            secrets.append(f"pl4nted-{len(secrets):02d}-Zq9Xw7")
            return secrets[-1]

        words = []
        for place in places:
            first, *rest = place.split("{}")
            words.append(first + "".join(next_secret() + part for part in rest))
        return cls(words, secrets)

    def found(self, text: str | bytes) -> list[str]:
        raw = text if isinstance(text, bytes) else text.encode()
        return [secret for secret in self.secrets if secret.encode() in raw]


ALL = Planted.of(PLACES)


def test_there_are_sixty_of_them() -> None:
    assert len(ALL.secrets) >= 60


def of_env(places: Sequence[str]) -> list[str]:
    return [place for place in places if place.startswith(("env.", "rewards."))]


@pytest.fixture
def leaky(tmp_path: Path, in_tmp_path: None, without_pauses: None) -> Path:
    (tmp_path / "leaky.py").write_text(PROGRAM)
    return tmp_path


def test_no_folder_of_a_run_holds_one_and_a_resumption_asks_for_each(leaky: Path) -> None:
    words = [word for word in ALL.words if not word.startswith(("agent=", "engine.server"))]
    given = ["env=leaky.py:Leaky", "engine=sglang", "engine.url=http://host:1", "rewards.judge.name=leaky.py:Judge"]
    more = ["tools.svc.name=openapi", "tools.svc.document=api.json", "tools.files.name=mcp", "agents.other=rival"]
    config = validate(merge_settings([*given, *more, *words, "policies.rival.api.model=m"]), RunConfig)
    factory(config.env.name, **config.env.kwargs)  # which knows what the constructor declares
    folder = RunFolder.create(leaky / "run", config)
    folder.close()
    assert ALL.found(repr(config)) == []
    for file in (leaky / "run").rglob("*"):
        assert not file.is_file() or ALL.found(file.read_bytes()) == [], file
    with pytest.raises(ConfigError, match=r"secrets are not kept in config\.yaml") as asked:
        complete(merge_settings([f"resume={leaky / 'run'}"]))
    assert ALL.found(str(asked.value)) == []
    for word in words:
        assert word.partition("=")[0] in str(asked.value), word
    assert list(list_hidden(public(config)))
    assert set(ALL.found(" ".join(secret_values(config)))) >= set(ALL.found(" ".join(words)))


@pytest.mark.parametrize("place", [*ADDRESSES, *NAMED])
def test_what_is_wrong_with_a_setting_is_said_without_it(place: str) -> None:
    own = Planted.of([place])
    name, _, value = own.words[0].partition("=")
    wrong = f"steps.{name}={value}"
    with pytest.raises(ConfigError) as raised:
        validate(merge_settings(["env=calculator", wrong]), RunConfig)
    assert own.found(str(raised.value)) == []


def test_a_command_keeps_its_program_its_options_and_short_numbers() -> None:
    assert command("server --port 8080 --api-key abcdef -y @scope/pkg") == (
        f"server --port 8080 --api-key {HIDDEN} -y @scope/pkg"
    )
    for line in ("python -m server.main --verbose", "run 'a b.py'  it\\'s", "serve --dir {folder}/x --name={session}"):
        assert command(line) == line
    assert command(command(ALL.words[-1])) == command(ALL.words[-1])


def test_an_address_keeps_its_place() -> None:
    assert address("https://host:8/a/b#part") == "https://host:8/a/b#part"
    assert address("https://u:p@host/a?k=v#t=1") == f"https://{HIDDEN}@host/a?{HIDDEN}#{HIDDEN}"


def test_what_is_known_is_taken_out_longest_first() -> None:
    know(["longer-than-that", "longer-than"])
    assert scrub("a longer-than-that b longer-than") == f"a {HIDDEN} b {HIDDEN}"


def test_a_folder_and_a_store_are_their_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RunFolder.create(tmp_path / "run", validate({"env": "calculator"}, RunConfig)).close()
        with Store(tmp_path / "own.db") as store:
            store.save(Session("s", Task(id="t")))
            files = [
                file for file in tmp_path.iterdir() if file.name.startswith("own.db") and "-count" not in file.name
            ]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


@pytest.mark.slow
def test_a_run_that_fails_in_every_part_says_none(
    leaky: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], collector: Collector
) -> None:
    """A tool refuses with all of them, a reward and a connection fail with them, and the log repeats them."""

    def agentrl(*words: str) -> str:
        run_agentrl(*words)
        said = capfd.readouterr()
        return said.out + said.err

    collector.answers.set()
    given = [word for word in ALL.words if word in set(of_env(ALL.words))]
    (leaky / "server.py").write_text("import sys; print(sys.argv, file=sys.stderr); raise SystemExit(3)")
    (leaky / "api.json").write_text(json.dumps({"openapi": "3.0.0", "paths": {}}))
    first = ("env=leaky.py:Leaky", "policy=expert", "rewards.judge.name=leaky.py:Judge", "eval.tasks=4", "env.pin=k3y7")
    with tracing.export_spans(collector.url, {"agentrl.run": "run"}):
        told = [agentrl("eval", *first, "eval.n=1", "run_dir=run", *given)]
    told.append(agentrl("report", "run"))
    told.append(agentrl("eval", *first, "tools.files.name=mcp", *ALL.words[-10:], "run_dir=other", *given))
    assert (leaky / "run" / "sessions.db").exists(), told[0]
    said = "".join(read(leaky / "run"))
    for part in (f"refused: ['{HIDDEN}", f"gone: ['{HIDDEN}", f"401: {HIDDEN} {HIDDEN} {{'north': '{HIDDEN}'"):
        assert part in said, f"it was not said, or nothing was hidden in it: {part}"
    assert f"pin {HIDDEN}!" in said
    spans = b"".join(body for _, body in collector.bodies)
    assert f"pin {HIDDEN} opens".encode() in spans
    pages = asyncio.run(shown_by_the_viewer(leaky))
    assert sum(f"refused: ['{HIDDEN}" in page for page in pages) >= 2
    texts: list[str | bytes] = [*told, said, spans, *pages]
    assert [found for text in texts for found in found_in(text)] == []
    for file in leaky.rglob("*"):
        assert not file.is_file() or found_in(file.read_bytes()) == [], file


def found_in(text: str | bytes) -> list[str]:
    """The secrets in a text, the short one included."""
    raw = text if isinstance(text, bytes) else text.encode()
    return [*ALL.found(raw), *(["k3y7"] if b"k3y7" in raw else [])]


async def shown_by_the_viewer(folder: Path) -> list[str]:
    """All that the viewer answers about the runs in a folder and their sessions."""
    app = create_app(folder)
    pages = ("runs", "run", "series", "sessions", "facets", "distribution", "timeline", "session", "messages", "tokens")
    with Store(folder / "run" / "sessions.db", read_only=True) as store:
        ids = [session.id for session in store.sessions()]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as viewer:
        given = [{"run": "run", "id": one, "session": one} for one in ids]
        return [(await viewer.get(f"/api/{page}", params=one)).text for page in pages for one in given]


def read(folder: Path) -> Iterator[str]:
    with Store(folder / "sessions.db", read_only=True) as store:
        for session in store.sessions():
            yield from (node.message.text for node in session.nodes)
            yield session.error or ""


def test_a_secret_of_any_type_is_known_as_soon_as_its_section_is_built(leaky: Path) -> None:
    own = Planted.of([place for place in PLACES if place.startswith("rewards.")])
    built: Any = validate(
        merge_settings(["env=calculator", "rewards.judge.name=leaky.py:Judge", *own.words]), RunConfig
    )
    assert built.rewards["judge"].door
    assert own.found(scrub(" ".join(own.secrets))) == []
