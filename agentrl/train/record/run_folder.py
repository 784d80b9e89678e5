"""The run folder: a run's files, and what it resumes from.

    format.json          which format the folder has, and which agentrl wrote it; see `agentrl.common.formats`
    code/                copies of the Python files that settings name; see `kept_code`
    config.yaml          the settings, all of them, defaults included, without secrets
    run.lock             the process that trains here; see `lock`
    faults.jsonl         the faults that a plan injected; see `agentrl.faults`
    model/               the model that the run began with, which its engines and trainer load
    metrics.jsonl        one flat JSON object for each step; tensorboard/ has the same names
    trackers/            what other metrics back ends keep here (`metrics=`); see `trackers`
    starts.jsonl         each process that trained here: its first step, machine, versions and settings
    groups.jsonl         the ledger: what became of each group, one JSON object a line
    seals.jsonl          digests of all that, as it was written; see `seals`
    provenance.jsonl     which weights engines had, and what each step trained with what credit; see `provenance`
    logprobs.db          the trainer's log-probabilities of trained tokens (`record_logprobs`); see `trainer_logprobs`
    matches.jsonl        games against past versions (`policies.NAME=past`), which are in past/step-N/; see `ratings`
    stream.json          which groups are in progress after the last step; see `recorded_steps`
    losses.json          the last version that survived each loss of weights; see `sessions.tree.incarnations`
    sessions.db          every session, token for token
    replays.db           sessions that were played again from one of their turns; see `train.record.replay`
    notes.db             what people wrote about it in the viewer
    checkpoints/step-N/  the model in Hugging Face format, and trainer/ beside it for resuming
    learning_curve.png   the rewards, step by step
    transcripts/         a few conversations before and after

A checkpoint is written beside its final name and renamed, so the model that stands under `checkpoints/` is whole;
its `manifest.json` proves that it still is. Its `trainer/` may come later, where one writes while training goes on:
before that it counts neither as one to resume from nor as one of those that are kept. A resumed run drops the metrics
and the lines of ledger and provenance that lie beyond the step that it continues after: they will be written again,
bit for bit, and sealed again (`seals`).
"""

from __future__ import annotations

import locale
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentrl import faults
from agentrl.common import formats
from agentrl.common.scratch import remove
from agentrl.common.text_encoding import reads_utf8
from agentrl.config import RunConfig, TrainerConfig, yaml_settings
from agentrl.config.secrets import public
from agentrl.envs.data.identity import Identities
from agentrl.errors import AgentRLError, Blame, ConfigError, StoreError
from agentrl.rollout.stream.outcomes import GroupOutcome
from agentrl.train.driver import resuming
from agentrl.train.driver.resuming import ResumedFrom, saved_steps, step_of
from agentrl.train.record import kept_code, ledger, manifest, provenance, ratings, records, trainer_logprobs
from agentrl.train.record.best import remove_superseded
from agentrl.train.record.chain import resume_command
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.files import append, keep_lines, read_metrics, write_atomically
from agentrl.train.record.lock import RunLock
from agentrl.train.record.seals import HELD_OUT, LOSSES, METRICS, SETTINGS, STREAM, Seals, digest, read_losses
from agentrl.train.trackers import TRACKERS, Trackers
from agentrl.train.trackers.base import TrackedRun
from agentrl.train.trackers.tensorboard import TensorBoard

if TYPE_CHECKING:
    from agentrl.train.record.remote_copy import Uploads

Metrics = dict[str, float]


class RunFolder:
    """One run's folder; see the module's docstring for what lies in it.

    Attributes:
        path: the folder.
        config: the settings that the run goes on with.
        resumed: what the run resumes from; None where it begins.
        check_row: is called with each row of metrics before it is written; a rerun compares it with the recorded one.
        uploads: copies each whole checkpoint to object storage.
        trackers: pass each row of metrics.jsonl on.
        data: the identities of the run's data.
        seals: digests of what is written.
    """

    config: RunConfig

    def __init__(self, path: Path) -> None:
        if not reads_utf8():
            raise ConfigError(
                f"Python reads text as {locale.getencoding()} here, and files of runs are UTF-8: set PYTHONUTF8=1 "
                "before Python starts"
            )
        self.path, self.seals = path, Seals(path)
        self.resumed: ResumedFrom | None = None
        self.check_row: Callable[[Mapping[str, float]], None] = lambda row: None
        self.uploads: Uploads | None = None
        self.data: Identities = {}
        try:
            self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"run_dir={str(path)!r} is a file; a run needs a folder") from None
        except OSError as error:
            raise ConfigError(
                f"run_dir={str(path)!r}: can't make that folder: {error.strerror}; name another"
            ) from None
        self.trackers = Trackers(TrackedRun(path), {"tensorboard": TensorBoard})
        self._lock: RunLock | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, again: bool = False, resumable: bool = False) -> RunFolder:
        """A new run's folder, locked; or, `again`, that of an evaluation which another process began.

        `resumable`: a run that is there could be resumed instead.

        Raises:
            ConfigError: there is a run already, or something that a run would write over, or nothing can be written.
        """
        folder = cls(path)
        try:
            if again:
                formats.check_run(path)
            folder._lock = RunLock(path)
            if (path / "config.yaml").exists() and not again:
                resumed = f"{shlex.quote(f'resume={path}')} continues it, " if resumable else ""
                raise ConfigError(f"run_dir={str(path)!r} holds a run already; {resumed}another run_dir starts anew")
            if not again and (found := [name for name in records.WRITTEN if (path / name).exists()]):
                raise ConfigError(f"run_dir={str(path)!r} holds {found[0]}, which a run would write over")
            folder.config = config
            folder._write_settings(folder._yaml())
        except BaseException as error:
            folder.close()
            folder._unmake()
            if isinstance(error, OSError) and not isinstance(error, AgentRLError):
                raise ConfigError(f"run_dir={str(path)!r}: can't write there: {error.strerror}; name another") from None
            raise
        return folder

    @classmethod
    def open(cls, path: Path, config: RunConfig, say: Callable[[str], None]) -> RunFolder:
        """The folder of an existing run, locked, ready to resume from `checkpoint`; `say` displays a line.

        Raises:
            ConfigError: there is no run, another process trains in it, there is nothing to resume from, records of it
                are gone, or a setting can't change.
            NewerFormat: a later agentrl wrote the folder or a checkpoint; nothing was changed.
        """
        saved = resuming.saved_settings(path)
        resuming.check_formats(path)
        folder = cls(path)
        folder.config = config
        try:
            folder._lock = RunLock(path)
            changes = resuming.changes(path, public(saved), public(config))
            rows = folder.metrics()
            done = int(rows[-1]["step"]) if rows else 0
            whole = resuming.whole_checkpoints(path)
            records.check(path, step_of(whole[-1]) if whole else 0, done, LOSSES, say)
            checkpoint = resuming.newest_whole(path, config.steps, done, say)
            folder.resumed = None if checkpoint is None else ResumedFrom(checkpoint, saved)
            if changes:
                say(f"settings changed: {', '.join(changes)}")
            for jump in resuming.rate_jumps(saved, config, step_of(checkpoint) if checkpoint else 0):
                say(f"warning: {jump}")
            for line in kept_code.changes(path, config.model_dump(mode="json")):
                say(line)
            for left in (path / "checkpoints").glob(".step-*"):  # of a process that was killed
                shutil.rmtree(left)
        except BaseException as error:
            folder.close()
            if isinstance(error, OSError) and not isinstance(error, AgentRLError):
                raise ConfigError(f"resume={str(path)!r}: can't write there: {error.strerror}") from None
            raise
        return folder

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint that the run resumes from; None where it begins."""
        return None if self.resumed is None else self.resumed.checkpoint

    def restore(self, start: int = 0) -> None:
        """Restore the folder's state after the step `start`, once all is loaded."""
        self.drop_after(start)
        if self.checkpoint is None or start == step_of(self.checkpoint):
            (self.path / STREAM).unlink(missing_ok=True)  # of steps that are taken otherwise

    def begin(self, start: int, about: Mapping[str, Any]) -> None:
        """Record that a process trains after the step `start`."""
        line = orjson.dumps({"step": start, **about, "sealed": True}) + b"\n"
        settings = self._yaml()
        self.seals.start(start, settings, line, losses=read_losses(self.path), anew=self.checkpoint is None)
        self._write_settings(settings)
        append(self.path / STARTS, line)
        for name in records.EVERY_STEP:  # so that one that is missing was removed, also before the first step's row
            append(self.path / name, b"")

    def discard(self) -> None:
        """Remove all that a new run wrote, and close."""
        self.trackers.close()
        for name in (*records.WRITTEN, "config.yaml", formats.NAME):
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.close()
        self._unmake()

    def _unmake(self) -> None:
        """Remove the folders that were made for the run, unless they hold anything else."""
        if self._made:
            (self.path / "run.lock").unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()

    def _write_settings(self, settings: bytes) -> None:
        """Write what the run goes on with, also where it is resumed; secrets are given anew each time."""
        write_atomically(self.path / formats.NAME, formats.mark_run())
        write_atomically(self.path / SETTINGS, settings)

    def change_trainer(self, trainer: TrainerConfig, step: int) -> None:
        """Write settings of the trainer that changed after a step, while the run goes on."""
        self.config = self.config.model_copy(update={"trainer": trainer})
        settings = self._yaml()
        self.seals.add(step, files={SETTINGS: digest(settings)})
        self._write_settings(settings)

    def settings(self) -> dict[str, Any]:
        """The settings as they are recorded: without secrets; copies of the files that they name are kept."""
        settings = kept_code.restore_names(self.path, public(self.config))
        kept_code.keep(self.path, settings)
        return settings

    def _yaml(self) -> bytes:
        settings = self.settings() | {"resume": None, "accept_changed_data": False}
        return yaml_settings.write(settings).encode()

    # ------------------------------------------------------------------------------------- metrics

    def log(
        self,
        step: int,
        metrics: Mapping[str, float],
        outcomes: Iterable[GroupOutcome] = (),
        sessions: Mapping[str, str] | None = None,
        stream: bytes = b"",
    ) -> None:
        """Append a step's metrics to metrics.jsonl, and pass them on; before it, what a step with a row has.

        Args:
            step: from 1.
            metrics: its row.
            outcomes: what became of groups, for the ledger.
            sessions: digests of theirs.
            stream: the content of stream.json, which is written last.
        """
        row = {"step": step, **metrics}
        self.check_row(row)
        line = orjson.dumps(row) + b"\n"
        ledger.write(self.path, step, outcomes)
        of_stream, of_logprobs = digest(stream) if stream else "", trainer_logprobs.digest(self.path, step)
        files = {trainer_logprobs.NAME: of_logprobs} if of_logprobs else {}
        self.seals.add(step, lines={METRICS: line}, sessions=sessions or {}, stream=of_stream, files=files)
        faults.point("metrics.write")
        append(self.path / METRICS, line)
        self.trackers.pass_on()
        if stream:
            write_atomically(self.path / STREAM, stream)

    def track(self, warn: Callable[[str], None]) -> None:
        """Pass metrics on to the back ends that the settings name; `warn` displays what goes wrong with one."""
        config = self.config
        settings = resuming.flat(public(config))
        kinds = {name: TRACKERS.find(name) for name in config.metrics}
        about = TrackedRun(self.path, config.metrics_project, settings, config.metrics_address)
        self.trackers = Trackers(about, kinds, warn)

    def metrics(self) -> list[Metrics]:
        """Return all rows so far; a torn last line is left out."""
        return read_metrics(self.path / METRICS)

    def drop_after(self, step: int) -> None:
        """Remove rows, lines of ledger and provenance, and seals after `step`, which a resumed run will write again."""
        self.trackers.close()
        for name in (METRICS, ledger.NAME, provenance.NAME, ratings.NAME, HELD_OUT):
            keep_lines(self.path / name, step)  # metrics first: what has no row is left out of account
        trainer_logprobs.drop_after(self.path, step)
        self.seals.drop_after(step)
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)  # event files can't be truncated: write them again
        self.trackers.start_again()

    # --------------------------------------------------------------------------------- checkpoints

    def seal_version(self, step: int, folder: Path) -> None:
        """Seal weights that were kept after `step` steps for later groups to play against."""
        (folder / manifest.NAME).unlink(missing_ok=True)
        manifest.write(folder)
        self.seals.add(step, files={folder.relative_to(self.path).as_posix(): manifest.digests(folder)[0]})

    def save_checkpoint(self, step: int, write: Callable[[Path], None], keep: int, best: str | None = None) -> Path:
        """Write a checkpoint of the state after `step` steps, and remove all but the newest `keep` and the `best`.

        Raises:
            StoreError: it can't be written (the disk is full); those before it stay.
        """
        final = self.path / "checkpoints" / f"step-{step:06d}"
        beside = final.with_name(f".{final.name}.partial")
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
            faults.point("checkpoint.write")
            write(beside)
            manifest.write(beside, {"seal": self.seals.last})
            self.seals.checkpoint(step, final.name, beside)
            faults.point("checkpoint.rename", beside)
        except Exception as error:
            free = shutil.disk_usage(self.path).free >> 20  # before what was written goes
            shutil.rmtree(beside, ignore_errors=True)
            if isinstance(error, AgentRLError) and error.blame is Blame.USER:
                raise
            raise StoreError(f"can't write the checkpoint {final} ({free:,} MiB free there): {error}") from error
        remove(final)
        beside.rename(final)
        faults.point("checkpoint.renamed", final)
        self._seal_late_ones()
        if self.uploads is not None:
            self.uploads.add_newest()
        remove_superseded(self.path, self.checkpoints(), keep, best, self.metrics)
        return final

    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first: one whose trainer is still being written is not whole yet."""
        return resuming.whole_checkpoints(self.path)

    @property
    def warm_start(self) -> Path:
        """The trainer's folder until reinforcement learning has its first checkpoint."""
        return self.path / "checkpoints" / "warm-start"

    def has_saved(self) -> bool:
        """Return whether there is a checkpoint, or a trainer amid its warm start, to go on from."""
        return bool(self.checkpoints() or saved_steps(self.warm_start))

    def _seal_late_ones(self) -> None:
        """Add the trainers that were written during training to the manifests."""
        for path in self.checkpoints():
            if not manifest.has_file(path, "trainer"):
                manifest.write(path)
                self.seals.seal_late()

    def resume_hint(self) -> str:
        """The command that resumes this run, and the step where it will begin; or that which begins a rerun again."""
        if self.config.rerun:
            command = shlex.join(["agentrl", "train", f"rerun={self.config.rerun}", f"run_dir={self.path}-again"])
            return f"a rerun can't be resumed; begin it again with:\n  {command}"
        whole = self.checkpoints()
        imitated = saved_steps(self.warm_start)
        where = "from its beginning (there is no checkpoint yet)"
        if whole:
            where = f"from step {step_of(whole[-1])}"
        elif imitated:
            where = f"from step {imitated} of its warm start"
        return resume_command(self.path, where)

    def close(self) -> None:
        """Flush open files and release the lock; idempotent."""
        with suppress(OSError):  # whole, though the manifest lacks it
            self._seal_late_ones()
        if self.uploads is not None:
            self.uploads.close()
        self.trackers.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
