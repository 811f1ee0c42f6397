"""Archives of recordings: fetching one, and unpacking what is wanted of it. Nothing in an archive is trusted.

No file is written outside the given folder, no link is made, and no more is written than was allowed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tqdm import tqdm

from nemo_asr.published.transfer import StatedFile, Transfer
from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind, digest_of_file, write_atomically
from nemo_lite.base.tar_files import TarLimits, open_tar

_CHUNK_BYTES = 1 << 20
_OTHERS = 4  # what is not wanted of an archive may be so many times as large as what is wanted can be
_KIND = FileKind("the archive", 1 << 40, remedy="fetch it again")
BY_HAND = "download it by hand and give it with --source"


def download(
    url: str,
    path: Path,
    sha256: str | None = None,
    *,
    check: Callable[[Path], object] = Path.exists,
    remedy: str = BY_HAND,
) -> None:
    """Fetch ``url`` to ``path``: all of it, or an error and no file.

    Args:
        url: what to fetch.
        path: where to; its folder exists.
        sha256: what the content must hash to, in hexadecimal.
        check: raises an error where what was fetched is of another kind.
        remedy: what a user can do where it cannot be fetched.

    Raises:
        DataError: the server cannot be reached, breaks off, or sends something else.
        UsageError: the file cannot be written.
    """
    print(f"downloading {url}", file=sys.stderr)

    def fetch(temporary: Path) -> None:
        transfer = Transfer(url, error=DataError, other_error=DataError, remedy=remedy, address_remedy=remedy)
        size = transfer.size(url)
        if not size:
            raise DataError("the server does not state the size of the file", place=url, remedy=remedy)
        with tqdm(total=size, unit="B", unit_scale=True, disable=None) as bar:
            transfer.receive(StatedFile(path.name, url, size), temporary, bar)
        if sha256 and (digest := digest_of_file(temporary)) != sha256:
            problem, got = "the download is not the known archive", f"sha256 {digest}"
            raise DataError(problem, place=url, got=got, wanted=sha256, remedy=f"{remedy} if you trust it")
        check(temporary)

    write_atomically(path, fetch)


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
    with open_tar(archive, _KIND, limits) as tar:
        for member in tar.members():
            if member.isdir() or not member.name.endswith(suffixes):
                continue
            num_bytes += member.size
            if num_bytes > max_bytes:
                got, wanted = f"{num_bytes} bytes so far", f"at most {max_bytes} bytes"
                problem = "the archive is larger than such a corpus can be"
                raise DataError(problem, place=f"{archive}: {member.name}", got=got, wanted=wanted)
            target = folder / PurePosixPath(member.name)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as out:
                    out.writelines(tar.chunks(member))
            except OSError as error:
                problem, remedy = "the archive cannot be unpacked", "free space, or choose another folder"
                raise DataError(problem, place=str(archive), got=f'"{error}"', remedy=remedy) from None


class PublishedCorpus(NamedTuple):
    """How a corpus comes.

    Attributes:
        name: of the corpus.
        folder: that its archive holds.
        mark: a file or folder inside by which it is known.
        wanted: the same, for messages.
        suffixes: ends of the names of files that are needed.
        max_bytes: how large it may be.
    """

    name: str
    folder: str
    mark: Path
    wanted: str
    suffixes: tuple[str, ...]
    max_bytes: int

    @contextmanager
    def opened(self, source: Path, root: Path) -> Iterator[Path]:
        """The folder with the mark in it: ``source``, or one inside; an archive is unpacked, and removed after use.

        Args:
            source: the folder or the archive.
            root: where an archive is unpacked.

        Raises:
            DataError: it is another corpus.
        """
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{self.folder}.") as temporary:
            folder = source if source.is_dir() else Path(temporary)
            if folder is not source:
                unpack(source, folder, self.suffixes, max_bytes=self.max_bytes)
            for candidate in (folder, folder / self.folder):
                if (candidate / self.mark).exists():
                    yield candidate
                    return
        raise DataError(f"this is not the {self.name} corpus", place=str(source), wanted=self.wanted)
