"""Code under test that would rather hold, break or blame the scoring than be judged by it.

The payload is Python that runs when a solution is imported, in the sandbox that scores it; what follows it mends
nothing. Cheats that forge a result, and know how each scorer works, are beside those scorers' tests (`catalogue`).
"""

from __future__ import annotations

from tests.redteam.attack import Attack

PAID = "it is worth something"
BLAMED = "it is worth something, or counts as a failure of ours, which would have the session drawn again"
HELD = "it is worth something, or holds the sandbox until the longest time-out"

ANSWERS = [
    Attack("ends the loops of who calls it", "def answer(given): raise StopIteration", PAID),
    Attack("ends the asynchronous loops of who calls it", "def answer(given): raise StopAsyncIteration", PAID),
    Attack("raises what ends the reading of a sequence", "def answer(given): raise IndexError", PAID),
    Attack(
        "contains everything",
        """
class Answer:
    def __contains__(self, item): return True
    def __len__(self): return 1
    def __iter__(self): return iter(())
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "says yes to every question",
        """
class Answer:
    def __getattr__(self, name): return lambda *told: True
    def __call__(self, *told): return True
    def __len__(self): return 1
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "is of a class that says yes",
        """
class Kind(type):
    def __instancecheck__(cls, other): return True
    def __eq__(cls, other): return True
    def __contains__(cls, item): return True
    def __len__(cls): return 1
    def __iter__(cls): return iter(range(999))
    __hash__ = type.__hash__
    startswith = issubset = count = index = find = lambda *told: True
class answer(metaclass=Kind):
    def __new__(cls, given): return cls
""",
        PAID,
    ),
    Attack(
        "has all items and the length of one",
        """
class Answer:
    def __len__(self): return 1
    def __iter__(self): return iter([*range(999), "a-b"])
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "is long when looked through and short when measured",
        """
class Answer:
    asked = 0
    def __len__(self):
        self.asked += 1
        return 1000 if self.asked == 1 else 1
    def __iter__(self): return iter([*range(999), "a-b"] if self.asked == 1 else [0])
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "passes for a number and a text",
        """
class Answer:
    __class__ = int
    def __eq__(self, other): return True
    def __contains__(self, item): return True
    def __int__(self): return 999
    __index__ = __trunc__ = __int__
    def __len__(self): return 1
    def __hash__(self): return 4
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "is a list, a text and a dictionary that contain everything",
        """
class Answer(list):
    def __contains__(self, item): return True
    def count(self, item): return 1
    def index(self, item): return 0
    def __len__(self): return 1
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack(
        "is the operand that decides",
        """
class Answer:
    def __radd__(self, other): return other
    def __rsub__(self, other): return 0
    def __rand__(self, other): return other
    __ror__ = __rxor__ = __rmul__ = __radd__
    def __ge__(self, other): return True
    __le__ = __gt__ = __lt__ = __eq__ = __ge__
    __hash__ = object.__hash__
    def __contains__(self, item): return True
def answer(given): return Answer()
""",
        PAID,
    ),
    Attack("ends the process that asks", "import os\ndef answer(given): os._exit(0)", PAID),
    Attack("leaves the process that asks", "import sys\ndef answer(given): sys.exit(0)", PAID),
    Attack("empties what it is given", "def answer(given):\n    given.clear()\n    return given", PAID),
]
"""What a function can come to; the payload defines `answer`, in whose place an honest one would have come to data."""

CHEATS = [
    Attack(
        "stops who runs the tests",
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)",
        HELD,
    ),
    Attack("stops everything", "import os, signal\nos.kill(-1, signal.SIGSTOP)", HELD),
    Attack("kills everything", "import os, signal\nos.kill(-1, signal.SIGKILL)", BLAMED),
    Attack("closes every descriptor", "import os\nos.closerange(0, 1000)", PAID),
    Attack("prints brackets beyond any decoder", "print('[' * 60000)\nraise ValueError('{' * 60000)", BLAMED),
    Attack("raises a lone surrogate", "raise ValueError('\\ud800 \\x00 \\x1b[2J')", BLAMED),
    Attack(
        "closes the work folder",
        "import os\nfor folder, _, _ in os.walk('/work', topdown=False): os.chmod(folder, 0)\nos.chmod('/tmp', 0)",
        BLAMED,
    ),
    Attack(
        "leaves no process to be started",
        """
import os, signal, time
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            if os.fork() == 0: time.sleep(60)
        except OSError: time.sleep(0.01)
""",
        BLAMED,
    ),
]
