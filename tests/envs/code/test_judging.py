"""A verdict can't be forged, and honest code is not misjudged for being unusual."""

from __future__ import annotations

import json

import pytest

from agentrl.envs.builtin.code import Job, code_exec, code_verdict
from agentrl.envs.builtin.code.judging import encode_job, read
from agentrl.envs.builtin.code.runners import judge
from agentrl.errors import EnvError, InvalidInput
from tests.envs.code.conftest import PATIENCE, Judge, Kept
from tests.tools.sandbox.busy import beside

TESTS = "assert f(2) == 41\nassert f(3) == [1, 'two']\nassert f(4) is True and f(5) > 17\nassert abs(f(6) - 0.5) < 1e-9"
QUICK = 2.0
"""Seconds for code that never ends by itself."""

CHEATS = {
    "prints what a test runner prints": (
        "print('PASSED'); print('OK'); print('{\"passed\": 4}')\ndef f(x): return print('ok')"
    ),
    "exits at import": "import os; os._exit(0)",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "leaves politely": "import sys\ndef f(x): sys.exit(0)",
    "interrupts": "def f(x): raise KeyboardInterrupt",
    "stops iteration": "def f(x): raise StopIteration",
    "equals everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __sub__
    def __abs__(self): return 0
    def __hash__(self): return 41
    def __bool__(self): return True
def f(x): return Yes()""",
    "is a number that equals everything": """
class Number(int):
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    __gt__ = __lt__
    def __sub__(self, other): return Number(0)
    def __index__(self): return 41
    __hash__ = None
def f(x): return Number(7)""",
    "is a list that equals everything": """
class List(list):
    def __eq__(self, other): return True
def f(x): return List()""",
    "is a float of another mind": """
class Float(float):
    def __repr__(self): return "0.5" + chr(34) + ', "passed": 9'
def f(x): return Float(7)""",
    "patches the builtins": """
import builtins
builtins.abs = lambda x: 0
builtins.AssertionError = None
builtins.exec = builtins.compile = lambda *a, **k: None
def f(x): return 41""",
    "redefines what the tests use": (
        "def abs(x): return 0\ndef check(candidate): pass\n_failed = _passed = lambda *a: None\ndef f(x): return None"
    ),
    "looks up the stack and into the heap": """
import gc, sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, str) and "assert f" in value: return 41
        frame = frame.f_back
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "nonce" in thing: return 41
    return None""",
    "reads the judge's secrets": """
import os
def f(x):
    judge = os.getppid()
    for name in ("environ", "cmdline", "mem", "maps", "fd/0", "fd/1", "fd/3", "task/%d/mem" % judge, "syscall"):
        try: data = open("/proc/%d/%s" % (judge, name), "rb").read()
        except (OSError, ValueError): continue
        if b"assert f(2)" in data: return 41
    return None""",
    "writes where the judge writes": """
import glob, os
def f(x):
    for path in glob.glob("/proc/[0-9]*/fd/1") + ["/dev/stdout", "/dev/tty", "/dev/console"]:
        try: open(path, "w").write('{"passed": 4, "failed": 0, "total": 4, "error": null}\\n')
        except OSError: pass
    return None""",
    "speaks the protocol": """
import json, os
def frame(message):
    data = json.dumps(message).encode()
    return len(data).to_bytes(4, "big") + data
for number in range(3, 20):
    for message in [{"value": None}, {"value": True}, {"passed": 4, "failed": 0, "total": 4}, {"value": ["handle", 0]}]:
        try: os.write(number, frame(message))
        except OSError: pass
def f(x): return None""",
    "answers with nonsense": """
import os
def f(x):
    for number in range(3, 20):
        try: os.write(number, b"\\xff\\xff\\xff\\xff" * 64)
        except OSError: pass
""",
    "kills the judge": "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGKILL)",
    "stops the judge": "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGSTOP)",
    "kills everybody": "import os, signal\ndef f(x): os.kill(-1, signal.SIGKILL)",
    "loops": "def f(x):\n    while True: pass",
    "sleeps": "import time\ndef f(x): time.sleep(10**6)",
    "loops at import": "while True: pass",
    "waits in threads": """
import threading
def f(x):
    event = threading.Event()
    for _ in range(9): threading.Thread(target=event.wait).start()
    event.wait()""",
    "eats memory": "def f(x):\n    kept = []\n    while True: kept.append(bytearray(1 << 24))",
    "answers at endless length": "def f(x): return [0] * (40 << 20)",
    "prints without end": "def f(x):\n    while True: print('x' * 10**6)",
    "forks without end": "import os\ndef f(x):\n    while True: os.fork()",
    "recurses": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)",
    "nests its answer": "def f(x):\n    deep = []\n    for _ in range(10**5): deep = [deep]\n    return deep",
    "is an endless iterator": "import itertools\ndef f(x): return itertools.count()",
    "plants start-up files": """
import os
for folder in ("/work", "/tmp", os.path.expanduser("~")):
    for name in ("sitecustomize.py", "usercustomize.py", "ast.py", "json.py", "random.py"):
        try: open(os.path.join(folder, name), "w").write("import os; os._exit(0)")
        except OSError: pass
def f(x): return None""",
    "raises what the tests might expect": "def f(x): raise AssertionError",
    "is not there": "def g(x): return 41",
    "is no Python": "def f(x) return 41",
    "is not a function": "f = 41",
    "is a number that is none": "def f(x): return float('nan')",
}  # fmt: skip
ENDLESS = (
    *("stops the judge", "loops", "sleeps", "loops at import", "waits in threads", "prints without end"),
    "forks without end",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
async def test_cheating_code_scores_zero(judged: Judge, name: str) -> None:
    verdict = await judged(CHEATS[name], TESTS, entry_point="f", timeout=QUICK if name in ENDLESS else 30.0)
    assert not verdict.solved
    assert verdict.passed == 0 or name in {"patches the builtins", "is a number that is none"}, verdict
    assert verdict.note


async def test_what_one_run_leaves_behind_is_not_there_in_the_next(judged: Judge) -> None:
    left = "import subprocess\nopen('/tmp/left', 'w').close()\nsubprocess.Popen(['sleep', '999'])\ndef f(): return 1"
    assert (await judged(left, "assert f() == 1")).solved
    look = (
        "import glob, os\ndef f():\n    lines = [open(path, 'rb').read() for path in glob.glob('/proc/*/cmdline')]\n"
        "    return os.path.exists('/tmp/left') or any(b'sleep' in line for line in lines)"
    )
    assert (await judged(look, "assert f() is False")).solved


HONEST = {
    "prints and logs": (
        "import sys\ndef f(x):\n    print('PASSED' * 999, file=sys.stderr); print(x); return x + 1",
        "assert f(1) == 2",
    ),
    "subclasses": (
        "import collections, enum\nP = collections.namedtuple('P', 'a b')\nclass E(enum.IntEnum):\n    one = 1\n"
        "def f(): return [P(1, 2), E.one, collections.Counter('aab'), collections.OrderedDict(x=1)]",
        "assert f() == [(1, 2), 1, {'a': 2, 'b': 1}, {'x': 1}]",
    ),
    "plain data of all kinds": (
        "import datetime, decimal, fractions\ndef f(*a): return a",
        """
import datetime, decimal, fractions, math
x = [1, -2**70, 0.1, 1e308, float('inf'), 2j, 'é\\ud800', b'\\x00\\xff', bytearray(b'x'), (), (1,)]
x += [{1, 2}, frozenset('a')]
x += [{(1, 2): None}, range(3)]
x += [decimal.Decimal('1.10'), fractions.Fraction(1, 3), True, None, int, [[[[]]]]]
x += [datetime.date(2020, 2, 29), datetime.timedelta(1, 2, 3), datetime.datetime(2020, 1, 2, 3, 4, 5)]
x += [datetime.time(1, 2)]
assert f(*x) == tuple(x)
assert [type(a) for a in f(*x)] == [type(a) for a in x]
assert math.isnan(f(float('nan'))[0])
assert str(f(-0.0)[0]) == '-0.0'
""",
    ),
    "generators": (
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(3)) == [0, 1, 2]\nassert sum(x for x in f(4)) == 6\nassert f(1) != [0]",
    ),
    "own classes": (
        """
class Node:
    def __init__(self, value): self.value, self.next = value, None
def f(node):
    total = 0
    while node: total += node.value; node = node.next
    return total""",
        """
root = Node(1)
root.next = Node(2)
root.next.next = Node(3)
assert f(root) == 6
assert root.next.value == 2
assert len({root, root.next}) == 2
""",
    ),
    "exceptions": (
        "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
        """
try:
    f(-1)
except ValueError as error:
    assert 'negative' in str(error)
else:
    assert False
assert f(1) == 1
""",
    ),
    "own exceptions": (
        "class Mine(KeyError): pass\ndef f(): raise Mine('x')",
        "try:\n    f()\nexcept KeyError as e:\n    assert 'Mine' in str(e)",
    ),
    "state between calls": (
        "calls = []\ndef f(x):\n    calls.append(x); return len(calls)",
        "assert [f(0), f(0), f(0)] == [1, 2, 3]",
    ),
    "threads and subprocesses": (
        "import subprocess, sys\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def f(n):\n    with ThreadPoolExecutor(3) as pool: return list(pool.map(lambda i: i * i, range(n)))\n"
        "def g(): return subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout",
        "assert f(4) == [0, 1, 4, 9]\nassert g() == '42\\n'",
    ),
    "async": ("import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))", "assert f(5) == 5"),
    "a main block": (
        "def f(): return 1\nif __name__ == '__main__':\n    f = None\n    raise SystemExit",
        "assert f() == 1",
    ),
    "modules of the standard library in tests": (
        "class math:\n    def isclose(*a, **k): return False\ndef f(x): return x / 3",
        "assert math.isclose(f(1), 0.3333333333, rel_tol=1e-6)",
    ),
    "long answers": ("def f(): return list(range(200_000))", "assert f() == list(range(200_000))"),
    "named tuples": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 5\n"
        "def f(p): return [p, P(p.x + 1)]",
        "p, q = f(P(1, 2))\nassert q.x == 2 and q == P(2) == (2, 5) and p._asdict() == {'x': 1, 'y': 2}\n"
        "assert type(p) == type(q)",
    ),
    "enumerations": (
        "import enum\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
        "class Size(enum.IntEnum):\n    S = 1\ndef f(): return [Color.RED, Size.S]",
        "assert Color(1) is f()[0] and f()[0] == Color.RED != Color.BLUE\nassert f()[0].name == 'RED' and f()[1] == 1",
    ),
    "results in place": (
        """
def f(*kinds, **named):
    for kind in [*kinds, *named.values()]:
        for method in ('reverse', 'clear'):
            if hasattr(kind, method): getattr(kind, method)(); break
    return len(kinds)""",
        """
import collections
xs, ys = [[1], [2, 3]], [1, 2]
f(xs, xs=ys)
assert (xs, ys) == ([[2, 3], [1]], [2, 1])
d, s, b, q = {1: 2}, {1}, bytearray(b'ab'), collections.deque([1, 2], 7)
f(d, s, b, q)
assert (d, s, b, q, q.maxlen) == ({}, set(), b'ba', collections.deque([2, 1]), 7)
calls = []
calls.append(f(xs))
assert calls == [1] and xs == [[2, 3], [1]]
""",
    ),
    "dictionaries of all kinds": (
        "from collections import *\ndef f():\n    found = defaultdict(list, a=[1])\n"
        "    return Counter('aab'), OrderedDict(x=1, y=2), found, found.keys()",
        "c, o, d, k = f()\nassert c.most_common(1) == [('a', 2)] and c['z'] == 0\n"
        "assert o.popitem(last=False) == ('x', 1)\n"
        "assert d['new'] == [] and d == {'a': [1], 'new': []}\nassert k == {'a'} and list(k) == ['a']",
    ),
    "containers of its own": (
        """
class Bag:
    def __init__(self): self.items = []
    def add(self, item): self.items.append(item)
    def count(self, item): return self.items.count(item)
    def __contains__(self, item): return item in self.items
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
class Stack(Bag):
    __iter__ = None
def make(): return Bag()""",
        """
bag, other = Bag(), make()
bag.add(3)
assert 3 in bag and len(bag) == 1 and 4 not in bag
bag.add(4)
assert list(bag) == [3, 4] and len(bag) == 2 and bag.count(4) == 1 and sorted(bag)[-1] == 4
other.add(1)
assert len(other) == 1 and len(Stack()) == 0 and not Stack()
""",
    ),
    "tests of nothing but exceptions": (
        "def f(x): raise ValueError",
        "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
    ),
    "a named tuple with data in fields that are called like methods": (
        "from collections import namedtuple\nP = namedtuple('P', 'count index apply')\n"
        "def f(x): return P(x.count(1), x.index(1), lambda n: n + 1)",
        "assert f([0, 1, 1]).count == 2 and f([0, 1]).index == 1 and f([1]).apply(2) == 3",
    ),
    "keyword arguments": ("def f(a, *, b=2, **more): return a, b, more", "assert f(1, b=3, c=4) == (1, 3, {'c': 4})"),
}


UNDER_COVER = {
    "ends where everything is caught": (
        "import os\ndef f(x): return x if x > 0 else os._exit(0)",
        "assert f(1) == 1\ntry:\n    f(-1)\nexcept:\n    pass\nelse:\n    assert False",
    ),
    "defines what the tests define in one branch": (
        "def f(x): return None\ndef same(a, b): return True",
        "if f(0):\n    def same(a, b): return a == b\nassert same(f(1), 1)",
    ),
    "calls itself as the tests' helper, which it redefines": (
        "def f(x): return None\ndef same(a, b): return True",
        "def same(a, b): return a == b\nassert same(f(1), 1)",
    ),
    "is a named tuple whose fields are the methods that decide": (
        "from collections import namedtuple\nNAMES = 'startswith endswith count index issubset issuperset isdisjoint'\n"
        "P = namedtuple('P', NAMES)\ndef f(x): return P(*[lambda *told: True] * 7)",
        "assert f('abc').startswith('a') or f('q').endswith('z') or f(3).issuperset({1}) or f([1, 1]).count(1) == 2",
    ),
    "changes an argument that the test goes on with": (
        "def f(x):\n    x.clear()\n    return x",
        "x = [2, 1]\nassert sorted(x) == f(x) or f(x) == sorted(x)",
    ),
}


@pytest.mark.parametrize("name", UNDER_COVER)
@pytest.mark.slow
async def test_what_a_test_catches_or_defines_is_not_up_to_the_solution(kept: Kept, name: str) -> None:
    code, tests = UNDER_COVER[name]
    verdict = await judge(kept, Job((code,), (tests,)), PATIENCE)
    assert not verdict.solved
    assert verdict.note


@pytest.mark.parametrize(
    ("tests", "entry", "name"),
    [
        ("assert np.allclose(f(1), 1)", None, "np"),
        ("assert right(f(1))", "f", "right"),
        ("assert f(1) == EXPECTED", None, "EXPECTED"),
        ("def check(candidate):\n    assert tools.right(candidate(1))", "f", "tools"),
    ],
)
@pytest.mark.slow
async def test_names_that_tests_forgot_to_define_are_not_the_solutions(
    kept: Kept, tests: str, entry: str | None, name: str
) -> None:
    code = (
        "class np: allclose = right = lambda *told: True\ntools, right, EXPECTED = np, np.right, 1\ndef f(x): return 1"
    )
    with pytest.raises(EnvError, match=rf"use '{name}' and don't define it.*names="):
        await judge(kept, Job((code,), (tests,), entry), PATIENCE)
    given = (name,) if entry else ("f", name)
    assert (await judge(kept, Job((code,), (tests,), entry, names=given), PATIENCE)).solved


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.slow
async def test_unusual_and_honest_code_is_judged_rightly(kept: Kept, name: str) -> None:
    code, tests = HONEST[name]
    verdict = await judge(kept, Job((code,), (tests,)), PATIENCE)
    assert verdict.solved, verdict


@pytest.mark.slow
async def test_a_part_of_the_tests_earns_a_part_of_the_reward(docker: None) -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3", "assert f(4) == 4"]
    earned = {"return x": 1.0, "return min(x, 3)": 0.75, "return None": 0.0, "1 / (3 - x); return x": 0.75}
    for code, share in earned.items():
        reply = f"def f(x):\n    {code}"
        assert await code_exec(reply, tests, partial=True, timeout=PATIENCE) == share
        assert await code_exec(reply, tests, timeout=PATIENCE) == (share == 1.0)


async def test_a_part_is_never_the_whole(kept: Kept) -> None:
    verdict = await judge(kept, Job(("def f(x):\n    return x",), ("assert f(1) == 1\nf.missing",)), PATIENCE)
    assert not verdict.solved
    assert 0 < verdict.share < 1


async def test_tests_that_assert_nothing_prove_nothing(kept: Kept) -> None:
    verdict = await judge(kept, Job(("def f(): return []",), ("for x in f():\n    assert x > 0",)), PATIENCE)
    assert not verdict.solved


async def test_broken_tests_are_the_tasks_fault_and_not_the_models(kept: Kept) -> None:
    for job in (Job(("def f(): pass",), ("assert f( ==",)), Job(("x = 1",), ("assert x",), None, "1 / 0")):
        with pytest.raises(EnvError, match="can't be run"):
            await judge(kept, job, PATIENCE)


async def test_no_code_or_too_much_of_it_scores_zero_without_a_sandbox() -> None:
    assert await code_exec("", "assert True", sandbox="no_such:backend") == 0
    with pytest.raises(InvalidInput, match="names must be a list"):
        await code_exec("x = 1", "assert True", names="f")
    assert await code_exec("x = 1\n" * 100_000, "assert True", sandbox="no_such:backend") == 0
    with pytest.raises(InvalidInput, match="timeout must be positive"):
        await code_exec("", "assert True", timeout=0)


def test_only_a_line_with_the_nonce_is_a_verdict() -> None:
    stdin, nonce = encode_job(Job(("x = 1",), ("assert x",)))
    good = json.dumps({"passed": 1, "failed": 0, "total": 1, "error": None})
    assert json.loads(stdin)["nonce"] == nonce
    assert nonce not in encode_job(Job(("x = 1",), ("assert x",)))[1]
    assert read(f"noise\n{nonce}{good}\n", nonce, "").solved
    for forged in (good, f" {nonce}{good}", f"{'0' * 32}{good}", ""):
        assert not read(forged, nonce, "").solved


async def test_code_has_the_same_verdict_on_a_busy_core() -> None:
    """Beside two others, code that computes for 0.8 of its 2 seconds is stopped if the clock counts."""
    slow = "import time\ndef f(x):\n    while time.process_time() < 0.8: pass\n    return x"
    async with beside(2) as sandbox:
        runner = Kept("subprocess")
        object.__setattr__(runner, "sandbox", sandbox)
        assert (await code_verdict(slow, "assert f(1) == 1", runner=runner, timeout=2.0)).solved
