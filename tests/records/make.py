"""Record small runs with the code of a commit, as test data for all later ones.

    git archive COMMIT | tar -x -C /tmp/old
    python tests/records/make.py /tmp/old tests/records/COMMIT

Each run is one `NAME.tar.xz` of its folder, without what is drawn from the rest (TensorBoard's files, pictures, logs):
about 20 kB. `sync` ended after two steps; `async` was killed in its fourth, a step after its newest checkpoint, with
sessions under way; `fsdp` ended after two steps of two processes; `eval` is an evaluation. Nothing in them names this
machine but its kind of CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMON: dict[str, Any] = {
    "model": "base",
    "metrics": [],
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "algo": {"lr": 1e-3},
    "rollout": {
        "groups_per_step": 2,
        "group_size": 3,
        "turn_tokens": 8,
        "session_tokens": 96,
    },
    "eval": {"tasks": 2},
    "steps": 2,
}
RUNS: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"steps": 6, "checkpoint_every": 2, "rollout.staleness": 1, "record_logprobs": True},
    "fsdp": {"trainer": "fsdp", "trainer.ranks": 2},
}
DIE_AT = {"async": "61"}
"""The turn, of all episodes, at which a run is killed."""
LEFT_OUT = (
    *("tensorboard", "transcripts", "learning_curve.png"),
    *("log.jsonl", "stacks-signal.txt", "sessions.db-shm", "run.lock"),
)
"""Not packed: what is drawn from the rest, or names the machine."""


def record(name: str) -> None:
    """Record one run in the folder `name` of the working directory; called in a process of its own."""
    sys.path.insert(0, str(HERE))
    import digits  # noqa: F401  it registers itself

    import agentrl
    from agentrl.models import tiny

    shape = tiny.TinyShape(vocab=263, layers=1, width=8, heads=2, kv_heads=1, mlp=8, context=128)
    if not Path("base").exists():
        tiny.build(Path("base"), [], shape=shape)
    if name == "eval":
        agentrl.evaluate("digits", model="base", eval=COMMON["eval"] | {"turn_tokens": 8}, run_dir=name)
        return
    agentrl.train("digits", **(COMMON | RUNS[name]), run_dir=name)


def main(code: Path, out: Path) -> None:
    """Record all runs with the code in a folder, and pack each into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*RUNS, "eval"):
            variables = {"PYTHONPATH": str(code), "DIGITS_DIE_AT": DIE_AT.get(name, "")}
            words = [sys.executable, str(Path(__file__).resolve()), name]
            ended = subprocess.run(words, cwd=scratch, env={**os.environ, **variables}, check=False)
            if ended.returncode != (9 if name in DIE_AT else 0):
                sys.exit(f"{name} ended with {ended.returncode}")
            with tarfile.open(out / f"{name}.tar.xz", "w:xz") as packed:
                packed.add(Path(scratch, name), name, filter=_kept)


def _kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if len(parts := Path(info.name).parts) > 1 and parts[1] in LEFT_OUT:
        return None
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    record(sys.argv[1]) if len(sys.argv) == 2 else main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
