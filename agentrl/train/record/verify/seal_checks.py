"""A check that each file is as the run wrote it (`train.record.seals`). Nothing but digests is compared here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from agentrl.common import formats
from agentrl.config.policies import PAST
from agentrl.errors import ConfigError, StoreError
from agentrl.sessions.store import digests
from agentrl.train.driver.resuming import step_of
from agentrl.train.record import manifest, seals, trainer_logprobs
from agentrl.train.record.data_identity import STARTS
from agentrl.train.record.files import whole_lines
from agentrl.train.record.seals import FILES, LOSSES, NAME, SETTINGS, STREAM, Checkpoint, Seal, digest
from agentrl.train.record.verify.report import Check, Discrepancy

MODEL = "model"
LOGPROBS = trainer_logprobs.NAME
OTHER = "is not what was written"


@dataclass
class Sealed:
    """The content of a run's seals.

    Attributes:
        run: the folder.
        last: the last step that is recorded to the end.
        seals: those of steps up to `last`.
        lines: the digests of all lines.
        checkpoints: seals of checkpoints, by name.
        sessions: the step, and the digest, of each sealed session.
        evaluations: the steps whose evaluations are sealed.
    """

    run: Path
    last: int
    seals: list[Seal]
    lines: list[str]
    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)
    sessions: dict[str, tuple[int, str]] = field(default_factory=dict)
    evaluations: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        of_evaluation: dict[int, Mapping[str, str]] = {}
        for seal in self.seals:
            if seal.start and seal.start.anew:
                self.sessions.clear()
                self.checkpoints.clear()
                of_evaluation.clear()
            if seal.evaluation:
                for name in of_evaluation.pop(seal.step, {}):
                    self.sessions.pop(name, None)
            if seal.evaluation == "ended":
                of_evaluation[seal.step] = seal.sessions
            self.sessions |= {name: (seal.step, found) for name, found in seal.sessions.items()}
            if seal.checkpoint:
                self.checkpoints.setdefault(seal.checkpoint.name, []).append(seal.checkpoint)
            for name, trainer in (seal.start.late if seal.start else {}).items():
                self.checkpoints.setdefault(name, []).append(Checkpoint(name, "", trainer))
        self.evaluations = set(of_evaluation)

    @property
    def first(self) -> int:
        """The step that a process which seals began after, first of all; later steps have seals."""
        return next((seal.step for seal in self.seals if seal.start), self.last)

    @property
    def whole(self) -> bool:
        """True where the run has been sealed from its beginning on."""
        return any(seal.start.anew for seal in self.seals if seal.start)


def read(run: Path, last: int, check: Check) -> Sealed | None:
    """The seals of a run, and whether each follows from the one before; None where there are none."""
    file = run / NAME
    if not file.exists():
        named = next((path.name for path in sorted((run / "checkpoints").glob("step-*")) if manifest.seal(path)), None)
        if named or seals.has_promised(run):
            check.fault(NAME, f"missing, and {named or STARTS} says that the run has it")
        elif last:
            check.unknown["steps of an agentrl that did not seal what it wrote"] += last
        return None
    try:
        found = seals.read(run)
    except ConfigError as error:
        check.fault(NAME, str(error))
        return None
    check.examined["seals"] = len(found)
    before = ""
    for number, (seal, line) in enumerate(found, 1):
        if seal.before != before:
            what = "does not follow from the line before: one of them was changed, or lines were removed or put in"
            check.fault(f"{NAME}, line {number}, step {seal.step}", what)
            break
        before = line
    return Sealed(run, last, [seal for seal, _ in found if seal.step <= last], [line for _, line in found])


def check_files(sealed: Sealed, folders: list[Path], check: Check) -> None:
    """Compare a run's files with their seals."""
    if not sealed.whole and sealed.first:
        check.unknown["steps of an agentrl that did not seal what it wrote"] += sealed.first
    for name in FILES:
        check.faults += _lines(sealed, name)
    if sealed.seals and not _is(sealed.run / formats.NAME):
        check.fault(formats.NAME, "missing")
    check.faults += [*_small(sealed, SETTINGS), *_small(sealed, LOSSES), *_model(sealed), *_stream(sealed, check)]
    check.faults += [*_versions(sealed, check), *_logprobs(sealed)]
    for folder in folders:
        check.faults += [Discrepancy(f"checkpoints/{folder.name}", what) for what in _checkpoint(sealed, folder, check)]


def _lines(sealed: Sealed, name: str) -> Iterator[Discrepancy]:
    """Faults of a file that grows by lines."""
    whole, at = whole_lines(sealed.run / name) if _is(sealed.run / name) else [], 0
    for number, seal in enumerate(sealed.seals, 1):
        if name not in seal.lines:
            continue
        count, found = seal.lines[name]
        where = f"{name}, step {seal.step}"
        if count > len(whole):
            if number < len(sealed.lines):  # else whoever wrote the last seal was killed before it wrote the line
                yield Discrepancy(where, f"{len(whole)} lines are there, and {count} were written until then")
            return
        if count < at:
            yield Discrepancy(where, f"only {count} of {at} lines were left when the run was resumed")
        elif digest(b"".join(whole[at:count])) != found:
            yield Discrepancy(where, f"line {at + 1}{f' or one up to {count}' if count - at > 1 else ''} {OTHER}")
        at = count
    for number, line in enumerate(whole[at:], at + 1):
        try:
            step = int(orjson.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            step = 0
        if step <= sealed.last and (sealed.whole or step > sealed.first or name == STARTS):
            yield Discrepancy(
                f"{name}, step {step}", f"line {number} has no seal: it was added, or its seal was removed"
            )


def _is(file: Path) -> bool:
    return file.is_file()


def _small(sealed: Sealed, name: str) -> Iterator[Discrepancy]:
    """Faults of a small file that is written whole."""
    file, known, at = sealed.run / name, list[str](), 0
    for number, seal in enumerate(sealed.seals, 1):
        found = seal.files.get(name)
        if seal.start:
            losses = digest(orjson.dumps(seal.start.losses)) if seal.start.losses else ""
            found = seal.start.settings if name == SETTINGS else losses
        if found is not None:
            known, at = [*known[-1:], found], number
    allowed = known if at == len(sealed.lines) else known[-1:]  # the last seal comes before what it is of
    if known and (digest(file.read_bytes()) if _is(file) else "") not in allowed:
        yield Discrepancy(name, "is not what the run's last process wrote" if _is(file) else "missing")


def _model(sealed: Sealed) -> Iterator[Discrepancy]:
    folder, known = sealed.run / MODEL, ""
    for seal in sealed.seals:
        if seal.start:
            if known and seal.start.model != known and not seal.start.replaced:
                what = f"was another model when the process began that trained after step {seal.step}"
                yield Discrepancy(f"{MODEL}/", what)
            known = seal.start.model
        known = seal.files.get(MODEL, known)
    if known and manifest.digests(folder)[0] != known:
        yield Discrepancy(f"{MODEL}/", "its files are not those of the model that the run began with")
    yield from (Discrepancy(f"{MODEL}/", what) for what in _list_unlisted(folder))


def _versions(sealed: Sealed, check: Check) -> Iterator[Discrepancy]:
    """Faults of versions that are kept to be played against; those that nothing meets any more were removed."""
    known = {name: found for seal in sealed.seals for name, found in seal.files.items() if name.startswith(f"{PAST}/")}
    for folder in sorted((sealed.run / PAST).glob("**/step-??????")):
        name = folder.relative_to(sealed.run).as_posix()
        if step_of(folder) > sealed.last:
            continue
        if name not in known:
            check.unknown["versions of an agentrl that did not seal them"] += 1
            continue
        check.examined["versions"] += 1
        if (found := manifest.damage(folder)) or manifest.digests(folder)[0] != known[name]:
            yield Discrepancy(f"{name}/", found or f"{OTHER} after step {step_of(folder)}")
        yield from (Discrepancy(f"{name}/", what) for what in _list_unlisted(folder))


def _logprobs(sealed: Sealed) -> Iterator[Discrepancy]:
    known = {seal.step: seal.files[LOGPROBS] for seal in sealed.seals if LOGPROBS in seal.files}
    for step, digest_ in known.items():
        try:
            found = trainer_logprobs.digest(sealed.run, step)
        except StoreError as error:
            yield Discrepancy(LOGPROBS, str(error))
            return
        if found != digest_:
            yield Discrepancy(f"{LOGPROBS}, step {step}", OTHER if found else "missing")


def _list_unlisted(folder: Path) -> Iterator[str]:
    try:
        yield from (f"{name} is there, and the manifest does not have it" for name in manifest.list_unlisted(folder))
    except (OSError, ValueError, KeyError):
        return  # the manifest is damaged, or the folder was removed meanwhile: the check of files says it


def _stream(sealed: Sealed, check: Check) -> Iterator[Discrepancy]:
    file = sealed.run / STREAM
    known = {seal.step: seal.stream for seal in sealed.seals if seal.stream}
    try:
        data = file.read_bytes()
        step = int(orjson.loads(data)["step"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        yield Discrepancy(STREAM, "is damaged")
        return
    if step > sealed.last or (not sealed.whole and step <= sealed.first):
        return
    check.examined["states of the stream"] += 1
    if known.get(step) != digest(data):
        yield Discrepancy(f"{STREAM}, step {step}", OTHER)


def _checkpoint(sealed: Sealed, folder: Path, check: Check) -> Iterator[str]:
    known = sealed.checkpoints.get(folder.name, [])
    files, trainer = manifest.digests(folder)
    if step_of(folder) > sealed.last or not files:
        return  # it is being written, or damaged, which the check of files says
    if not any(each.files for each in known):
        if sealed.whole or step_of(folder) > sealed.first:
            yield f"no seal is of it: the run did not write it{_other(sealed, files)}"
        else:
            check.unknown["checkpoints of an agentrl that did not seal what it wrote"] += 1
        return
    check.examined["checkpoints"] += 1
    if files not in {each.files for each in known}:
        yield f"its model or run.json {OTHER} after step {step_of(folder)}{_other(sealed, files)}"
    trainers = {each.trainer for each in known} - {""}
    if not trainer or not trainers:
        check.unknown["trainers of checkpoints, which were written later, and have no seal yet"] += 1
    elif trainer not in trainers:
        yield f"its trainer (optimizer, schedule) {OTHER} after step {step_of(folder)}{_other(sealed, trainer)}"
    if (head := manifest.seal(folder)) and head not in sealed.lines:
        yield f"its manifest names a seal that {NAME} does not have"
    yield from _list_unlisted(folder)


def _other(sealed: Sealed, found: str) -> str:
    names = [
        name for name, known in sealed.checkpoints.items() if any(found in (each.files, each.trainer) for each in known)
    ]
    return f"; it is that of {names[0]}" if names else ""


def check_sessions(sealed: Sealed, stored: Mapping[str, str], evaluated: Mapping[int, set[str]], check: Check) -> None:
    """Compare the stored sessions with their seals."""
    check.examined["sessions"] += len(sealed.sessions)
    for name, (step, known) in sealed.sessions.items():
        where = f"step {step}, session {name}"
        if (found := stored.get(name)) is None:
            check.fault(where, "is no longer in the store")
        elif found != known:
            what = digests.differences(known, found)
            check.fault(where, f"{what}: not as the session ended")
    for step in sealed.evaluations:
        for name in sorted(evaluated.get(step, set()) - sealed.sessions.keys()):
            what = "is none of those that were played"
            check.fault(f"evaluation after step {step}, session {name}", what)
