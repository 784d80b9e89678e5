"""Copies of a run's checkpoints in object storage, which another machine resumes from (`checkpoint_url`).

A copy is all that a resumed run needs: the checkpoint, the model that the run began with, its settings, metrics and
ledger, and the session store. Under the URL lie

    model/…                  the model that the run began with, once
    step-000020/run/…        settings, metrics, ledger, sessions.db: as they were when the checkpoint was whole
    step-000020/checkpoint/… the checkpoint's files; a model in Hugging Face format
    step-000020.json         the copy's files and their sizes

Object storage renames nothing, so the last file makes the copy: it is written when all others are there, and removed
before they are. The local copy is made at once, by hard links and SQLite's backup; a thread uploads it while training
goes on, and a newer one replaces one that still waits. No upload stops a run: one that fails is told and tried again
with the next checkpoint. Protocols are those of fsspec (s3, gs, abfs, sftp, file …), each with its own package and
credentials.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.common import formats
from agentrl.common.scratch import write_folder
from agentrl.config.sections import named_folder
from agentrl.errors import ConfigError
from agentrl.train.display.console import Display
from agentrl.train.driver import resuming
from agentrl.train.driver.resuming import step_of
from agentrl.train.record import kept_code, provenance, ratings, seals
from agentrl.train.record.seals import HELD_OUT, LOSSES, STREAM

RUN_FILES = (
    *("config.yaml", formats.NAME, "starts.jsonl", STREAM, LOSSES),
    *(provenance.NAME, "groups.jsonl", "metrics.jsonl", ratings.NAME, seals.NAME, HELD_OUT),
)
STORE = "sessions.db"
STAGED = ".uploading"
STEP = re.compile(r"step-(\d+)(?:\.json)?")


class Storage:
    """Files under a URL.

    Raises:
        ConfigError: it is no URL, its protocol is unknown, or the protocol's package isn't installed.
    """

    def __init__(self, url: str, field: str) -> None:
        if "://" not in url:
            raise ConfigError(f"{field}={url!r} is no URL, such as s3://bucket/runs/name or file:///folder/name")
        from fsspec.core import url_to_fs

        self.url, self.field = url.rstrip("/"), field
        try:
            self.files, self.root = url_to_fs(self.url, use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{field}={url}: {error}") from None
        except Exception as error:  # some connect at once
            raise ConfigError(f"{field}={url}: can't be reached: {type(error).__name__}: {error}") from error

    def steps(self) -> list[int]:
        """The steps of complete copies, ascending."""
        return sorted(step for name, step in self._names().items() if name.endswith(".json"))

    def _names(self) -> dict[str, int]:
        """The names of copies and of their indices, with their steps."""
        try:
            names = [PurePosixPath(path).name for path in self.files.ls(self.root, detail=False)]
        except FileNotFoundError:
            return {}
        except Exception as error:  # each protocol has its own
            raise ConfigError(f"{self.field}={self.url}: can't read there: {type(error).__name__}: {error}") from error
        return {name: int(found[1]) for name in names if (found := STEP.fullmatch(name))}

    def try_writing(self) -> None:
        """Write and remove a small file."""
        probe = f"{self.root}/.agentrl-probe"
        try:
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(probe, b"written")
            self.files.rm_file(probe)
        except Exception as error:
            raise ConfigError(f"{self.field}={self.url}: can't write there: {type(error).__name__}: {error}") from error

    def index(self, step: int) -> dict[str, int]:
        """A complete copy's files, by their names under the URL, and their sizes in bytes."""
        index = json.loads(self.files.cat_file(f"{self.root}/{_name(step)}.json"))
        formats.RUN.check(index, f"{self.field}={self.url}")
        files: dict[str, int] = index["files"]
        return files

    def put(self, source: Path, name: str) -> None:
        path = f"{self.root}/{name}"
        self.files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self.files.put_file(str(source), path)

    def get(self, name: str, target: Path, size: int) -> None:
        """Download one file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.files.get_file(f"{self.root}/{name}", str(target))
        except FileNotFoundError:
            raise ConfigError(f"{self.field}={self.url}: {name} is missing there") from None
        if (found := target.stat().st_size) != size:
            raise ConfigError(f"{self.field}={self.url}: {name} has {found:,} bytes, not {size:,}")

    def commit(self, step: int, files: dict[str, int]) -> None:
        """Make a copy complete."""
        index = json.dumps({**formats.RUN.mark(), "files": files}, indent=1)
        self.files.pipe_file(f"{self.root}/{_name(step)}.json", index.encode())

    def prune(self, keep: Sequence[int]) -> None:
        """Remove all copies but those of these steps, their indices first, and what uploads left that did not end."""
        gone = [name for name, step in self._names().items() if step not in keep]
        for name in sorted(gone, key=lambda name: not name.endswith(".json")):
            self.files.rm(f"{self.root}/{name}", recursive=True)


class Uploads:
    """Uploads the checkpoints of a run, one at a time, in a thread of its own.

    Raises:
        ConfigError: nothing can be written there, or it holds copies that this run does not continue.
    """

    def __init__(self, run: Path, url: str, keep: int, timeout: float, warn: Callable[[str], None]) -> None:
        self.storage = Storage(url, "checkpoint_url")
        self._keep, self._timeout = keep, timeout
        self._run, self._warn = run, warn
        self._copied = -1
        self._refuse_another_run()
        self.storage.try_writing()
        shutil.rmtree(run / STAGED, ignore_errors=True)  # of a process that was killed
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._busy = self._closed = False
        threading.Thread(target=self._work, name="checkpoint-upload", daemon=True).start()

    def _refuse_another_run(self) -> None:
        newest = max(self.storage.steps(), default=None)
        own = max(map(step_of, resuming.whole_checkpoints(self._run)), default=None)
        if newest is not None and (own is None or newest > own):
            here = "this run is new" if own is None else f"{self._run} is at step {own}"
            raise ConfigError(
                f"checkpoint_url={self.storage.url} holds step {newest} of a run, and {here}; "
                f"resume={self.storage.url} continues that one, another checkpoint_url keeps both"
            )

    def add_newest(self) -> None:
        """Upload the newest whole checkpoint, with the run's files as they are now, unless that was done."""
        newest = next(reversed(resuming.whole_checkpoints(self._run)), None)
        if newest is None or step_of(newest) <= self._copied:
            return
        self._copied = step_of(newest)
        try:
            staged = self._stage(newest)
        except (OSError, sqlite3.Error) as error:
            return self._warn(f"{newest.name} is not copied to {self.storage.url}: {type(error).__name__}: {error}")
        with self._changed:
            replaced, self._waiting = self._waiting, staged
            self._changed.notify_all()
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def _stage(self, checkpoint: Path) -> Path:
        """A copy in the run's folder, which later steps don't change."""
        staged = self._run / STAGED / checkpoint.name
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(checkpoint, staged / "checkpoint", copy_function=_link)
        (staged / "run").mkdir()
        for name in RUN_FILES:
            with suppress(FileNotFoundError):
                shutil.copyfile(self._run / name, staged / "run" / name)
        if (code := self._run / kept_code.FOLDER).exists():
            shutil.copytree(code, staged / "run" / kept_code.FOLDER)
        with (
            closing(sqlite3.connect(self._run / STORE)) as store,
            closing(sqlite3.connect(staged / "run" / STORE)) as copy,
        ):
            store.backup(copy)
        return staged

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until nothing is being uploaded, nor waits for it; False where that takes more seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and self._waiting is None, timeout)

    def close(self) -> None:
        """Upload the newest checkpoint, unless that was done, and wait; a line says so where that takes too long."""
        self.add_newest()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.wait_until_idle(self._timeout):
            shutil.rmtree(self._run / STAGED, ignore_errors=True)
        else:
            self._warn(
                f"the newest checkpoint is not wholly at {self.storage.url} after {self._timeout:g} s "
                "(checkpoint_url_timeout); the copies that are complete there stay"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                staged, self._waiting, self._busy = self._waiting, None, True
            try:
                self._upload(staged)
            except Exception as error:
                self._copied = -1
                self._warn(
                    f"{staged.name} was not uploaded to {self.storage.url}: {type(error).__name__}: {error}; "
                    "that is tried again with the next checkpoint, and when the run ends"
                )
            finally:
                shutil.rmtree(staged, ignore_errors=True)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _upload(self, staged: Path) -> None:
        step, files = step_of(staged), {}
        before = self.storage.steps()
        if step in before:
            return  # a resumed run's own
        model = self.storage.index(before[-1]) if before else {}
        for name, source in _files(self._run / "model", "model"):
            files[name] = source.stat().st_size
            if model.get(name) != files[name]:
                self.storage.put(source, name)
        for name, source in _files(staged, staged.name):
            files[name] = source.stat().st_size
            self.storage.put(source, name)
        self.storage.commit(step, files)
        self.storage.prune([*before, step][-self._keep :])


def download_resumed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A resumed run's settings, with the folder that its `resume=URL` was downloaded to."""
    url = str(settings["resume"])
    if "://" not in url:
        return dict(settings)
    run = Path(named_folder(settings, "run_dir") or Path("runs") / url.rstrip("/").rpartition("/")[2])
    others = {name: value for name, value in settings.items() if name != "run_dir"}
    return {**others, "resume": str(fetch(url, run, Display().say))}


def fetch(url: str, run: Path, say: Callable[[str], None]) -> Path:
    """Download the newest complete copy as a run's folder.

    Raises:
        ConfigError: there is no complete copy, a file of it is missing, or `run` is there.
    """
    storage = Storage(url, "resume")
    if run.exists():
        there = f"{run} is there; {shlex.quote(f'resume={run}')} continues it"
        raise ConfigError(f"resume={url}: {there}, run_dir=… downloads elsewhere")
    if not (steps := storage.steps()):
        raise ConfigError(f"resume={url}: no complete copy of a run there (step-….json is missing)")
    step, files = steps[-1], storage.index(steps[-1])
    say(f"downloading step {step} from {url} to {run} ({sum(files.values()) >> 20:,} MiB)")
    with write_folder(run) as beside:
        for name, size in files.items():
            storage.get(name, _inside(beside, _local(name, step), url), size)
    return run


def _local(name: str, step: int) -> str:
    """A file's place in a run's folder, by its name under the URL."""
    part, _, rest = name.removeprefix(f"{_name(step)}/").partition("/")
    return {"run": rest, "checkpoint": f"checkpoints/{_name(step)}/{rest}"}.get(part, name)


def _inside(folder: Path, name: str, url: str) -> Path:
    """A path below a folder; what was downloaded may not name another one."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"resume={url}: a copy's file may not be named {name!r}")
    return folder / path


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield f"{prefix}/{file.relative_to(folder).as_posix()}", file


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
