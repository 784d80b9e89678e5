"""Ways for a process to get away from whoever ends its command: the payload defines `hide`, which a child calls."""

from __future__ import annotations

from tests.redteam.attack import Attack

ALIVE = "the child still runs after its command's time is up"

ESCAPES = [
    Attack(
        "a sleep that ignores every signal it can",
        """
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
hide = lambda: None
""",
        ALIVE,
    ),
    Attack("a session of its own", "hide = os.setsid", ALIVE),
    Attack("a double fork", "def hide():\n    if os.fork(): os._exit(0)", ALIVE),
    Attack(
        "a daemon by the book",
        """
def hide():
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    os.chdir('/'); [os.close(fd) for fd in (0, 2)]
""",
        ALIVE,
    ),
    Attack(
        "a process group of its own with another's name",
        "def hide():\n    os.setpgid(0, 0)\n    libc.prctl(15, b'agentrl-runner', 0, 0, 0)",
        ALIVE,
    ),
]
