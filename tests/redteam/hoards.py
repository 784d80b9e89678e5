"""What a sandbox might take from its neighbours: things that the kernel counts by user, and not by container.

The payload is a Python program that takes all there is, prints how much, and holds it. Meanwhile a neighbour does what
programs do (`NEIGHBOUR`), and must get as far as it got before.
"""

from __future__ import annotations

from tests.redteam.attack import Attack

PRELUDE = """
import array, ctypes, errno, fcntl, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True); rt = ctypes.CDLL("librt.so.1", use_errno=True)
def until_refused(take):
    for count in range(300000):
        try: done = take(count)
        except OSError: return count
        if done is not None and done < 0: return count
def hold(count):
    print("took", count, flush=True); time.sleep(600)
"""

NEIGHBOUR = (
    PRELUDE
    + """
def mark(name, result): print(name, result)
mark("inotify", all(libc.inotify_init() >= 0 for _ in range(3)))
mark("pipe", [fcntl.fcntl(os.pipe()[1], 1032) for _ in range(3)])
mark("queue", rt.mq_open(b"/mine", 0o102, 0o600, None) >= 0); rt.mq_unlink(b"/mine")
signal.pthread_sigmask(signal.SIG_BLOCK, [40]); mark("signal", libc.sigqueue(os.getpid(), 40, None))
a, b = socket.socketpair()
try: mark("rights", a.sendmsg([b"x"], [(1, 1, array.array("i", [0, 0]))]))
except OSError as error: mark("rights", error)
made = libc.shmget(0, 65536, 0o1600); mark("lock", libc.shmctl(made, 11, None)); libc.shmctl(made, 0, None)
"""
)

HOARDS = [
    Attack("inotify instances", "hold(until_refused(lambda n: libc.inotify_init()))", "a neighbour can't watch a file"),
    Attack(
        "pipe memory",
        "hold(until_refused(lambda n: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)))",
        "a neighbour's pipes are a page long",
    ),
    Attack(
        "message queues",
        "hold(until_refused(lambda n: rt.mq_open(b'/q%d' % n, 0o102, 0o600, None)))",
        "a neighbour can't make a message queue",
    ),
    Attack(
        "pending signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "hold(until_refused(lambda n: libc.sigqueue(os.getpid(), 40, None)))",
        "a neighbour's queued signals are lost",
    ),
    Attack(
        "descriptors in flight",
        "pairs = [socket.socketpair() for _ in range(40)]; fds = array.array('i', [0] * 200)\n"
        "hold(until_refused(lambda n: pairs[n % 40][0].sendmsg([b'x'], [(1, 1, fds)]) if n < 400 else -1))",
        "a neighbour can't pass a descriptor on",
    ),
    Attack(
        "locked memory",
        "hold(until_refused(lambda n: libc.shmctl(libc.shmget(0, 65536, 0o1600), 11, None)))",
        "a neighbour can't lock a page",
    ),
]
