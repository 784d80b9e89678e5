"""Data sets of the Hugging Face hub: one file as JSONL in the cache, or any files streamed.

Plain HTTP and pyarrow are enough: the `datasets` library would add a hundred megabytes to read one table. A cached file
is written to a temporary name and renamed, so that an interrupted download leaves no partial file.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import orjson

from agentrl.envs.data import rows
from agentrl.errors import EnvError, require_extra

if TYPE_CHECKING:
    import httpx

HUB = "https://huggingface.co"
TIMEOUT = 60.0
"""Seconds for connecting, and for each chunk of the response."""
MAX_BYTES = 2 << 30
SCHEME = "hf://"
READ_BYTES = 1 << 20
"""Bytes of a request for a part of a file."""
CACHE = Path("~/.cache/agentrl/datasets")


def dataset_file(repo: str, file: str, *, endpoint: str = HUB, cache: Path | str | None = None) -> Path:
    """The rows of one Parquet file of a data set, as a JSONL file; downloaded the first time.

    Args:
        repo: owner/name.
        file: its path in the repository.
        endpoint: the hub's address.
        cache: the cache's folder; `CACHE` by default.

    Raises:
        EnvError: the hub can't be reached, or has no such file.
        MissingExtra: pyarrow is not installed.
    """
    place = Path(cache or CACHE).expanduser() / repo / Path(file).with_suffix(".jsonl")
    if place.is_file():
        return place
    with require_extra("parquet", "pyarrow"):
        import pyarrow.parquet as parquet
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        table, lines = Path(folder) / "table.parquet", Path(folder) / "rows.jsonl"
        _download(f"{endpoint}/datasets/{repo}/resolve/main/{file}", table)
        try:
            found = parquet.read_table(table).to_pylist()
        except Exception as error:
            raise EnvError(f"{file} of the data set {repo!r} is not a readable Parquet file: {error}") from error
        lines.write_bytes(b"".join(orjson.dumps(row, default=str) + b"\n" for row in found))
        os.replace(lines, place)
    return place


def _download(url: str, to: Path) -> None:
    import httpx

    try:
        with httpx.stream("GET", url, timeout=TIMEOUT, follow_redirects=True) as response, to.open("wb") as out:
            response.raise_for_status()
            size = 0
            for chunk in response.iter_bytes():
                size += len(chunk)
                if size > MAX_BYTES:
                    raise EnvError(f"{url} is larger than {MAX_BYTES >> 30} GiB")
                out.write(chunk)
    except httpx.HTTPStatusError as error:
        raise EnvError(
            f"{url} answered {error.response.status_code}; give a local file instead (env.path=…)"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"{url} can't be fetched ({reason}); give a local file instead (env.path=…)") from error


def is_hub(path: str) -> bool:
    """Return whether a path names a data set of the hub: hf://OWNER/NAME."""
    return path.startswith(SCHEME)


def no_such_file(path: str) -> str:
    """Say that there is neither a file nor a folder of that name, and what may be meant."""
    hint = ""
    if any(sign in path for sign in "*?["):
        hint = "; patterns are not read: name the folder, whose files belong to the splits in their names"
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not rows.ending_of(path):
        hint = f"; a data set of the hub is {SCHEME}{path}"
    return f"there is no such file or folder{hint}"


def list_files(repo: str, *, endpoint: str = HUB) -> list[str]:
    """The paths of a data set's files; EnvError where the hub can't be reached, or has no such data set."""
    url: str | None = f"{endpoint}/api/datasets/{repo}/tree/main?recursive=true"
    found: list[str] = []
    while url is not None:
        response = _get(url)
        try:
            found += [entry["path"] for entry in response.json() if entry["type"] == "file"]
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"{url} answered with something else than a list of files: {error}") from None
        url = response.links.get("next", {}).get("url")
    return found


def open_file(repo: str, file: str, *, endpoint: str = HUB) -> BinaryIO:
    """A file of a data set, of which only the parts that are read are transferred.

    Raises:
        EnvError: the hub can't be reached, or has no such file.
    """
    return io.BufferedReader(RangeFile(f"{endpoint}/datasets/{repo}/resolve/main/{quote(file)}"), READ_BYTES)


class RangeFile(io.RawIOBase):
    """A file behind a URL, read by ranges of bytes.

    Args:
        url: of a server that answers requests for ranges.

    Raises:
        EnvError: it can't be reached, or knows no ranges.
    """

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        whole = _get(url, {"Range": "bytes=0-0"}).headers.get("Content-Range", "").rpartition("/")[2]
        if not whole.isdecimal():
            raise EnvError(f"{url} can't be read in parts; download it, and give the file")
        self._size = int(whole)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._at)
        if size <= 0:
            return 0
        data = _get(self._url, {"Range": f"bytes={self._at}-{self._at + size - 1}"}).content
        if len(data) != size:
            raise EnvError(f"{self._url} answered with {len(data)} bytes, not {size}")
        buffer[:size] = data
        self._at += size
        return size


def _get(url: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    import httpx

    token = os.environ.get("HF_TOKEN")
    given = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        response = httpx.get(url, headers=given, timeout=TIMEOUT, follow_redirects=True)
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise EnvError(f"{url} answered {error.response.status_code}; give a local file instead") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"{url} can't be fetched ({reason}); give a local file instead") from error
    return response
