"""Tenants: each with a key, and a folder that holds its sessions, runs and samplers."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.train.record.files import write_atomically
from agentrl.train.server.checkpoints import CheckpointInfo, parse_path, read_about
from agentrl.train.server.served_run import RunInfo, ServedRun

PREFIX = "tml-"
"""The beginning that the SDK wants keys to have."""


@dataclass(frozen=True, slots=True)
class SamplerInfo:
    """The weights that a sampling session samples from.

    Attributes:
        sampler_id: its name on the wire.
        base_model: the base, by the name that its client uses.
        folder: the adapter's, from the tenant's; None: the base itself.
        model_path: its path on the wire, where it has one.
    """

    sampler_id: str
    base_model: str
    folder: str | None = None
    model_path: str | None = None


class Tenant:
    """A tenant, with what an earlier server has left of it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        for folder in ("sessions", "runs", "samplers"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        self.key = _own_key(path / "key")
        self.sessions: dict[str, dict[str, Any]] = {
            file.stem: json.loads(file.read_text()) for file in (path / "sessions").glob("[!.]*.json")
        }
        self._heard = {
            session_id: time.monotonic() for session_id, about in self.sessions.items() if not about["finished"]
        }
        self.runs: dict[str, ServedRun] = {}
        for file in sorted((path / "runs").glob("*/run.json")):
            run = ServedRun.open(file.parent)
            self.runs[run.info.model_id] = run
        self.samplers: dict[str, SamplerInfo] = {}
        for file in (path / "samplers").glob("[!.]*.json"):
            sampler = SamplerInfo(**json.loads(file.read_text()))
            self.samplers[sampler.sampler_id] = sampler

    def open_session(self, about: dict[str, Any]) -> str:
        """Keep a new session; returns its id."""
        session_id = str(uuid.uuid4())
        self.set_session(session_id, {**about, "created": time.time(), "finished": False})
        self._heard[session_id] = time.monotonic()
        return session_id

    def set_session(self, session_id: str, about: dict[str, Any]) -> None:
        """Keep what is known of a session."""
        write_atomically(self.path / "sessions" / f"{session_id}.json", json.dumps(about).encode())
        self.sessions[session_id] = about

    def session(self, session_id: str) -> dict[str, Any]:
        """Return an open session."""
        if session_id not in self.sessions:
            raise ApiError(404, f"session {session_id!r} is not known here", "not_found")
        if self.sessions[session_id]["finished"]:
            raise ApiError(410, f"session {session_id!r} has finished", "session_closed")
        self._heard[session_id] = time.monotonic()
        return self.sessions[session_id]

    def finish(self, session_id: str) -> None:
        """End a session; its checkpoints can be loaded."""
        self.set_session(session_id, {**self.session(session_id), "finished": True})
        self._leave(session_id)

    def leave_silent(self, seconds: float) -> None:
        """Keep the runs of sessions of which nothing was heard for so long on the disk alone; they may go on."""
        for session_id, heard in list(self._heard.items()):
            if heard < time.monotonic() - seconds:
                self._leave(session_id)

    def _leave(self, session_id: str) -> None:
        self._heard.pop(session_id, None)
        for run in self.runs_of(session_id):
            if not run.waiting:
                run.rewind()

    def runs_of(self, session_id: str) -> list[ServedRun]:
        """Return a session's runs."""
        return [run for run in self.runs.values() if run.info.session_id == session_id]

    @property
    def open_runs(self) -> int:
        """The number of runs of sessions that are open, and not left."""
        return sum(run.info.session_id in self._heard for run in self.runs.values())

    @property
    def queued(self) -> int:
        """The number of requests that wait or are computed."""
        return sum(len(run.waiting) for run in self.runs.values())

    def run(self, model_id: str) -> ServedRun:
        """Return a training run."""
        if model_id not in self.runs:
            raise ApiError(404, f"training run {model_id!r} is not known here", "not_found")
        return self.runs[model_id]

    def create_run(self, info: RunInfo) -> ServedRun:
        """Make a run, or return the one that an earlier request of the same number has made."""
        if info.model_id not in self.runs:
            path = self.path / "runs" / _file_name(info.model_id)
            self.runs[info.model_id] = ServedRun.create(path, info)
        return self.runs[info.model_id]

    def sampler(self, sampler_id: str) -> SamplerInfo:
        """Return a sampling session."""
        if sampler_id not in self.samplers:
            raise ApiError(404, f"sampling session {sampler_id!r} is not known here", "not_found")
        return self.samplers[sampler_id]

    def keep_sampler(self, sampler: SamplerInfo) -> None:
        """Keep a sampling session."""
        file = self.path / "samplers" / f"{_file_name(sampler.sampler_id)}.json"
        write_atomically(file, json.dumps(asdict(sampler)).encode())
        self.samplers[sampler.sampler_id] = sampler

    def checkpoint(self, path: str) -> tuple[Path, CheckpointInfo]:
        """Return the folder of saved weights, and what is known of them."""
        run_id, kind, name = parse_path(path)
        folder = self.run(run_id).path / kind / name
        about = read_about(folder)
        if about is None:
            raise ApiError(404, f"{path}: there are no such weights, or they have expired", "not_found")
        return folder, about


class Tenants:
    """All tenants of a server, by their keys."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.all = [Tenant(name, folder / name) for name in names]

    def with_key(self, key: str) -> Tenant:
        """Return the tenant whose key it is."""
        found = None
        for tenant in self.all:  # all of them are compared, so that the time says nothing
            if hmac.compare_digest(tenant.key.encode(), key.encode()):
                found = tenant
        if found is None:
            raise ApiError(401, "the key (X-API-Key) is no tenant's of this server", "invalid_api_key")
        return found


def _file_name(identity: str) -> str:
    return identity.replace(":", "_")


def _own_key(file: Path) -> str:
    """A tenant's key, in a file that its owner alone can read."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as new:
            new.write(f"{PREFIX}{secrets.token_urlsafe(24)}")
            new.flush()
            os.fsync(descriptor)
    key = file.read_text().strip()
    if not key.startswith(PREFIX) or len(key) < 24:
        raise ConfigError(f"{file} holds no key; remove it, and the server makes another")
    return key
