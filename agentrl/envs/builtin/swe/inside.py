"""The program that runs tests inside a scoring sandbox. It is sent as text and imports nothing of ours.

One process supervises and a fork of it runs the tests. pytest is imported before the fork, and before any code under
test could be; with the interpreter isolated (-I), no configuration file, no plugin and no `conftest.py` but the task's
own. The supervisor can't be inspected by its children (PR_SET_DUMPABLE), inherits what they leave behind
(PR_SET_CHILD_SUBREAPER) and kills it, and reads its nonce only when all of them are gone. What a child reports is not
believed for its own sake: tests show what they see (`observe`), and what they should see is not in here.
"""

PROGRAM = r'''
import builtins, ctypes, datetime, decimal, fractions, json, os, random, resource, select, signal, sys, time
libc = ctypes.CDLL(None)
DUMPABLE, SUBREAPER = 4, 36

def line():
    """A line of standard input, and not a byte more: the nonce is to stay in the pipe."""
    text = b""
    while not text.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit("no configuration")
        text += byte
    return json.loads(text)

def encode(value, depth=0):
    """A value of built-in kinds as JSON; a subclass's as its base sees it. Anything else is an object, and no more."""
    kind = type(value).__name__
    if value is None or value is True or value is False:
        return value
    if depth > 40:
        return ["object", kind]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return ["int", int.__repr__(value)]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", float.hex(complex.__getattribute__(value, "real")),
                float.hex(complex.__getattribute__(value, "imag"))]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, (list, tuple)):
        base = list if isinstance(value, list) else tuple
        return [base.__name__, [encode(item, depth + 1) for item in base.__iter__(value)]]
    if isinstance(value, (set, frozenset)):
        base = set if isinstance(value, set) else frozenset
        return ["set", [encode(item, depth + 1) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in dict.items(value)]]
    if isinstance(value, type):
        return ["type", value.__module__ + "." + value.__qualname__]
    if type(value) in (decimal.Decimal, fractions.Fraction):
        return [kind.lower(), str(value)]
    if type(value) is range:
        return ["range", [value.start, value.stop, value.step]]
    if type(value) in (datetime.date, datetime.datetime, datetime.time, datetime.timedelta):
        return ["time", repr(value)]
    return ["object", kind]

def shown(value):
    try:
        return encode(value)
    except Exception:
        return ["object", "unreadable"]

class Raising:
    """A block that shows what it raised, and goes on."""
    def __init__(self, observer, site, kinds):
        self.observer, self.site, self.kinds = observer, site, kinds
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        self.type, self.value, self.exception, self.tb = kind, error, error, trace
        fits = []
        for name in self.kinds:
            try:
                fits.append(isinstance(error, name()))
            except Exception:
                fits.append(False)
        if error is not None and not isinstance(error, Exception) and not any(fits):
            return False
        try:
            text = str(error)[:500]
        except Exception:
            text = ""
        self.observer.events.append([self.site, None if error is None else ["raised", fits, text]])
        return error is not None
    def match(self, pattern):
        import re
        assert re.search(pattern, str(self.value))
        return True

class Observer:
    """What the rewritten assertions call: (number, what is seen, and in a proof what is expected)."""
    def __init__(self):
        self.events = []
    def __call__(self, site, *values):
        self.events.append([site, *map(shown, values)])
    def raising(self, site, kinds):
        return Raising(self, site, kinds)

class Reporter:
    def __init__(self, pipe):
        self.pipe, self.outcomes, self.messages = pipe, {}, {}
        self.observer = builtins._observe = Observer()
    def pytest_runtest_logstart(self, nodeid):
        self.observer.events = []
    def send(self, *row):
        data = json.dumps(row).encode() + b"\n"
        while data:
            data = data[os.write(self.pipe, data):]
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            before = self.outcomes.get(report.nodeid)
            if before in (None, "passed"):
                self.outcomes[report.nodeid] = report.outcome
        if report.failed:
            self.messages.setdefault(report.nodeid, str(report.longrepr)[-400:])
        if report.when == "teardown":
            message = self.messages.get(report.nodeid, "")
            self.send(report.nodeid, self.outcomes.get(report.nodeid, "failed"), message, self.observer.events)
    def pytest_collectreport(self, report):
        if report.failed:
            self.send(report.nodeid, "error", str(report.longrepr)[-800:], [])

def child(run, pipe, config):
    os.setsid()
    null, out = os.open(os.devnull, os.O_RDWR), os.open(run["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    libc.prctl(DUMPABLE, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (config["file_bytes"],) * 2)
    os.chdir(run["root"])
    sys.path[:0] = [os.path.join(run["root"], part) for part in config["paths"]]
    sys.argv = ["pytest"]
    options = ["-c", os.devnull, "--rootdir", run["root"], "--confcutdir", run["root"], "-q", "-p", "no:cacheprovider"]
    options += ["--noconftest"] if not config["conftest"] else []
    for plugin in ("junitxml", "pastebin", "nose", "faulthandler", "stepwise", "setuponly", "setupplan", "doctest"):
        options += ["-p", "no:" + plugin]
    import pytest
    pytest.main([*options, "--tb=short", "--assert=plain", *run["files"]], plugins=[Reporter(pipe)])

def children(pid, thread):
    with open("/proc/%d/task/%d/children" % (pid, thread)) as file:
        return [int(child) for child in file.read().split()]

def descendants():
    return children(os.getpid(), os.getpid())

def look():
    """Seconds that our descendants have computed, reaped ones too, and how many of their threads can run."""
    times, can_run, left = os.times(), 0, descendants()
    ran = times.children_user + times.children_system
    while left:
        pid = left.pop()
        try:
            for thread in map(int, os.listdir("/proc/%d/task" % pid)):
                with open("/proc/%d/task/%d/stat" % (pid, thread), "rb") as file:
                    can_run += file.read().rpartition(b")")[2].split()[0] == b"R"
                left += children(pid, thread)
            with open("/proc/%d/stat" % pid, "rb") as file:
                ran += sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            pass  # it has ended
    return ran, can_run

class Clock:
    """The time of tests that counts, as the sandbox's runner counts it: not what they wait for a processor."""
    def __init__(self, limit, busy):
        self.limit, self.busy, self.step = limit, busy, min(max(limit / 64, 0.01), 1.0)
        self.began = self.looked = time.monotonic()
        self.next, self.runnable, self.ran, self.total = self.began + self.step, 0.0, 0.0, look()[0]
    def ended(self):
        now = time.monotonic()
        if now < self.next:
            return None
        total, can_run = look()
        self.ran += (total - self.total) / max(1, min(can_run, len(os.sched_getaffinity(0))))
        self.runnable += now - self.looked if can_run else 0.0
        self.total, self.looked = total, now
        left = self.limit - (now - self.began) + max(self.runnable - self.ran, 0.0)
        self.next = now + max(min(left, self.step * random.uniform(0.5, 1.5)), 0.001)
        return "timeout" if left <= 0 else "starved" if now - self.began > self.busy * self.limit else None

def sweep():
    """Kill whatever is left; orphans of those killed become our children, so again until there is none."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        left = descendants()
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)

def perform(run, config):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        code = 3
        try:
            os.close(reader)
            child(run, writer, config)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    body, clock = bytearray(), Clock(config["timeout"], config["busy"])
    ended, over = "over", False
    while True:
        late = clock.ended()
        if late or len(body) > config["report_bytes"]:
            ended = late or "flood"
            break
        if not select.select([reader], [], [], 0.0 if over else min(max(clock.next - time.monotonic(), 0.0), 0.5))[0]:
            if over:
                break  # its report's pipe is held open by what it left behind, and nothing more is in it
            over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            continue
        data = os.read(reader, 1 << 16)
        if not data:
            break
        body += data
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    status = os.waitpid(pid, 0)[1]
    sweep()
    os.close(reader)
    try:
        with open(run["output"], "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 2000))
            tail = file.read(2000).decode("utf-8", "replace")
    except OSError:
        tail = ""
    return {"rows": body.decode("utf-8", "replace"), "ended": ended, "status": status, "tail": tail}

libc.prctl(DUMPABLE, 0)
libc.prctl(SUBREAPER, 1)
config = line()
for key in [key for key in os.environ if key.startswith(("PYTHON", "PYTEST", "COV_", "LD_"))]:
    del os.environ[key]
os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONDONTWRITEBYTECODE="1", **config["env"])
sys.dont_write_bytecode = True
import pytest, _pytest.python, _pytest.unittest, _pytest.tmpdir, _pytest.monkeypatch, _pytest.capture, unittest
runs = [perform(run, config) for run in config["runs"]]
nonce = line()
print("\n" + nonce + json.dumps(runs), flush=True)
'''
