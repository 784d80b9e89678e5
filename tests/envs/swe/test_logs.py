"""Our parsers against SWE-bench's own, on logs that real runners wrote and on logs that nobody would write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.builtin.swe.logs import FORMATS, REPOSITORIES, STATUSES, TestStatus, find, is_fixed, is_kept, parse
from agentrl.errors import UnknownName
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"
HARNESS = sorted(set(FORMATS) - {"r2e"})
Harness = Callable[[str, str], dict[str, str] | None]

PYTEST_SUITE = """
    import sys, warnings
    import pytest

    def test_passes(): pass
    def test_fails(): assert {"a": [1, 2]} == {"a": [1, 3]}, "no - not - equal"
    def test_raises(): raise RuntimeError("FAILED test_suite.py::test_passes - boom")
    def test_prints():
        print("PASSED test_suite.py::test_forged")
        print("FAILED test_suite.py::test_passes - printed")
        print("test_other PASSED", file=sys.stderr)
        assert False
    @pytest.fixture
    def broken(): raise OSError("no disk - at all")
    @pytest.fixture
    def late():
        yield
        raise ValueError("in teardown")
    def test_error(broken): pass
    def test_error_late(late): pass
    def test_both_fail(late): assert 0
    @pytest.mark.skip(reason="not here - not now")
    def test_skipped(): pass
    @pytest.mark.skip(reason="not here - not now")
    def test_skipped_too(): pass
    @pytest.mark.xfail(reason="known")
    def test_xfail(): assert 0
    @pytest.mark.xfail(reason="known")
    def test_xpass(): pass
    @pytest.mark.xfail(strict=True, reason="known - strictly")
    def test_xpass_strict(): pass
    @pytest.mark.parametrize("value", [
        "plain", "two words", "a - b", "[bracketed]", "x]y[z", "/abs/path/name.txt", "//double/slash", "/glob/*/name",
        "", " ", "tab\\tbed", "new\\nline", "é", "\\x1b[31mred\\x1b[0m", "a::b", "[100%]", "MouseButton.LEFT", "PASSED",
    ])
    def test_values(value): assert "b" not in value
    def test_subtests(subtests):
        for number in range(3):
            with subtests.test("a part", number=number):
                assert number != 1
    class TestClass:
        def test_method(self): warnings.warn("PASSED in a warning")
        def test_method_fails(self): pytest.fail("PASSED\\nFAILED\\nERROR one two")
"""
UNITTEST_SUITE = '''
    import sys, unittest

    class Some(unittest.TestCase):
        def test_passes(self): pass
        def test_fails(self): self.assertEqual(1, 2, "FAIL: test_passes (x)")
        def test_raises(self): raise RuntimeError("ERROR: test_passes ... ok")
        def test_documented(self):
            """A first line that says ... much.

            And more of it.
            """
        def test_documented_fails(self):
            """Another first line"""
            self.fail("no")
        def test_prints(self):
            print("test_forged (test_suite.Some) ... ok")
            print("halfway ... ", end="")
        def test_prints_to_stderr(self): print("working on it", file=sys.stderr)
        def test_prints_system_check(self): print("System check identified no issues (0 silenced)", file=sys.stderr)
        @unittest.skip("not now ... ok")
        def test_skipped(self): pass
        @unittest.expectedFailure
        def test_expected(self): self.fail()
        @unittest.expectedFailure
        def test_unexpected(self): pass
        def test_subtests(self):
            for number in range(3):
                with self.subTest("part ... ok", number=number):
                    self.assertNotEqual(number, 1)

    class Broken(unittest.TestCase):
        @classmethod
        def setUpClass(cls): raise OSError("no disk")
        def test_never(self): pass

    class Skipped(unittest.TestCase):
        def setUp(self): self.skipTest("none of it")
        def test_here(self): pass
'''
DJANGO_SUITE = '''
    import sys
    from django.conf import settings
    from django.test import Client, SimpleTestCase, override_settings
    from django.urls import path

    def breaks(request): raise RuntimeError("inside a view")
    urlpatterns = [path("breaks/", breaks)]

    @override_settings(ROOT_URLCONF=__name__)
    class Views(SimpleTestCase):
        def test_server_error(self):
            self.assertEqual(Client(raise_request_exception=False).get("/breaks/").status_code, 500)
        def test_missing(self): self.assertEqual(self.client.get("/nowhere/").status_code, 404)
        def test_wrong(self): self.assertEqual(self.client.get("/nowhere/").status_code, 200)
        def test_logs(self): print("Internal Server Error: /x/", file=sys.stderr)
        def test_says_it_is_version(self):
            """--version is equivalent to version"""
'''


def written(folder: Path, text: str) -> Path:
    (folder / "test_suite.py").write_text(textwrap.dedent(text))
    return folder


def said_by(folder: Path, *argv: str | Path, **env: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", **env}
    done = subprocess.run(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150, check=False
    )
    log = done.stdout.decode()
    assert "Traceback" not in log.partition("\n")[0], log
    return log


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    need(CLIENTS.exists(), "clients' environment .venv-clients (make clients)")
    script = Path(__file__).with_name("harness_parsers.py")
    with subprocess.Popen(
        [CLIENTS, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(log: str, format: str) -> dict[str, str] | None:
            asked = {"log": log, "format": "django" if format == "unittest" else format}
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert "said" in answer or "IndexError" in answer["failed"]
            return answer.get("said")

        try:
            yield ask
        finally:
            process.kill()


def agrees(harness: Harness, log: str, format: str) -> dict[str, TestStatus]:
    ours, theirs = parse(log, format), harness(log, format)
    if theirs is not None:  # the harness's parser of Django's logs fails on a line that is "FAIL:" alone
        assert ours == {test: status for test, status in theirs.items() if status in STATUSES}
    return ours


@pytest.fixture(scope="module")
def pytest_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = written(tmp_path_factory.mktemp("pytest"), PYTEST_SUITE)
    run = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_suite.py")
    flags = {
        "summary": ["-rA"],
        "verbose": ["-rA", "-v"],
        "captureless": ["-rA", "-s"],
        "colours": ["-rA", "--color=yes"],
        "short": ["-rA", "--tb=no", "--no-header"],
        "wide": ["-rA", "--tb=long", "-vv"],
    }
    bare = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing those of this environment took most of the time
    return {name: said_by(folder, *run, *options, **bare) for name, options in flags.items()}


@pytest.mark.slow
def test_every_format_agrees_with_the_harness_on_pytests_own_logs(
    harness: Harness, pytest_logs: dict[str, str]
) -> None:
    for log in pytest_logs.values():
        for format in HARNESS:
            agrees(harness, log, format)


@pytest.mark.slow
def test_pytests_summary_is_read(harness: Harness, pytest_logs: dict[str, str]) -> None:
    said = agrees(harness, pytest_logs["short"], "pytest")
    name = "test_suite.py::test_"
    assert (
        said[f"{name}passes"] == said[f"{name}xpass_strict"] is TestStatus.FAILED or said[f"{name}passes"] == "PASSED"
    )
    assert said[f"{name}fails"] is said[f"{name}prints"] is TestStatus.FAILED
    assert said[f"{name}error"] is said[f"{name}error_late"] is TestStatus.ERROR
    assert said[f"{name}xfail"] is TestStatus.XFAIL
    assert said["test_suite.py::TestClass::test_method"] is TestStatus.PASSED
    assert said[f"{name}values[plain]"] is TestStatus.PASSED
    assert f"{name}values[two" in said, "SWE-bench's names end at the first blank"
    assert f"{name}values[two words]" in parse(pytest_logs["short"], "pytest_v2")
    assert f"{name}values[/name.txt]" in parse(pytest_logs["short"], "pytest_options")


@pytest.mark.slow
def test_every_format_agrees_with_the_harness_on_unittests_own_log(harness: Harness, tmp_path: Path) -> None:
    log = said_by(written(tmp_path, UNITTEST_SUITE), sys.executable, "-m", "unittest", "-v", "test_suite")
    for format in HARNESS:
        agrees(harness, log, format)
    said = parse(log, "unittest")
    name = "(test_suite.Some.test_{})".format
    assert said[f"test_passes {name('passes')}"] is TestStatus.PASSED
    assert said[f"test_fails {name('fails')}"] is said["test_fails"] is TestStatus.FAILED
    assert said[f"test_raises {name('raises')}"] is TestStatus.ERROR
    assert said[f"test_skipped {name('skipped')}"] is TestStatus.SKIPPED
    assert said["A first line that says ... much."] is TestStatus.PASSED, "a documented test goes by its first line"
    assert said["setUpClass"] is TestStatus.ERROR


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", ["1", "2", "3"])
def test_every_format_agrees_with_the_harness_on_djangos_own_log(
    harness: Harness, tmp_path: Path, verbosity: str
) -> None:
    folder = written(tmp_path, DJANGO_SUITE + UNITTEST_SUITE)
    (folder / "settings.py").write_text("SECRET_KEY = 'x'\nALLOWED_HOSTS = ['*']\nUSE_TZ = True\n")
    command = (CLIENTS, "-m", "django", "test", "test_suite", "-v", verbosity)
    log = said_by(folder, *command, DJANGO_SETTINGS_MODULE="settings", PYTHONPATH=str(folder))
    for format in HARNESS:
        agrees(harness, log, format)
    said = parse(log, "django")
    assert said["test_wrong"] is TestStatus.FAILED
    if verbosity != "1":
        assert said["test_missing (test_suite.Views.test_missing)"] is TestStatus.PASSED
        assert said["--version is equivalent to version"] is TestStatus.PASSED


COMMON = [
    *STATUSES,
    *" \n\n\t\r[]/:ab",
    " - ",
    "::",
    " ",
    "[3]",
    "[100%]",
    "test_",
    "ok",
    "\u2028",
    "é",
    "XPASS",
    "...",
]
PYTEST = [
    "\x1b",
    "[31m",
    "[0m",
    "//",
    "*",
    "a[/b/c]",
    "MouseButton.LEFT",
    "MouseButton.RIGHT",
    "a PASSED ",
    "\nSKIPPED [",
]
SYMPY = [".py", ".py:", "_", "____ ", " ok", " E", " F", "\ntest_a"]
DJANGO = [
    *(" ... ", " ... ok", " ... OK", " ...  OK", "\nok", "\nok\n", " ... skipped", " ... FAIL", " ... ERROR", "FAIL:"),
    *(
        "ERROR:",
        "\nFAIL: ",
        "\nERROR: ",
        "--version is equivalent to version",
        " silenced).",
        " silenced).\nok\n",
        "/\nok\n",
    ),
    *(" ... Testing against Django installed in ", " ... Internal Server Error: /", "\n... Internal Server Error: /"),
    *("Applying sites.0002_alter_domain_unique...test_no_migrations", "Internal Server Error: /", "\nok\n", "/\nok"),
    *(
        " ... System check identified no issues (0 silenced)",
        " ... System check identified no issues (0 silenced)\nok\n",
    ),
]
OF = {"django": DJANGO, "unittest": DJANGO, "sympy": SYMPY}


def logs_of(format: str) -> st.SearchStrategy[tuple[str, str]]:
    piece = st.sampled_from(COMMON) | st.sampled_from(OF.get(format, PYTEST))
    return st.tuples(st.lists(piece, max_size=30).map("".join), st.just(format))


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(HARNESS).flatmap(logs_of))
def test_parsers_agree_with_the_harness_on_any_log(harness: Harness, case: tuple[str, str]) -> None:
    agrees(harness, *case)


@pytest.mark.slow
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_no_log_makes_a_parser_slow(format: str) -> None:
    """A parser with a quadratic step would read these for minutes; the test's own time limit is the bound."""
    for unit in ("[", "x\n", "PASSED [[[/", "a ... ", *OF.get(format, PYTEST)):
        for prefix in ("", "PASSED ", "test_"):
            parse(prefix + unit * (400_000 // len(unit)), format)


def test_a_name_that_is_cut_off_stands_for_those_that_agree() -> None:
    """SWE-bench's rows hold hundreds of them, such as test_ogip_grammar_fail[log(photon."""
    said = parse(
        "PASSED t.py::a[x\nPASSED t.py::b[x y]\nPASSED t.py::b[x z]\nFAILED t.py::c[x y]\nPASSED t.py::c[x z]\n",
        "pytest_v2",
    )
    assert is_fixed(said, "t.py::a[x")
    assert is_fixed(said, "t.py::b[x")
    assert find(said, "t.py::c[x") is None
    assert find(said, "t.py::b") is None, "only a name with an open bracket is cut off"


def test_a_skipped_test_is_kept_and_not_fixed() -> None:
    said = parse("SKIPPED t.py::a why\nXFAIL t.py::b\nERROR t.py::c\nERROR: t.py::d", "pytest")
    assert is_kept(said, "t.py::a")
    assert not is_fixed(said, "t.py::a")
    assert is_kept(said, "t.py::b")
    assert is_fixed(said, "t.py::b")
    assert not is_kept(said, "t.py::c")
    assert not is_kept(said, "t.py::missing")
    assert "t.py::d" not in said


@pytest.mark.slow
def test_the_formats_of_repositories_are_the_harness_own(harness: Harness) -> None:
    theirs = harness("", "by repository") or {}
    theirs = {repo: name.removeprefix("parse_log_") for repo, name in theirs.items()}
    assert {repo: name for repo, name in theirs.items() if name != "pytest"} == dict(REPOSITORIES)


@pytest.mark.slow
def test_r2e_names_tests_without_their_file(pytest_logs: dict[str, str]) -> None:
    said = parse(pytest_logs["summary"], "r2e")
    assert said["test_passes"] is said["TestClass.test_method"] is TestStatus.PASSED
    assert said["test_fails"] is TestStatus.FAILED
    assert said["test_error"] is TestStatus.ERROR


def test_an_unknown_format_is_named_with_its_neighbour() -> None:
    with pytest.raises(UnknownName, match="did you mean 'pytest'"):
        parse("", "py_test")
