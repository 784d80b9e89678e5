"""A machine on which something is missing: each command ends in one sentence that says what to do, and no traceback.

Commands are processes, forked from one that has loaded the command line; what is missing is missing there alone.
`tests/test_mistakes.py` has wrong words and files of settings.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTER = """
import json, os, sys
import agentrl.cli, agentrl.train.driver.setup, agentrl.train.plan.preflight, agentrl.train.evaluation.evaluate

class Without:
    def __init__(self, finder, names):
        self.finder, self.names = finder, names
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

for line in sys.stdin:
    job = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        sys.stdout, sys.stderr = (open(each, "w", encoding=job["encoding"], closefd=False) for each in (1, 2))
        sys.meta_path = [Without(finder, job["hidden"]) for finder in sys.meta_path]
        os.environ.update(job["env"])
        os.chdir(job["folder"])
        sys.argv = ["agentrl", *job["words"]]
        code = 0
        try:
            agentrl.cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 70
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 71)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
NOWHERE = "http://127.0.0.1:9"
NO_CACHE = {"XDG_CACHE_HOME": "/proc/nowhere", "AGENTRL_CACHE": ""}
NO_NETWORK = {"HF_ENDPOINT": NOWHERE, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "XDG_CACHE_HOME": "cache"}
NO_DOCKER = {"DOCKER_HOST": "unix:///nowhere.sock"}
ROWS = "env=questions policy=expert env.grading=exact env.path="
PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
SPECIAL = [{"id": n, "content": text} | PLAIN for n, text in enumerate(("<|im_start|>", "<|im_end|>"))]
TOKENIZER = {"added_tokens": SPECIAL, "model": {"type": "BPE", "vocab": {}, "merges": []}}


@dataclass(frozen=True)
class Missing:
    """A command, parts of what it says, and what its machine lacks.

    Attributes:
        words: of the command line; PORT is one at which somebody listens.
        said: what the message must have.
        hidden: packages that are not installed.
        env: variables.
        code: how it ends.
        encoding: the terminal's.
    """

    words: str
    said: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    code: int = 2
    encoding: str = "utf-8"


MACHINES = {
    "no Docker for an environment": Missing(
        "eval env=terminal policy=noop eval.tasks=1",
        ("start one", "DOCKER_HOST", "env.sandbox=subprocess"),
        (),
        NO_DOCKER,
    ),
    "no Docker to check": Missing("check sandbox=docker", ("start one", "DOCKER_HOST"), (), NO_DOCKER, code=1),
    "Docker's package": Missing("check sandbox=docker", ("pip install 'agentrl-platform[docker]'",), ("docker",)),
    "no GPU": Missing(
        "train env=calculator engine.device=cuda",
        ("no CUDA device", "engine.device=cpu or auto"),
        env={"CUDA_VISIBLE_DEVICES": ""},
    ),
    "a model of the hub": Missing(
        "train env=calculator model=Some/Model-8B", ("hf download Some/Model-8B --local-dir Model-8B", "model=Model-8B")
    ),
    "no model": Missing("train env=calculator model=/no/model", ("local Hugging Face folder", "known: smollm2-135m")),
    "no network": Missing(
        "models get smollm2-135m", ("where there is a network", "model=FOLDER"), (), NO_NETWORK, code=1
    ),
    "no network for an API": Missing(
        f"eval env=calculator policy={NOWHERE}/v1 api.model=m api.retries=0 eval.tasks=1",
        ("nothing takes connections", "127.0.0.1:9"),
    ),
    "a home that can't be written": Missing("models get smollm2-135m", ("XDG_CACHE_HOME=FOLDER",), (), NO_CACHE),
    "a place that can't be written": Missing("eval env=calculator policy=expert run_dir=/proc/run", ("name another",)),
    "a file in the place": Missing("eval env=calculator policy=expert run_dir=latin.csv", ("a run needs a folder",)),
    "a project where none can be": Missing("init my-env --in /proc/nowhere --kind environment", ("can't be written",)),
    "a port for pages": Missing("view . port=PORT", ("can't listen", "port=0 takes a free one"), code=1),
    "a port for sandboxes": Missing(
        "sandbox serve port=PORT", ("port=0 takes a free one",), env={"AGENTRL_SANDBOX_KEY": "k" * 20}, code=1
    ),
    "a port for a model": Missing("serve model=smollm2 port=PORT", ("port=0 takes a free one",)),
    "a key for sandboxes": Missing("sandbox serve", ("AGENTRL_SANDBOX_KEY", "key_file=FILE")),
    "torch": Missing("train env=calculator", ("pip install 'agentrl-platform[train]'",), ("torch",)),
    "transformers": Missing("train env=calculator", ("'agentrl-platform[train]'",), ("transformers",)),
    "the gateway's packages": Missing(
        "serve model=smollm2 model.renderer=chatml", ("'agentrl-platform[gateway]'",), ("fastapi", "uvicorn")
    ),
    "Parquet's package": Missing(f"eval {ROWS}rows.parquet", ("'agentrl-platform[parquet]'",), ("pyarrow",)),
    "MCP's package": Missing(
        "eval env=calculator policy=expert tools.a=mcp tools.a.command=cat", ("'agentrl-platform[mcp]'",), ("mcp",)
    ),
    "retrieval's packages": Missing(
        "retrieval index corpus.jsonl --out out", ("'agentrl-platform[retrieval]'",), ("bm25s", "faiss", "numpy")
    ),
    "a browser's package": Missing(
        "eval env=web_shop env.browser=chromium policy=expert eval.tasks=1",
        ("the extra `browser`", "playwright install chromium"),
        ("playwright",),
    ),
    "Ray": Missing("doctor cluster=ray", ("'agentrl-platform[ray]'",), ("ray",)),
    "a server's Python": Missing(
        "train env=calculator model=smollm2 engine=sglang engine.python=/no/python", ("engine.python", "no such file")
    ),
    "data": Missing(f"eval {ROWS}nowhere.csv", ("no such file",)),
    "another encoding": Missing(f"eval {ROWS}latin.csv", ("not UTF-8", "iconv -f WINDOWS-1252 -t UTF-8 latin.csv")),
    "a spreadsheet": Missing(f"eval {ROWS}sheet.xlsx", ("save its sheet as CSV",)),
    "a run to go on": Missing("train resume=runs/nowhere", ("no run there", "config.yaml is missing")),
    "runs to look at": Missing("view nowhere", ("no such folder", "give a run's folder")),
    "a terminal without our characters": Missing(
        "eval env=calculator policy=expert eval.tasks=1", ("mean 1.000",), code=0, encoding="ascii"
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "latin.csv").write_bytes("question,answer\nwie heißt es?,größe\n".encode("latin-1"))
    (folder / "sheet.xlsx").write_bytes(b"PK\x03\x04")
    (folder / "rows.parquet").write_bytes(b"PAR1")
    (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "words"}\n')
    model = folder / "smollm2"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (model / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


@pytest.fixture(scope="module")
def starter(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the command line, and forks for each command that it reads."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place, env=environment
    ) as process:
        yield process
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_what_a_machine_lacks_is_told_in_a_sentence_that_says_what_to_do(
    name: str, place: Path, starter: subprocess.Popen[str]
) -> None:
    machine = MACHINES[name]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = machine.words.replace("PORT", str(taken.getsockname()[1])).split()
        job = vars(machine) | {"words": words, "folder": str(place)}
        assert starter.stdin is not None
        assert starter.stdout is not None
        print(json.dumps(job), file=starter.stdin, flush=True)
        code = int(starter.stdout.readline())
    said = (place / "said").read_text()
    assert (code, [part for part in machine.said if part not in said]) == (machine.code, []), said
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert len(errors) == (machine.code != 0)


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own."""
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_doctor_tells_all_that_a_poor_machine_lacks_with_what_it_costs_and_what_mends_it(tmp_path: Path) -> None:
    """A GPU that torch doesn't see, 1 GB of memory, little shared memory, a disk and a home that can't be written."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cc", "docker"):
        shutil.copy("/bin/false", programs / name)
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 535.104.05'\n")
    (programs / "nvidia-smi").chmod(0o755)
    shell = (
        "mount -t tmpfs none /sys/fs/cgroup && echo 1073741824 > /sys/fs/cgroup/memory.max && "
        "mount -t tmpfs -o size=64m none /dev/shm && mkdir -p runs && mount -t tmpfs -o ro none runs && "
        'ulimit -n 256 && exec "$0" -m agentrl doctor'
    )
    poor = run(["unshare", "--mount", "true"], tmp_path).returncode == 0
    command = ["unshare", "--mount", "bash", "-c", shell] if poor else ["bash", "-c", shell.rpartition("&&")[2]]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "", **NO_CACHE, **NO_DOCKER}
    done = run([*command, sys.executable], tmp_path, **environment)
    said = dict(
        line.removeprefix("missing").strip().split(": ", 1)
        for line in done.stdout.splitlines()
        if line.startswith("missing")
    )
    assert "sees no GPU, and nvidia-smi shows 1 x NVIDIA H100" in said["torch"]
    assert "install the build of torch that fits this driver's CUDA" in said["torch"]
    assert "systemctl start docker" in said["Docker"]
    assert "XDG_CACHE_HOME=FOLDER" in said["cache"]
    if poor:
        assert "1 GiB; without it: anything over model=tiny; give the machine or container 4 GiB" in said["memory"]
        assert "docker run --shm-size=8g" in said["/dev/shm"]
        assert "run_dir=" in said["disk"]
        assert "ulimit -n 4096" in said["open files"]


@pytest.mark.slow
def test_doctor_says_which_file_hides_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import no_such_library\n")
    done = run([sys.executable, "-m", "agentrl", "doctor"], tmp_path, **NO_DOCKER)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("missing  torch:")]
    assert f"{tmp_path / 'torch.py'} can't be imported" in line
    assert "name no file of yours torch.py" in line


@pytest.mark.slow
@pytest.mark.parametrize(("size", "mend"), [("4k", "name another"), ("200k", "make room on that disk")])
def test_a_full_disk_is_told_with_what_to_do(size: str, mend: str, tmp_path: Path) -> None:
    shell = (
        f'mount -t tmpfs -o size={size} none . && cd "$PWD" && exec "$0" -m agentrl eval env=calculator policy=expert'
    )
    if run(["unshare", "--mount", "true"], tmp_path).returncode:
        pytest.skip("only root can make a small disk")
    done = run(["unshare", "--mount", "bash", "-c", f"{shell} eval.tasks=100", sys.executable], tmp_path)
    assert done.returncode in (1, 2)
    assert mend in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_output_that_can_not_be_written_is_told_and_one_without_a_known_width_is_written(tmp_path: Path) -> None:
    """A full disk below `> FILE` was answered with a traceback, and COLUMNS=0 with nothing at all."""
    for command in ("envs", "--help"):
        done = run(["bash", "-c", f'"$0" -m agentrl {command} > /dev/full', sys.executable], tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "can't write to standard output" in done.stderr
    assert "Commands" in run([sys.executable, "-m", "agentrl", "--help"], tmp_path, COLUMNS="0").stdout


def test_a_file_that_hides_a_module_of_pythons_own_is_named(tmp_path: Path) -> None:
    """An environment in `json.py` was answered by a circular import within agentrl."""
    (tmp_path / "json.py").write_text("import agentrl\n")
    done = run([sys.executable, "-m", "agentrl", "envs"], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"{tmp_path}/json.py hides a module of Python's own: name it otherwise" in done.stderr


@pytest.mark.slow
def test_a_thread_that_an_environment_leaves_running_does_not_keep_a_command_from_ending(tmp_path: Path) -> None:
    thread = "threading.Thread(target=time.sleep, args=[600], name='poller').start()"
    (tmp_path / "own.py").write_text(f"import agentrl, threading, time\n{thread}\nclass E(agentrl.Env): pass\n")
    code = "from agentrl import __main__ as it; it.PATIENCE = it.MOST_PATIENCE = 0.1; it.main()"
    done = run([sys.executable, "-c", code, "eval", "env=own.py:E", "policy=noop"], tmp_path)
    assert (done.returncode, "poller" in done.stderr) == (2, True), done.stderr


def test_an_older_python_and_an_empty_one_are_told_what_they_lack(tmp_path: Path) -> None:
    """The module starts under any Python 3, since it is what says which one is needed."""
    old = "import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_module('agentrl', run_name='__main__')"
    done = run([sys.executable, "-S", "-c", old], tmp_path)
    assert (done.returncode, "agentrl needs Python 3.11 or newer" in done.stderr) == (1, True)
    done = run([sys.executable, "-S", "-m", "agentrl"], tmp_path)
    assert (done.returncode, "-m pip install" in done.stderr, "Traceback" in done.stderr) == (1, True, False)


@pytest.mark.slow
def test_make_refuses_an_older_python_before_it_makes_an_environment(tmp_path: Path) -> None:
    """An environment of the wrong Python stayed, and the right one was then never used."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "old").write_text(
        f'#!/bin/sh\nshift\nexec {sys.executable} -c "import sys; sys.version_info = (3, 9); $1"\n'
    )
    (tmp_path / "old").chmod(0o755)
    done = run(["make", "train", "PYTHON=./old"], tmp_path)
    assert "agentrl needs Python 3.11 or newer: make PYTHON=python3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_command_reads_text_as_utf8_in_any_locale_and_a_script_is_told_where_it_does_not(tmp_path: Path) -> None:
    """In a locale of another encoding a tokenizer was read wrongly, or ended the run with a traceback."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "tasks.txt").write_text("grüß", encoding="utf-8")
    code = (
        "import agentrl\nfrom pathlib import Path\nclass Greeting(agentrl.Env):\n"
        "    def tasks(self, split='train'): yield {'id': Path('tasks.txt').read_text()}\n"
        "    def reset(self, task, *, seed=None): return task.id\n"
        "    @agentrl.reward\n    def right(self, session): return float(session.task.id == 'gr\\xfc\\xdf')\n"
    )
    (tmp_path / "mine.py").write_text(code)
    words = ["env=mine.py:Greeting", "policy=noop", "run_dir=run"]
    done = run([sys.executable, "-m", "agentrl", "eval", *words], tmp_path, **ascii_only)
    assert (done.returncode, "mean 1.000" in done.stderr + done.stdout) == (0, True), done.stderr
    script = "import agentrl; agentrl.evaluate('calculator', policy='expert', run_dir='other')"
    done = run([sys.executable, "-c", script], tmp_path, **ascii_only)
    assert "set PYTHONUTF8=1 before Python starts" in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_file_gets_no_number_of_a_standard_stream_that_was_closed(tmp_path: Path) -> None:
    """Of a daemon's run what libraries print could end up in the run's own files."""
    script = "import os, sys; from agentrl import __main__ as m; m._run = lambda: sys.exit(os.dup(9)); m.main()"
    done = run(["bash", "-c", f'exec 9>file; "$0" -c "{script}" <&- >&- 2>&-', sys.executable], tmp_path)
    assert done.returncode > 2


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    """Training ended with `Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so`."""
    shell = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m agentrl envs'
    done = run(["bash", "-c", shell, sys.executable], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "the working folder can't be used: No such file or directory" in done.stderr
