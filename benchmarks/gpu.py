"""What no CPU can show, on one NVIDIA GPU, in under nine minutes: `make gpu`, or `python -m benchmarks.gpu`.

In order of worth: FlexAttention forests equal to paths and their speed against rows; Megatron-core on forests; the
local engine; learning; the chunked head; memory and model FLOPs utilisation (MFU) of 0.6 B and 4 B shapes; weights by
CUDA IPC; SGLang and vLLM with colocated sleep and wake, where they are installed.

Each part is a process of its own with a time limit of its own (on a CPU only the whole is limited), and writes each
figure as it has it: a part that fails or runs out of time loses only what it had not measured yet. Figures are ratios
or errors against a baseline that the same part measures. They go to `--out` as JSON and as a table in Markdown.

It runs from the bare checkout with any Python 3.11+ that has torch and transformers, and offline. What else is missing
there comes from a folder of wheels beside the checkout's own files: `python -m benchmarks.gpu --fetch 3.12` fills
`.wheels` for that version of Python (some 10 MB), on a machine with the package index. Models are random, in the
shapes of the real ones. `--small` is the same on small shapes, which a CPU runs in a minute or two.

`make gpu GPU=rehearse` is that on a CPU, to be ready for a GPU: each part has to run to its end, right where it
compares numbers, and to have a row with a bound. Rows are printed with their baseline and bound and "not measured:
GPU" in place of values, and no table is written.

    python -m benchmarks.gpu [--parts forests,mfu] [--seconds 520] [--out gpu-results] [--device cuda|cpu] [--small]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / ".wheels"
NEEDED = [
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "pydantic",
    "orjson",
    "yaml",
    "docstring_parser",
    "httpx",
    "msgspec",
]
"""Modules without which no part runs."""
REHEARSAL = 1800.0
"""Seconds that a part may take on a busy CPU."""
CARRIED = ("pydantic", "orjson", "docstring-parser", "msgspec"), ("megatron-core==0.16.1",)
"""What a Python with torch and transformers often lacks: taken with what they depend on, and without."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement.

    Attributes:
        name: its module in `benchmarks.gpu_parts`.
        about: what it shows.
        baseline: what its figures are compared with, measured in the same part.
        seconds: its time limit.
        needs: modules without which it is skipped.
        gpu: it calls what only a GPU has.
        rivals: figures that others publish, for scale: other machines and models.
    """

    name: str
    about: str
    baseline: str
    seconds: float
    needs: tuple[str, ...] = ()
    gpu: bool = False
    rivals: str = ""


RATES = "NeMo-RL, 30B-A3B: 1,414 tokens/s/GPU on H100, 1,910 on GB200"
PARTS = (
    Part("forests", "forests equal paths, forward and backward", "transformers' eager attention on rows", 110),
    Part("speed", "a forest against rows", "the same trainer on rows", 60),
    Part("megatron", "Megatron-core on forests", "the torch trainer", 100, ("megatron.core",)),
    Part("engine", "the local engine's tokens and speed", "transformers' generate()", 90, rivals=RATES),
    Part("learning", "calculator and a SmolLM2 shape learn", "their own first step", 180),
    Part("head", "the chunked language-model head", "materialised logits", 30),
    Part("mfu", "MFU and memory of 0.6 B and 4 B shapes", "a matrix product's rate", 120, rivals="prime-rl: 36 % MFU"),
    Part(
        *("ipc", "weights by CUDA IPC", "a copy to the host", 30),
        rivals="published publications: 4 B in 0.07 to 0.15 s, 30 B in 0.5 s",
    ),
    Part("servers", "SGLang and vLLM; colocated sleep and wake", "the trainer", 240, gpu=True, rivals=RATES),
)


def main(argv: Sequence[str] | None = None, known: Sequence[Part] = PARTS) -> int:
    """Run the parts; returns 1 if a figure misses its bound or a part failed, 2 if there was nothing to run on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default=",".join(part.name for part in known), help="which, separated by commas")
    parser.add_argument("--seconds", type=float, default=520.0, help="for everything")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-results", help="a folder for results.json and table.md")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small shapes")
    parser.add_argument("--fetch", metavar="PYTHON", help="fill .wheels for that version of Python (3.12), and stop")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # this process is the part
    parser.add_argument("mode", nargs="?", choices=("rehearse",), help="all on a CPU, and no table")
    given = parser.parse_args(argv)
    if given.fetch:
        return fetch(given.fetch)
    if given.part:
        return run_part(given.part, given.device, given.small, given.out)
    names = given.parts.split(",")
    unknown = [name for name in names if name not in {part.name for part in known}]
    if unknown:
        parser.error(f"--parts={unknown[0]}: there is no such part; the parts are {', '.join(p.name for p in known)}")
    rehearsed = given.mode is not None
    with tempfile.TemporaryDirectory(prefix="agentrl-gpu-") as scratch:
        if rehearsed:
            given.device, given.small, given.seconds, given.out = "cpu", True, REHEARSAL, Path(scratch) / "out"
        environment = with_wheels(Path(scratch))
        missing = [name for name in NEEDED if not available(name, environment)]
        if missing:
            print(f"{sys.executable} lacks {', '.join(missing)}: install them, or see --fetch in benchmarks/gpu.py")
            return 2
        if given.device == "cuda" and not cuda(environment):
            print("no GPU here (torch.cuda.is_available() is False): nothing was measured; --device cpu tries the rest")
            return 2
        chosen = [part for part in known if part.name in names]
        return rehearse(chosen, given, environment) if rehearsed else run_all(chosen, given, environment)


def rehearse(parts: Sequence[Part], given: argparse.Namespace, environment: dict[str, str]) -> int:
    """Run each part on a CPU and print its rows without values; returns 1 if one is not ready for a GPU."""
    given.out.mkdir()
    bad = []
    for part in parts:
        figures: list[dict[str, Any]] = []
        absent = [name for name in part.needs if not available(name, environment)]
        ended = f"{absent[0]} is not installed here" if absent else "only imported" if part.gpu else ""
        if part.gpu:
            importlib.import_module(f"benchmarks.gpu_parts.{part.name}")
        elif not absent:
            figures, ended = in_a_process(part, given, environment, given.seconds)
        print(f"\n{part.name} ({part.about}), against {part.baseline}: {ended}")
        for figure in figures:
            print(f"  {figure['what']}: not measured: GPU   (wanted: {figure['wanted'] or 'no bound'})", flush=True)
        if not figures:
            print("  not measured: GPU")
        if part.rivals:
            print(f"  published by others: {part.rivals}")
        ready = ended == "done" and any(f["wanted"] for f in figures) and all(f["ok"] is not False for f in figures)
        if not (ready or part.gpu or absent):
            bad.append(part.name)
    print(f"\nnot ready: {', '.join(bad)}" if bad else "\nevery part that a CPU can run is ready; nothing was measured")
    return 1 if bad else 0


def run_all(parts: Sequence[Part], given: argparse.Namespace, environment: dict[str, str]) -> int:
    """Run each part within its limit and what is left of the whole, and write the results after each."""
    given.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + given.seconds
    results: list[dict[str, Any]] = []
    for part in parts:
        began = time.monotonic()
        limit = min(part.seconds if given.device == "cuda" else math.inf, deadline - began)
        absent = [name for name in part.needs if not available(name, environment)]
        if absent:
            found, ended = [], f"skipped: {absent[0]} is not installed here"
        elif part.gpu and given.device == "cpu":
            found, ended = [], "skipped: it needs a GPU"
        elif limit < 5:
            found, ended = [], "skipped: no time was left"
        else:
            found, ended = in_a_process(part, given, environment, limit)
        seconds = round(time.monotonic() - began, 1)
        told = {"part": part.name, "about": part.about, "baseline": part.baseline, "rivals": part.rivals}
        results.append({**told, "ended": ended, "seconds": seconds, "figures": found})
        show(results[-1])
        (given.out / "results.json").write_text(json.dumps(results, indent=1))
        (given.out / "table.md").write_text(as_table(results))
    print(f"\nresults.json and table.md are in {given.out}")
    bad = [r["part"] for r in results if failed(r)]
    if bad:
        print(f"not as wanted: {', '.join(bad)}")
    return 1 if bad else 0


def failed(result: dict[str, Any]) -> bool:
    """Whether a part ended badly or one of its figures misses its bound."""
    ended = result["ended"]
    return not (ended == "done" or ended.startswith("skipped")) or any(f["ok"] is False for f in result["figures"])


def in_a_process(
    part: Part, given: argparse.Namespace, environment: dict[str, str], limit: float
) -> tuple[list[dict[str, Any]], str]:
    """Run a part; its figures, and how it ended."""
    out = given.out.resolve() / part.name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part.name, "--device", given.device, "--out", str(out)]
    command += ["--small"] if given.small else []
    with (out / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit)
            ended = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after its {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
    figures = out / "figures.jsonl"
    lines = figures.read_text().splitlines() if figures.exists() else []
    if ended.startswith("failed"):
        print((out / "log.txt").read_text(errors="replace")[-3000:])
    return [json.loads(line) for line in lines], ended


def run_part(name: str, device: str, small: bool, out: Path) -> int:
    """Be the process of one part."""
    from importlib import import_module

    from benchmarks.gpu_parts.report import Report

    import_module(f"benchmarks.gpu_parts.{name}").run(Report(out / "figures.jsonl", device, small))
    return 0


def show(result: dict[str, Any]) -> None:
    """Print what a part found."""
    print(f"\n{result['part']} ({result['about']}): {result['ended']}, {result['seconds']} s")
    for figure in result["figures"]:
        mark = {True: "✓", False: "✗", None: " "}[figure["ok"]]
        wanted = f"   (wanted: {figure['wanted']})" if figure["wanted"] else ""
        print(f"  {mark} {figure['what']}: {figure['value']}{wanted}", flush=True)


def as_table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table in Markdown, for docs/benchmarks.md."""
    lines = ["| part | what | found | against | wanted | |", "|---|---|---|---|---|---|"]
    for result in results:
        if result["ended"] != "done":
            lines.append(f"| {result['part']} | {result['about']} | {result['ended']} | | | |")
        for f in result["figures"]:
            mark = {True: "✓", False: "✗", None: ""}[f["ok"]]
            against = f"{result['baseline']} | {f['wanted']}"
            lines.append(f"| {result['part']} | {f['what']} | {f['value']} | {against} | {mark} |")
        if result["rivals"]:
            lines.append(f"| {result['part']} | published by others | {result['rivals']} | | | |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------- the Python it runs on


def with_wheels(scratch: Path) -> dict[str, str]:
    """The parts' environment: the checkout, and what of `.wheels` this Python lacks, on PYTHONPATH."""
    path = [str(ROOT)]
    wheels = sorted(WHEELS.glob("*.whl"))
    lacking = [name for name in (*NEEDED, "megatron.core") if not available(name, dict(os.environ))]
    if wheels and lacking:
        print(f"not installed here: {', '.join(lacking)}; taking what {WHEELS} has")
        options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(scratch)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *map(str, wheels)], check=False)
        path.append(str(scratch))
    own = os.environ.get("PYTHONPATH")
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **offline, "PYTHONPATH": os.pathsep.join([*path, *([own] if own else [])])}


def available(module: str, environment: dict[str, str]) -> bool:
    """Whether a module can be found in that environment; nothing is imported but its parent packages."""
    if environment.get("PYTHONPATH", "") == os.environ.get("PYTHONPATH", ""):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.util.find_spec(module) is not None
        return False
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    return done.returncode == 0


def cuda(environment: dict[str, str]) -> bool:
    """Whether torch sees a GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def fetch(python: str) -> int:
    """Fill `.wheels` for a machine with that version of Python on x86-64 Linux."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    options = ["--quiet", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    options += [word for name in PLATFORMS for word in ("--platform", name)]
    for names, more in zip(CARRIED, ([], ["--no-deps"]), strict=True):
        command = [sys.executable, "-m", "pip", "download", *options, *more, "--dest", str(WHEELS), *names]
        if code := subprocess.run(command, check=False).returncode:
            return code
    size = sum(file.stat().st_size for file in WHEELS.iterdir())
    print(f"{len(list(WHEELS.iterdir()))} wheels for Python {python} in {WHEELS}, {size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
