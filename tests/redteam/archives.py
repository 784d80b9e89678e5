"""Archives that a sandbox might hand out: the payload adds entries with `add`, in the program `MAKER`."""

from __future__ import annotations

from agentrl.tools.sandbox.archive import ArchiveLimits
from tests.redteam.attack import Attack

LIMITS = ArchiveLimits(total_bytes=1_000_000, file_bytes=500_000, entries=200)
MAKER = """
import io, tarfile
tar = tarfile.open("/work/evil.tar", "w", format=tarfile.GNU_FORMAT)
def add(name, kind=tarfile.REGTYPE, data=b"evil", link="", **more):
    entry = tarfile.TarInfo(name); entry.type, entry.linkname = kind, link
    entry.size = len(data) if kind == tarfile.REGTYPE else 0
    for key, value in more.items(): setattr(entry, key, value)
    tar.addfile(entry, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
add("good", data=b"fine")
{entries}
tar.close(); print("made")
"""

OUTSIDE = "something is written outside the destination, or more of it than the limits allow"

ARCHIVES = [
    Attack("an absolute path", "add('/tmp/agentrl-evil')", OUTSIDE),
    Attack("a path that climbs", "add('../agentrl-evil')", OUTSIDE),
    Attack("a path that climbs in the middle", "add('a/../../agentrl-evil')", OUTSIDE),
    Attack("a link to an absolute path", "add('l', tarfile.SYMTYPE, link='/etc')", OUTSIDE),
    Attack("a link that climbs", "add('l', tarfile.SYMTYPE, link='../..')", OUTSIDE),
    Attack(
        "links that climb together",
        "add('d/e', tarfile.SYMTYPE, link='..'); add('out', tarfile.SYMTYPE, link='d/e/../..')",
        OUTSIDE,
    ),
    Attack("writing through a link", "add('l', tarfile.SYMTYPE, link='real'); add('l/f')", OUTSIDE),
    Attack("a hard link out", "add('h', tarfile.LNKTYPE, link='/etc/passwd')", OUTSIDE),
    Attack("a hard link in", "add('h', tarfile.LNKTYPE, link='good')", OUTSIDE),
    Attack("a character device", "add('dev', tarfile.CHRTYPE, devmajor=1, devminor=1)", OUTSIDE),
    Attack("a block device", "add('dev', tarfile.BLKTYPE, devmajor=8, devminor=0)", OUTSIDE),
    Attack("a fifo", "add('fifo', tarfile.FIFOTYPE)", OUTSIDE),
    Attack("a sparse file", "add('s', tarfile.GNUTYPE_SPARSE)", OUTSIDE),
    Attack("an unknown kind", "add('u', b'Z')", OUTSIDE),
    Attack("the same name twice", "add('twice'); add('./twice')", OUTSIDE),
    Attack("a name of a megabyte", "add('n' * (1 << 20))", OUTSIDE),
    Attack("a path too deep", "add('/'.join('d' * 300))", OUTSIDE),
    Attack("a name too long for a file system", "add('n' * 300)", OUTSIDE),
    Attack(
        "pax headers that rename",
        "tar.format = tarfile.PAX_FORMAT; add('p', pax_headers={'path': '/tmp/agentrl-evil'})",
        OUTSIDE,
    ),
    Attack("a size beyond the end", "e = tarfile.TarInfo('e'); e.size = 8**10; tar.fileobj.write(e.tobuf())", OUTSIDE),
    Attack("too many entries", "[add(f'f{i}', data=b'') for i in range(300)]", OUTSIDE),
    Attack("more than may be held", "[add(f'b{i}', data=b'x' * 100000) for i in range(12)]", OUTSIDE),
]
