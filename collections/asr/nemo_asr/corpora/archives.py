"""Archives of recordings: fetching one, and unpacking what is wanted of it. Nothing in an archive is trusted.

No file is written outside the given folder, no link is made, and no more is written than was allowed.
"""

from __future__ import annotations

import hashlib
import http.client
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, TarLimits, open_tar
from nemo_lite.utils.files import write_atomically

_CHUNK_BYTES = 1 << 20
_OTHERS = 4  # what is not wanted of an archive may be so many times as large as what is wanted can be
_KIND = FileKind("the archive", 1 << 40, remedy="fetch it again")
_TIMEOUT_SECONDS = 60
_BY_HAND = "download it by hand and give it with --source"


def download(url: str, path: Path, sha256: str | None = None) -> None:
    """Fetch ``url`` to ``path``: all of it, or an error and no file.

    Args:
        url: what to fetch.
        path: where to; its folder exists.
        sha256: what the content must hash to, in hexadecimal.

    Raises:
        DataError: the server cannot be reached, breaks off, or sends something else.
        UsageError: the file cannot be written.
    """
    print(f"downloading {url}", file=sys.stderr)
    write_atomically(path, lambda temporary: _fetch(url, temporary, sha256))


def _fetch(url: str, path: Path, sha256: str | None) -> None:
    digest, received, promised = hashlib.sha256(), 0, 0
    with open(path, "wb") as out, tqdm(unit="B", unit_scale=True, disable=None) as bar:
        for chunk, promised in _chunks(url):
            digest.update(chunk)
            out.write(chunk)
            received += len(chunk)
            bar.total = promised or None
            bar.update(len(chunk))
    if received == 0 or (promised and received != promised):
        got, wanted = f"{received} bytes", str(promised)
        raise DataError("the download broke off", place=url, got=got, wanted=wanted, remedy=_BY_HAND)
    if sha256 and digest.hexdigest() != sha256:
        got, remedy = f"sha256 {digest.hexdigest()}", f"{_BY_HAND} if you trust it"
        raise DataError("the download is not the known archive", place=url, got=got, wanted=sha256, remedy=remedy)


def _chunks(url: str) -> Iterator[tuple[bytes, int]]:
    """What the server sends, piece by piece, each with the bytes that it promised in all (0: it did not say)."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - a constant of a maker
            promised = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk, promised
    except (OSError, http.client.HTTPException) as error:
        raise DataError("the archive cannot be downloaded", place=url, got=f'"{error}"', remedy=_BY_HAND) from None


def unpack(
    archive: Path, folder: Path, suffixes: tuple[str, ...], *, max_bytes: int, max_files: int = 1_000_000
) -> None:
    """Write the archive's files of the given suffixes under ``folder``, in the archive's own sub-folders.

    Args:
        archive: a tar file, compressed or not.
        folder: where to; made if need be.
        suffixes: the ends of the names of wanted files; others are passed over.
        max_bytes: the most that may be written in all.
        max_files: the most files and folders that it may have.

    Raises:
        DataError: the archive is damaged, has a member that leads out of the folder or is a link or a device, or is
            larger than allowed.
    """
    limits = TarLimits(members=max_files, expanded_bytes=_OTHERS * max_bytes + _CHUNK_BYTES)
    num_bytes = 0
    with open_tar(archive, _KIND, limits) as tar, _writing_errors(archive):
        for member in tar.members():
            if member.isdir() or not member.name.endswith(suffixes):
                continue
            num_bytes += member.size
            if num_bytes > max_bytes:
                got, wanted = f"{num_bytes} bytes so far", f"at most {max_bytes} bytes"
                problem = "the archive is larger than such a corpus can be"
                raise DataError(problem, place=f"{archive}: {member.name}", got=got, wanted=wanted)
            target = folder / PurePosixPath(member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as out:
                out.writelines(tar.chunks(member))


@contextmanager
def _writing_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem, remedy = "the archive cannot be unpacked", "free space, or choose another folder"
        raise DataError(problem, place=str(archive), got=f'"{error}"', remedy=remedy) from None
