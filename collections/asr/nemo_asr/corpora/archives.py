"""Archives of recordings: fetching one, and unpacking what is wanted of it. Nothing in an archive is trusted.

No file is written outside the given folder, no link is made, and no more is written than was allowed.
"""

from __future__ import annotations

import hashlib
import http.client
import lzma
import shutil
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from nemo_lite.errors import DataError
from nemo_lite.utils.files import write_atomically

_CHUNK_BYTES = 1 << 20
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
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
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
        max_files: the most files that may be written.

    Raises:
        DataError: the archive is damaged, has a member that leads out of the folder or is a link or a device, or is
            larger than allowed.
    """
    num_bytes = num_files = 0
    with _archive_errors(archive), tarfile.open(archive, "r:*") as members:
        for member in members:
            target = _target(member, archive, folder)
            if target is None or not member.name.endswith(suffixes):
                continue
            num_bytes, num_files = num_bytes + member.size, num_files + 1
            if num_bytes > max_bytes or num_files > max_files:
                got = f"{num_files} files, {num_bytes} bytes so far"
                wanted = f"at most {max_files} files, {max_bytes} bytes"
                problem = "the archive is larger than such a corpus can be"
                raise DataError(problem, place=f"{archive}: {member.name}", got=got, wanted=wanted)
            target.parent.mkdir(parents=True, exist_ok=True)
            source = members.extractfile(member)
            assert source is not None  # it is a regular file
            with source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, _CHUNK_BYTES)


def _target(member: tarfile.TarInfo, archive: Path, folder: Path) -> Path | None:
    """Where the member belongs, None for a folder; an error for what an archive of recordings has no need of."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name:
        problem = "leads out of the folder"
    elif member.isdir():
        return None
    elif member.isreg():
        return folder / name
    else:
        problem = "is a link or a device"
    place, remedy = f"{archive}: {member.name}", "do not trust this archive"
    raise DataError(f"a member of the archive {problem}", place=place, remedy=remedy)


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError("there is no such file or folder", place=str(archive)) from None
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        problem, remedy = "the archive cannot be unpacked", "fetch it again, or free space"
        raise DataError(problem, place=str(archive), got=f'"{error}"', remedy=remedy) from None
