"""The verification of a chain: each of its stages as the run that it is, and that each begins with another's result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.train.record import chain, manifest
from agentrl.train.record.chain import ChainRecord, StageEnd, StageKind, StageState
from agentrl.train.record.verify.report import Check, Discrepancy, Report
from agentrl.train.record.verify.run_checks import verify


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The reports of a chain's stages, and the one of the chain itself."""

    stages: dict[str, Report]
    whole: Report

    @property
    def passed(self) -> bool:
        """True where nothing contradicts the record."""
        return self.whole.passed and all(report.passed for report in self.stages.values())

    @property
    def verdict(self) -> str:
        """PASS or FAIL."""
        return "PASS" if self.passed else "FAIL"

    def json(self) -> dict[str, Any]:
        """Return the reports as JSON."""
        stages = {name: report.json() for name, report in self.stages.items()}
        return {**self.whole.json(), "verdict": self.verdict, "stages": stages}

    def lines(self) -> Iterator[str]:
        """Yield what follows the chain's own table: its faults, then the verdict."""
        failed = [name for name, report in self.stages.items() if not report.passed]
        yield from (f"stage {name} does not verify" for name in failed)
        yield from [*self.whole.lines()][:-1]
        yield f"{self.verdict}: {self.whole.run}, {len(self.stages)} stages, {self.whole.steps} steps"


def verify_chain(path: Path, *, weights: bool = False, trust: bool = False) -> ChainReport:
    """Check each stage that has begun, and the chain's manifest against them."""
    record = chain.read(path)
    begun = [each.name for each in record.stages if (record.folder(each.name) / "config.yaml").exists()]
    stages = {name: verify(record.folder(name), weights=weights, trust=trust) for name in begun}
    results = Check("results", "each stage that is done is there, with the settings and the result that it ended with")
    starts = Check("starts", "each stage began with what other stages ended with")
    for each in record.stages:
        if each.state is StageState.DONE:
            results.examined["stages"] += 1
            results.faults += [Discrepancy(f"stage {each.name}", what) for what in _wrong_result(record, each.name)]
        if each.start is not None and each.name in begun:
            starts.examined["stages"] += 1
            starts.faults += [Discrepancy(f"stage {each.name}", what) for what in _wrong_start(record, each.name)]
            if each.start.stage is None:
                starts.told.append(f"stage {each.name} began with model={each.start.model}, which is no stage's")
    return ChainReport(stages, Report(path, sum(report.steps for report in stages.values()), [results, starts]))


def _wrong_result(record: ChainRecord, name: str) -> Iterator[str]:
    """Return what is wrong with the result of a stage that is done."""
    found = record.stage(name)
    folder = record.folder(name)
    if found is None or found.end is None or not (folder / "config.yaml").exists():
        yield "it is done, and its folder or its result is missing"
        return
    end: StageEnd = found.end
    if chain.config_hash(folder) != end.config:
        yield "config.yaml is not what the stage ended with"
    if chain.output_digest(folder / end.model) != end.weights:
        other = "is other" if found.kind is StageKind.REJECT else "has other weights"
        yield f"{end.model} is missing, or {other} than the stage ended with"


def _wrong_start(record: ChainRecord, name: str) -> Iterator[str]:
    """Return what is wrong with what a stage began with; a model of no stage has nothing to be compared with."""
    stages = [each.name for each in record.stages]
    found = record.stage(name)
    start = found.start if found else None
    if start is None:
        return
    for path, digest in start.read.items():
        if chain.output_digest(record.path / path) != digest:
            yield f"{path} is missing, or other than when it read it"
    if start.stage is None:
        return
    source = record.stage(start.stage)
    if source is None or source.end is None or stages.index(start.stage) >= stages.index(name):
        yield f"it began with the result of {start.stage}, which is no stage before it that is done"
        return
    whole = f"{source.name}/{source.end.model}"
    if start.model == whole and start.weights != source.end.weights:
        yield f"it began with other weights than those that {source.name} ended with"
    trains = found is not None and found.kind is StageKind.TRAIN  # any other has no copy of the model
    if trains and manifest.weights(record.folder(name) / "model") != start.weights:
        yield f"its model/ has other weights than {start.model}, with which it began"
