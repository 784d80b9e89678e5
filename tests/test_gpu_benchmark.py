"""`make gpu` on a CPU: each part that needs no GPU runs in its small form, to be right at the first try on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_that_needs_no_gpu_runs_on_a_cpu_in_a_small_form(tmp_path: Path) -> None:
    """Here in one process; those of their own, which cost seconds each, are the next test's."""
    for part in gpu.PARTS:
        if not part.gpu:
            (tmp_path / part.name).mkdir()
            assert gpu.run_part(part.name, "cpu", True, tmp_path / part.name) == 0
            figures = [json.loads(line) for line in (tmp_path / part.name / "figures.jsonl").read_text().splitlines()]
            assert figures, part.name
            assert all(figure["ok"] is not False for figure in figures), (part.name, figures)
            assert any(figure["wanted"] for figure in figures), f"{part.name} has no row with a bound"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parts of the test's own, beside the real ones: these are namespace packages."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (tmp_path / "benchmarks" / "gpu_parts").mkdir(parents=True)
    return tmp_path / "benchmarks" / "gpu_parts"


@pytest.mark.slow
def test_a_rehearsal_prints_rows_with_baseline_and_bound_and_no_value_and_writes_no_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bounded.py").write_text("def run(report):\n    report.above('w', 17.0, 2, judged=False)\n")
    (folder / "unbounded.py").write_text("def run(report):\n    report.add('x', 17.0)\n")
    out = ["--out", str(tmp_path / "out")]
    assert gpu.main(["rehearse", *out], [gpu.Part("bounded", "", "rows", 1, rivals="theirs: 3")]) == 0
    told = capsys.readouterr().out
    assert "bounded (), against rows: done" in told
    assert "w: not measured: GPU   (wanted: at least 2)" in told
    assert "published by others: theirs: 3" in told
    assert "17" not in told
    assert not (tmp_path / "out").exists()
    assert gpu.main(["rehearse", *out], [gpu.Part("unbounded", "", "rows", 1)]) == 1
    assert "not ready: unbounded" in capsys.readouterr().out


@pytest.mark.slow
def test_parts_run_in_processes_and_what_needs_a_gpu_or_has_no_time_is_skipped_and_said_to_be(tmp_path: Path) -> None:
    run("--device", "cpu", "--small", "--seconds", "800", "--out", str(tmp_path), "--parts", "head,servers")
    results = {result["part"]: result for result in json.loads((tmp_path / "results.json").read_text())}
    assert list(results) == ["head", "servers"]
    assert results["head"]["ended"] == "done"
    assert results["head"]["figures"]
    assert all(figure["ok"] is not False for figure in results["head"]["figures"])
    assert results["servers"]["ended"] == "skipped: it needs a GPU"
    assert (tmp_path / "table.md").read_text().startswith("| part |")


@pytest.mark.slow
def test_a_part_without_time_is_skipped_and_said_to_be(tmp_path: Path) -> None:
    told = run("--device", "cpu", "--small", "--seconds", "1", "--parts", "head,mfu", "--out", str(tmp_path))
    assert told.count("skipped: no time was left") == 2


@pytest.mark.slow
def test_an_unknown_part_is_refused_with_those_that_there_are() -> None:
    told = run("--parts", "haed", code=2)
    assert "--parts=haed" in told
    assert "forests, speed" in told


@pytest.mark.parametrize(
    ("ending", "ended"), [("raise ValueError", "failed with exit code 1"), ("time.sleep(600)", "stopped after its")]
)
@pytest.mark.slow
def test_a_part_that_fails_or_hangs_keeps_the_figures_it_had(
    ending: str, ended: str, folder: Path, tmp_path: Path
) -> None:
    (folder / "planted.py").write_text(f"import time\ndef run(report):\n    report.add('w', 1.0)\n    {ending}\n")
    for seconds in ("600",) if "raise" in ending else ("10", "40", "160"):  # a busy machine begins late
        given = ["--device", "cpu", "--parts", "planted", "--seconds", seconds, "--out", str(tmp_path / seconds)]
        assert gpu.main(given, [gpu.Part("planted", "", "", 1)]) == 1
        (result,) = json.loads((tmp_path / seconds / "results.json").read_text())
        assert result["ended"].startswith(ended)
        if result["figures"]:
            break
    assert [figure["what"] for figure in result["figures"]] == ["w"]
