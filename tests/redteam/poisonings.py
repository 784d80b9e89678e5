"""What a session might leave in a sandbox, for the next one to stumble over or to read.

The payload is a Python program; it runs as the sandbox's user, and has the helpers of `PRELUDE`. After it the sandbox
is reset as a pool does it. Then either the sandbox is thrown away, or the next session sees what it would see in a new
one (`LOOK`). `BACKGROUND` programs still run when the reset begins.
"""

from __future__ import annotations

from tests.redteam.attack import Attack

PRELUDE = """
import ctypes, fcntl, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def acl(kind, path, perm, who=None):
    named = [(2, 7, who)] if who is not None else []
    entries = [(1, perm, -1), *named, (4, perm, -1), (16, 7, -1), (32, perm, -1)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(path, f"system.posix_acl_{kind}", data)
def flags(path, value):
    fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, struct.pack("<q", value))
def connection(family, address):
    server = socket.socket(family); server.bind((address, 5555)); server.listen()
    client = socket.create_connection((address, 5555)); other, _ = server.accept()
    return server, client, other
def system_v(call, *args):
    made = call(*args); assert made >= 0, os.strerror(ctypes.get_errno()); return made
"""

LOOK = """
import fcntl, glob, os, struct
def flags(path):
    try: return struct.unpack("<q", fcntl.ioctl(os.open(path, os.O_RDONLY), 0x80086601, b"\\0" * 8))[0]
    except OSError as error: return error.errno
for tree in ("/work", "/tmp", "/dev/shm", "/dev/mqueue"):
    seen, space = os.stat(tree), os.statvfs(tree)
    print(tree, oct(seen.st_mode), seen.st_uid == os.getuid(), seen.st_gid == os.getgid(), sorted(os.listdir(tree)))
    print(tree, os.listxattr(tree), flags(tree))
    print(tree, space.f_blocks - space.f_bfree, space.f_files - space.f_ffree)
    print(tree, "set to the past" if seen.st_mtime < 1e9 else "")
    if tree == "/dev/mqueue": continue
    with open(tree + "/new", "w") as file: file.write("x" * 100)
    os.mkdir(tree + "/folder"); os.mkdir(tree + "/folder/below"); open(tree + "/folder/below/file", "w").close()
    print(tree, oct(os.stat(tree + "/new").st_mode), oct(os.stat(tree + "/folder").st_mode),
          os.listxattr(tree + "/new"), os.listxattr(tree + "/folder"))
    os.unlink(tree + "/folder/below/file"); os.rmdir(tree + "/folder/below"); os.rmdir(tree + "/folder")
    os.unlink(tree + "/new")
for name in ("shm", "sem", "msg"): print(open("/proc/sysvipc/" + name).read().splitlines()[1:])
for name in ("tcp", "tcp6", "udp", "udp6", "unix", "ip6_flowlabel"):
    print(open("/proc/net/" + name).read().splitlines()[1:])
print(len(glob.glob("/proc/[0-9]*")))
"""

UNUSABLE = "the next session's files can't be written, or come out with another mode"
READABLE = "the next session reads what this one wrote"
ALIVE = "something of this session still runs, or holds memory, in the next"

POISONINGS = [
    Attack("work folder read-only", "os.chmod('/work', 0o500)", UNUSABLE),
    Attack("work folder closed", "os.chmod('/work', 0)", UNUSABLE),
    Attack("temporary folder closed", "os.chmod('/tmp', 0)", UNUSABLE),
    Attack("set-gid, set-uid and sticky work folder", "os.chmod('/work', 0o7777)", UNUSABLE),
    Attack("default ACL without rights", "acl('default', '/work', 0)", UNUSABLE),
    Attack("default ACL on the temporary folder", "acl('default', '/tmp', 0, 4242)", UNUSABLE),
    Attack("access ACL for a stranger", "acl('access', '/work', 5, 4242)", UNUSABLE),
    Attack(
        "default ACL below a closed folder",
        "os.mkdir('/work/a'); acl('default', '/work/a', 0); os.mkdir('/work/a/b')",
        UNUSABLE,
    ),
    Attack("extended attribute", "os.setxattr('/work', 'user.key', b'secret')", READABLE),
    Attack("many extended attributes", "for i in range(50): os.setxattr('/tmp', f'user.k{i}', b's' * 100)", READABLE),
    Attack("no-dump flag", "flags('/work', 0x40)", READABLE),
    Attack("no-access-time flag", "flags('/tmp', 0x80)", READABLE),
    Attack("times of the work folder", "os.utime('/work', ns=(123456789, 987654321))", READABLE),
    Attack("shared memory of mode 0", "system_v(libc.shmget, 77, 4096, 0o1000)", READABLE),
    Attack("semaphores of mode 0", "system_v(libc.semget, 77, 3, 0o1000)", READABLE),
    Attack("message queue of mode 0", "system_v(libc.msgget, 77, 0o1000)", READABLE),
    Attack(
        "shared memory given to root",
        """
made = system_v(libc.shmget, 78, 4096, 0o1600)
state = ctypes.create_string_buffer(256); libc.shmctl(made, 2, state)
struct.pack_into("<III", state, 0, 78, 0, 0); libc.shmctl(made, 1, state)""",
        READABLE,
    ),
    Attack(
        "shared memory removed while attached",
        """
made = system_v(libc.shmget, 79, 4096, 0o1600); libc.shmat.restype = ctypes.c_void_p
libc.shmat(made, None, 0); libc.shmctl(made, 0, None)""",
        ALIVE,
    ),
    Attack(
        "POSIX message queue",
        "assert ctypes.CDLL('librt.so.1').mq_open(b'/left', 0o102, 0, None) >= 0",
        READABLE,
    ),
    Attack("file in shared memory", "open('/dev/shm/left', 'w').write('x'); os.chmod('/dev/shm/left', 0)", READABLE),
    Attack(
        "connection that has just ended",
        """
server, client, other = connection(socket.AF_INET, "127.0.0.1"); client.close(); other.close()""",
        READABLE,
    ),
    Attack(
        "connection over IPv6 that has just ended",
        """
server, client, other = connection(socket.AF_INET6, "::1"); other.close(); client.close()""",
        READABLE,
    ),
    Attack(
        "connection half closed with data on the way",
        """
server, client, other = connection(socket.AF_INET, "127.0.0.1")
client.send(b"x" * 60000); client.shutdown(socket.SHUT_WR); os._exit(0)""",
        READABLE,
    ),
    Attack(
        "lingering flow label",
        """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
request = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack(">I", 0x4242)
s.setsockopt(41, 32, request + struct.pack("<BBHHHI", 0, 255, 1, 60, 60, 0))""",
        READABLE,
    ),
    Attack(
        "full temporary folder",
        """
try:
    with open('/tmp/fill', 'wb', buffering=0) as f:
        while True: f.write(b'x' * (1 << 20))
except OSError: pass""",
        UNUSABLE,
    ),
    Attack(
        "no inodes left",
        """
try:
    for i in range(100000): os.close(os.open(f'/tmp/{i}', os.O_CREAT))
except OSError: pass""",
        UNUSABLE,
    ),
    Attack(
        "deep tree with closed folders",
        """
os.chdir('/work')
for depth in range(300): os.mkdir('d' * 200); os.chdir('d' * 200)
os.mkdir('locked'); open('locked/f', 'w'); os.chmod('locked', 0)""",
        READABLE,
    ),
    Attack(
        "names that tools trip over",
        r"""
for name in ('-rf', '*', 'a\nb', ' ', '~', '\x01', 'x' * 255, '.agentrl-1-0', '.agentrl-probe-1'):
    open('/work/' + name, 'w')""",
        READABLE,
    ),
    Attack(
        "sockets, pipes and links for files",
        """
os.mkfifo('/work/fifo'); socket.socket(socket.AF_UNIX).bind('/work/socket')
os.symlink('/etc', '/work/link'); os.symlink('loop', '/work/loop')
open('/work/f', 'w'); os.link('/work/f', '/work/g')""",
        READABLE,
    ),
    Attack(
        "descriptors in flight between sockets",
        """
import array
a, b = socket.socketpair(socket.AF_UNIX); held = open('/work/held', 'w+'); held.write('x' * 100000); held.flush()
os.unlink('/work/held')
rights = array.array('i', [a.fileno(), b.fileno(), held.fileno()])
for s in (a, b): s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])""",
        ALIVE,
    ),
]

BACKGROUND = [
    Attack(
        "writer in a session of its own",
        """
if os.fork(): time.sleep(600)
os.setsid()
while True: open(f'/work/{time.time()}', 'w')""",
        READABLE,
    ),
    Attack(
        "writer that forks ahead of its killer",
        """
os.setsid()
while True:
    if os.fork(): os._exit(0)
    try: open('/work/again', 'w').write('secret')
    except OSError: pass""",
        READABLE,
    ),
    Attack(
        "deleted file held open",
        """
f = open('/work/f', 'w+'); f.write('x' * 1000000); f.flush(); os.unlink('/work/f'); time.sleep(600)""",
        ALIVE,
    ),
    Attack(
        "mode changed again and again",
        """
while True: os.chmod('/work', 0o500); os.chmod('/work', 0o700)""",
        UNUSABLE,
    ),
    Attack(
        "listener on an abstract socket",
        """
s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen(); time.sleep(600)""",
        ALIVE,
    ),
    Attack(
        "listener on a port, with a connection",
        """
held = connection(socket.AF_INET, '127.0.0.1'); held[1].send(b'x'); time.sleep(600)""",
        ALIVE,
    ),
    Attack(
        "shared memory attached",
        """
libc.shmat.restype = ctypes.c_void_p
libc.shmat(system_v(libc.shmget, 80, 4096, 0o1000 | 0o600), None, 0); time.sleep(600)""",
        ALIVE,
    ),
]
