"""Write `seccomp.json`: every system call that the kernel's headers name, less those refused here, with reasons.

An allow list, so that calls which future kernels add stay shut; made from a list of refusals, because those are
what one wants to read and argue about. Refused calls fail with EPERM (ENOSYS where programs fall back on it).
Run with a newer kernel's headers to take in newer calls: python sandboxes/make_seccomp.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

REFUSED = {
    "other processes' memory and descriptors": "ptrace process_vm_readv process_vm_writev process_madvise "
    "pidfd_getfd kcmp",
    "file systems": "mount umount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick pivot_root "
    "chroot swapon swapoff quotactl quotactl_fd open_by_handle_at name_to_handle_at fanotify_init fanotify_mark",
    "namespaces": "unshare setns",
    "the kernel": "init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load "
    "kexec_file_load bpf perf_event_open syslog reboot acct lookup_dcookie nfsservctl uselib _sysctl sysfs ustat vm86 "
    "vm86old iopl ioperm modify_ldt vhangup",
    "clocks and names of the host": "settimeofday stime clock_settime clock_settime64 clock_adjtime clock_adjtime64 "
    "adjtimex sethostname setdomainname",
    "keys, which have no namespace": "add_key request_key keyctl",
    "large and young attack surface": "io_uring_setup io_uring_enter io_uring_register userfaultfd memfd_secret",
    "memory placement on other processes": "move_pages migrate_pages mbind set_mempolicy get_mempolicy "
    "set_mempolicy_home_node",
}
# Allowed only where arguments have values: (call, {argument's index: value}, why). Several rules are alternatives.
CONDITIONS: list[tuple[str, dict[int, int], str]] = [
    ("prlimit64", {0: 0}, "one's own limits: another process's are not to be touched"),
    ("prlimit64", {2: 0}, "reading any process's limits"),
    *(
        (name, {0: 0}, "one's own")
        for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
    ),
    ("setpriority", {0: 0, 1: 0}, "one's own"),
    ("ioprio_set", {0: 1, 1: 0}, "one's own"),
    ("personality", {0: 0x0}, "linux"),
    ("personality", {0: 0x40000}, "without address randomisation (debuggers)"),
    ("personality", {0: 0xFFFFFFFF}, "asking"),
    ("socket", {0: 1}, "AF_UNIX"),
    ("socket", {0: 2}, "AF_INET"),
    ("socket", {0: 10}, "AF_INET6"),
    ("socket", {0: 16}, "AF_NETLINK"),
]
NEW_NAMESPACES = 0x7E020000
LATER = (
    "clone3",
    "rseq",
    "faccessat2",
    "openat2",
    "close_range",
    "epoll_pwait2",
    "futex_waitv",
    "pidfd_open",
    "cachestat",
    "fchmodat2",
    "futex_wake",
    "futex_wait",
    "futex_requeue",
    "map_shadow_stack",
    "process_mrelease",
    "statmount",
    "listmount",
    "mseal",
)


def names() -> list[str]:
    """System calls named by the installed headers, and those of newer kernels that are known here."""
    headers = [*Path("/usr/include").glob("*-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h")]
    found = {
        name for header in headers if header.exists() for name in re.findall(r"__NR_(\w+)\s+\d+", header.read_text())
    }
    return sorted((found | set(LATER)) - {"syscalls", "arch_specific_syscall"})


def profile() -> dict[str, object]:
    """The profile in Docker's format."""
    refused = {name for group in REFUSED.values() for name in group.split()}
    conditional = {name for name, *_ in CONDITIONS} | {"clone"}
    allowed = [name for name in names() if name not in refused | conditional | {"clone3", "statmount", "listmount"}]
    rules: list[dict[str, object]] = [{"names": allowed, "action": "SCMP_ACT_ALLOW"}]
    for name, values, why in CONDITIONS:
        args = [{"index": index, "value": value, "op": "SCMP_CMP_EQ"} for index, value in values.items()]
        rules.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args, "comment": why})
    flags = {"index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [flags], "comment": "no new namespaces"})
    rules.append(
        {
            "names": ["clone3"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 38,
            "comment": "its flags are in memory, where a filter can't look: programs fall back to clone",
        }
    )
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    }


if __name__ == "__main__":
    target = Path(__file__).with_name("seccomp.json")
    target.write_text(json.dumps(profile(), indent=1) + "\n")
    print(f"wrote {target.name}: {len(names())} system calls known")
