"""The kernel's borders: mounts, devices, namespaces, privileges, the daemon's socket, the root file system.

The payload is a Python program with the helpers of `tests/tools/sandbox/attacks/conftest.py`. Each line that it prints
is one thing it tried and the error it got; "done" or a value would be a success.
"""

from __future__ import annotations

from tests.redteam.attack import Attack

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOSYS", "ENOENT", "EINVAL", "EAFNOSUPPORT", "ENODEV", "ENXIO"}
GRANTED = "one of the calls succeeds, or fails for another reason than that it is refused"

KERNEL = [
    Attack(
        "mounting file systems",
        """
os.mkdir("/work/m")
for kind in (b"tmpfs", b"proc", b"sysfs", b"overlay", b"cgroup", b"devtmpfs"):
    print(kind.decode(), call("mount", kind, b"/work/m", kind, 0, None))
print("bind", call("mount", b"/", b"/work/m", None, 4096, None))
print("remount", call("mount", None, b"/", None, 32, None))
print("umount", call("umount2", b"/proc", 2), call("umount2", b"/.agentrl", 2))
print("fsopen", call(430, b"tmpfs", 0))
print("open_tree", call(428, -100, b"/", 1))
print("move_mount", call(429, 3, b"", -100, b"/work/m", 4))
""",
        GRANTED,
    ),
    Attack(
        "making devices",
        """
import stat
for name, major, minor in (("sda", 8, 0), ("vda", 254, 0), ("mem", 1, 1), ("kmsg", 1, 11), ("fuse", 10, 229)):
    attempt(name, lambda: os.mknod(f"/work/{name}", stat.S_IFBLK | 0o666, os.makedev(major, minor)))
    attempt(name, lambda: os.mknod(f"/tmp/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor)))
""",
        GRANTED,
    ),
    Attack(
        "opening the host's devices",
        """
for name in "mem kmem port kmsg sda vda loop-control fuse net/tun kvm dri nvidia0".split():
    attempt(name, lambda: os.open(f"/dev/{name}", os.O_RDWR))
""",
        GRANTED,
    ),
    Attack(
        "new namespaces by unshare",
        """
for name, flag in {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000,
                   "ipc": 0x8000000, "cgroup": 0x2000000, "time": 0x80}.items():
    print(name, call("unshare", flag))
""",
        GRANTED,
    ),
    Attack(
        "new namespaces by clone",
        """
for name, flag in {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000,
                   "user and pid": 0x30000000}.items():
    print(name, call(56, flag | 17, 0, 0, 0, 0))
arguments = struct.pack("<11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
print("clone3", call(435, arguments, len(arguments)))
""",
        GRANTED,
    ),
    Attack(
        "entering namespaces",
        """
for name in ("mnt", "net", "pid", "user", "uts", "ipc", "cgroup"):
    attempt("open", lambda: os.open(f"/proc/1/ns/{name}", os.O_RDONLY))
    own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY); print(name, call("setns", own, 0))
print("by pidfd", call("setns", os.pidfd_open(os.getpid()), 0x20000))
""",
        GRANTED,
    ),
    Attack(
        "becoming somebody else",
        """
for what in ("setuid", "setgid", "setfsuid"):
    if what != "setfsuid": print(what, call(what, 0))
print("setresuid", call("setresuid", 0, 0, 0)); print("setgroups", call("setgroups", 1, ctypes.byref(ctypes.c_int(0))))
attempt("chown", lambda: (open("/work/f", "w").close(), os.chown("/work/f", 0, 0))[1])
""",
        GRANTED,
    ),
    Attack(
        "raising capabilities",
        """
header = struct.pack("<Ii", 0x20080522, 0)
print("capset", call("capset", header, struct.pack("<6I", 0xffffffff, 0xffffffff, 0, 0x1ff, 0x1ff, 0)))
print("ambient", call("prctl", 47, 2, 21, 0, 0))
print("bounding", call("prctl", 24, 21, 0, 0, 0))
print("securebits", call("prctl", 28, 1, 0, 0, 0))
print("unset no_new_privs", call("prctl", 38, 0, 0, 0, 0))
""",
        GRANTED,
    ),
    Attack(
        "the kernel's switches",
        """
paths = '''/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches
    /proc/sys/kernel/hostname /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/shmmax /proc/sys/vm/overcommit_memory
    /proc/irq/0/smp_affinity /proc/bus/pci/devices /proc/mtrr /sys/power/state /sys/kernel/uevent_helper
    /sys/kernel/mm/ksm/run /sys/module/overlay/parameters/redirect_dir'''
for path in paths.split():
    attempt(path, lambda: os.open(path, os.O_WRONLY))
""",
        GRANTED,
    ),
    Attack(
        "what the kernel would tell",
        """
def look(path):
    if not os.path.isdir(path): return os.open(path, os.O_RDONLY)
    if os.listdir(path): return len(os.listdir(path))
    raise OSError(errno.EACCES, "masked: empty")
for path in ("/proc/kcore", "/proc/kmsg", "/proc/1/stack", "/sys/firmware", "/proc/kpagecount", "/sys/kernel/debug",
             "/proc/vmallocinfo"):
    attempt(path, lambda: look(path))
print("syslog", call(103, 3, ctypes.create_string_buffer(100), 100))
""",
        GRANTED,
    ),
    Attack(
        "control groups",
        """
for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/devices"):
    for name in ("release_agent", "cgroup.procs", "memory.limit_in_bytes", "memory.max", "pids.max", "devices.allow"):
        attempt(f"{root}/{name}", lambda: os.open(f"{root}/{name}", os.O_WRONLY))
    attempt(root, lambda: os.mkdir(f"{root}/mine"))
""",
        GRANTED,
    ),
    Attack(
        "the root file system",
        """
paths = '''/etc/passwd /usr/bin/python3 /etc/ld.so.preload /root/x /x /bin/sh /lib/x /etc/hosts /etc/resolv.conf
    /etc/hostname /usr/lib/python3/dist-packages/sitecustomize.py'''
for path in paths.split():
    attempt(path, lambda: os.open(path, os.O_WRONLY | os.O_CREAT))
""",
        GRANTED,
    ),
    Attack(
        "the daemon's sockets",
        """
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/var/run/podman.sock",
             "/run/systemd/private"):
    s = socket.socket(socket.AF_UNIX); attempt(path, lambda: s.connect(path))
for line in open("/proc/self/mounts"):
    if "docker.sock" in line: print("mounted", line)
""",
        GRANTED,
    ),
    Attack(
        "leaving the root directory",
        """
print("chroot", call("chroot", b"/work")); print("pivot_root", call(155, b"/work", b"/work"))
print("handle of", call(303, -100, b"/", ctypes.create_string_buffer(200), ctypes.byref(ctypes.c_int()), 0))
print("by handle", call(304, -100, struct.pack("<IIQ", 8, 1, 2), 0))
""",
        GRANTED,
    ),
    Attack(
        "modules, boots and clocks",
        """
print("module", call(175, b"", 0, b""), call(313, 0, b"", 0), call(176, b"overlay", 0))
print("kexec", call(246, 0, 0, None, 0), call(320, 0, 0, 0, b"", 0))
print("reboot", call("reboot", 0x1234567))
print("swapon", call("swapon", b"/work/x", 0))
print("acct", call("acct", b"/work/x"))
print("time", call(227, 0, struct.pack("<qq", 0, 0)), call(164, struct.pack("<qq", 0, 0), None))
print("names", call("sethostname", b"x", 1), call("setdomainname", b"x", 1))
print("io ports", call("iopl", 3), call("ioperm", 0, 8, 1))
""",
        GRANTED,
    ),
    Attack(
        "young and large interfaces",
        """
print("bpf", call(321, 0, b"\\0" * 128, 128))
print("perf", call(298, b"\\0" * 128, 0, -1, -1, 0))
print("io_uring", call(425, 8, b"\\0" * 120))
print("userfaultfd", call(323, 0))
print("keys", call(248, b"user", b"k", b"v", 1, -3), call(250, 0, -3, 0))
print("fanotify", call(300, 0, 0))
print("memfd_secret", call(447, 0))
print("move_pages", call(279, 1, 0, 0, 0, 0, 0))
print("kcmp", call(312, 1, 1, 0, 0, 0))
""",
        GRANTED,
    ),
    Attack(
        "sockets of other families",
        """
families = {"packet": (17, 3), "raw": (2, 3), "icmp": (2, 3), "raw6": (10, 3), "vsock": (40, 1), "alg": (38, 5),
            "bluetooth": (31, 3),
            "xdp": (44, 3), "tipc": (30, 1), "kcm": (41, 5), "can": (29, 3), "rds": (21, 5)}
for name, (family, kind) in families.items():
    attempt(name, lambda: socket.socket(family, kind, 1 if family in (2, 10) else 0))
""",
        GRANTED,
    ),
    Attack(
        "32-bit and x32 calls, which a filter could forget",
        """
child = os.fork()
if child == 0: print("x32", call(0x40000000 + 272, 0x10000000), flush=True); os._exit(0)
status = os.wait()[1]
if os.WIFSIGNALED(status): print("x32", "EPERM" if os.WTERMSIG(status) == 31 else os.WTERMSIG(status))
import mmap
code = mmap.mmap(-1, 4096, prot=7); code.write(bytes.fromhex("53b836010000bb00000010cd805bc3"))
child = os.fork()
if child == 0:
    entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    result = entry(); print("i386", errno.errorcode.get(-result, result), flush=True); os._exit(0)
status = os.wait()[1]
if os.WIFSIGNALED(status): print("i386", "EPERM" if os.WTERMSIG(status) == 31 else os.WTERMSIG(status))
""",
        GRANTED,
    ),
]
