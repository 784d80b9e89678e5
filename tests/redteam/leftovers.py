"""What a command might leave in the folders of a sandbox without a container, which this user empties and copies.

The payload is a Python program whose folder is the sandbox's `/work`; `outside` is a folder of the machine with a file
`kept` in it, that is nobody's but the user's. Nothing keeps a command from it (`sandbox=subprocess` isolates nothing);
but what empties or copies the sandbox afterwards must never follow a link there.
"""

from __future__ import annotations

from tests.redteam.attack import attacks

OUTSIDE = "something outside of the sandbox is removed, changed or copied, or the next session sees it"
LEFTOVERS = attacks(
    OUTSIDE,
    [
        "open('left', 'w').write('x')",
        "os.symlink(outside, 'link')",
        "os.symlink(outside + '/kept', 'link')",
        "os.symlink('../' * 30 + outside, 'link')",
        "os.symlink('link', 'link')",
        "os.makedirs('a/b'); os.symlink(outside, 'a/b/link')",
        "os.link(outside + '/kept', 'link')",
        "os.mkdir('locked'); os.symlink(outside, 'locked/link'); os.chmod('locked', 0)",
        "os.mkfifo('fifo'); os.mkdir('empty')",
        "socket.socket(socket.AF_UNIX).bind('socket')",
        "[(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(60)]; os.symlink(outside, 'link')",
    ],
)
REPLACED = attacks(
    OUTSIDE,
    [
        "here = os.getcwd(); os.rename(here, here + '-old'); os.symlink(outside, here)",
        "here = os.getcwd(); os.rmdir(here); os.symlink(outside, here)",
        "here = os.getcwd(); other = os.path.dirname(here) + '/tmp'; os.rmdir(other); os.symlink(outside, other)",
    ],
)
"""A writable folder itself becomes a link: it may be copied, which a command could do as well, but never emptied."""
