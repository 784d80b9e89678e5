"""What all tests share: quiet threads, and real parts that are required in CI and optional elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from agentrl.registry import Registry
from tests.suite import bytecode, forks, leftovers, memory, nightly, pairs, quick, schedule, shared, stress, times

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on two shared cores, spinning threads cost more than they give
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# On a busy machine no example is late, and ten may take more than 30 seconds to draw.
settings.register_profile("agentrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agentrl")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, the least that it takes; ours is 2

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def forget_names() -> Iterator[Callable[[Registry[Any]], None]]:
    """Has a registry forget, after the test, what is registered in it from now on."""
    with contextlib.ExitStack() as stack:
        yield lambda registry: stack.enter_context(registry.forgetting())


@pytest.fixture
def loaded_sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of sessions that this process reads from stores, in their order."""
    from agentrl.sessions.store.store import Store

    loaded, load = list[str](), Store.load

    def note(self: Store, session_id: str) -> Any:
        loaded.append(session_id)
        return load(self, session_id)

    monkeypatch.setattr(Store, "load", note)
    return loaded


@pytest.fixture
def in_tmp_path(tmp_path: Path) -> Iterator[None]:
    """The test runs in its temporary folder."""
    with contextlib.chdir(tmp_path):
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What agentrl keeps in the user's cache goes to a folder of the test, whose workers can't be forked then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def allow_cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has this process use so many cores; its environment says nothing of threads."""
    from agentrl.common import cores

    def allow(count: int) -> None:
        monkeypatch.setattr(cores, "list_allowed", lambda: list(range(count)))
        monkeypatch.delenv(cores.VARIABLE, raising=False)

    return allow


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that the infrastructure failed are played again at once."""
    monkeypatch.setattr("agentrl.rollout.stream.health.RETRY_SECONDS", 0.0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FOLDER", help="measure tests and fixtures: tests/suite/times.py")
    parser.addoption(
        "--record", type=Path, metavar="FILE", help="keep outcomes and go on from them: tests/suite/stress.py"
    )
    parser.addoption("--forks", type=int, default=1, metavar="N", help="processes for what was collected once")
    parser.addoption("--whole-matrices", action="store_true", help="every combination: tests/suite/pairs.py")
    parser.addoption("--stop-after", type=float, metavar="SECONDS", help="end a run of --record then")


def pytest_configure(config: pytest.Config) -> None:
    pairs.whole = config.getoption("--whole-matrices")
    workers, is_worker = config.getoption("numprocesses", None), hasattr(config, "workerinput")
    if not is_worker:
        bytecode.keep(config)
    if config.getoption("--times") is not None and (is_worker or not workers):
        times.install(config, config.getoption("--times"))
    config.pluginmanager.register(nightly.Nightly(), "nightly")
    config.pluginmanager.register(schedule.PartsEnd())
    if config.getoption("--forks") > 1:
        config.pluginmanager.register(forks.Forks(config.getoption("--forks")))
    memory.install(config)  # after that, whose caches it gives back
    stress.install(config, config.getoption("--record"), config.getoption("--stop-after"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a module out that has nothing to run: it need not be imported."""
    return quick.has_nothing(collection_path, config.getoption("markexpr")) or None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.ByPart:
    """Give xdist our order. Its own `--dist loadgroup` (3.8) does nothing under pytest 9.2, which loses the groups."""
    return schedule.ByPart(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in what a test printed and logged: a report that can't be sent ends the whole run."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    if report.longrepr is not None and not _can_be_sent(str(report.longrepr)):
        report.longrepr = str(report.longrepr).encode(errors="replace").decode()
    return report


def _can_be_sent(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def need(available: bool, reason: str) -> None:
    """A real part that this test must have: missing, it fails in CI and skips elsewhere, with the reason."""
    if available:
        return
    if os.environ.get("CI"):
        pytest.fail(f"required in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left() -> Iterator[None]:
    """Servers and workers that the tests of a module start end with it: those of one test were kept, 6 GB of them."""
    before = leftovers.servers()
    yield
    assert not (left := leftovers.left_beside(before | schedule.kept_servers)), f"left behind: {left}"


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> shared.Once:
    """`once(name, make)`: a folder that one test of the run fills for all, whatever worker they run in."""
    return partial(shared.once, shared.common_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def learned(once: shared.Once) -> Path:
    """The run of `make train`, of a third of its steps, with its first and last checkpoint; it is to be read only."""

    def train(folder: Path) -> None:
        import agentrl

        settings = {"steps": 20, "algo.schedule": "constant", "checkpoint_every": 100}
        agentrl.train("calculator", seed=0, run_dir=str(folder / "run"), **settings)

    return once("learned", train) / "run"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whoever waits for `learned`, or makes it, may take longer: it takes ten minutes on a busy machine."""
    if "learned" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(1800))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`learned` takes minutes, which `make check` has not: who asks for it is slow."""
    if "learned" in getattr(item, "fixturenames", ()) and item.get_closest_marker("slow") is None:
        pytest.fail("it asks for the suite's learning run and is not marked slow", pytrace=False)


@pytest.fixture(scope="session")
def taught(learned: Path) -> Path:
    """A tiny model that calls its calculator and solves a third of the problems: `learned` after its warm start."""
    return learned / "checkpoints" / "step-000000"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that want it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("../shared/data is absent")
    return SHARED
