"""Archives that others may have made: bounded before they are read, and without members that lead elsewhere."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tarfile
import time
from pathlib import Path

import pytest
from toys.tar_members import member

from nemo_lite.base.errors import DataError
from nemo_lite.base.files import FileKind
from nemo_lite.base.tar_files import TarLimits, open_tar, problem_of_name

ARCHIVE = FileKind("the archive", 1 << 30)
TAR_LIMITS = TarLimits(members=1000, expanded_bytes=1 << 20)


def extended(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return member("pax", content, kind)


END = bytes(1024)
REFUSED_TARS = {
    "a file twice": (member("a", b"1") + member("a", b"2"), "a member is there twice: got a"),
    "a file twice, spelled in two ways": (member("a/b") + member("a/./b"), "a member is there twice: got a/./b"),
    "too many members": (b"".join(member(f"{i}") for i in range(1001)), "too many members: wanted at most 1000"),
    "a size beyond the archive": (member("a", size=1 << 40), "too large: got 1099511627776 bytes up to a, wanted"),
    "members that are too large in all": (member("a", bytes(1 << 19)) * 1 + member("b", bytes(1 << 20)), "too large"),
    "an absolute name": (member("/etc/passwd"), "outside its folder: got /etc/passwd"),
    "a name with ..": (member("a/../../b"), r"outside its folder: got a/\.\./\.\./b"),
    "a name with a backslash": (member("..\\b"), "outside its folder"),
    "a symbolic link": (member("a", kind=tarfile.SYMTYPE, linkname="/etc"), "is a link, a device or sparse: got a"),
    "a hard link": (member("a", kind=tarfile.LNKTYPE, linkname="b"), "is a link, a device or sparse: got a"),
    "a device": (member("a", kind=tarfile.CHRTYPE), "is a link, a device or sparse"),
    "a pipe": (member("a", kind=tarfile.FIFOTYPE), "is a link, a device or sparse"),
    "a pax header of 200 MB": (extended(b"a")[:124] + b"01370000000\0" + bytes(376), "no tar file, or a damaged one"),
    "a pax header that tarfile would search long": (extended(b"1" * 60_000) + member("a"), "an endless number"),
    "pax headers without end": (extended(b"9 a=bcde\n") * 2000 + member("a"), "damaged one"),
    "a size below 0": (extended(b"14 size=-9999\n") + member("a", b"1"), "damaged one|too large"),
    "a damaged header after the first": (
        member("a") + member("b").replace(b"b", b"c", 1) + member("d"),
        "or a damaged one",
    ),
    "nothing": (b"", "no tar file, or a damaged one"),
    "noise": (bytes(range(256)) * 40, "no tar file, or a damaged one"),
    "an end within a file": (member("a", bytes(2000))[:1024], "a member ends early|damaged"),
}


def read_all(path: Path) -> dict[str, bytes]:
    with open_tar(path, ARCHIVE, TAR_LIMITS) as tar:
        return {each.name: b"".join(tar.chunks(each)) for each in tar.members()}


@pytest.mark.parametrize("trick", REFUSED_TARS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_hostile_archives_are_refused(trick, pack, tmp_path):
    content, message = REFUSED_TARS[trick]
    (tmp_path / "a.tar").write_bytes(pack(content + (END if content else b"")))
    started = time.process_time()
    with pytest.raises(DataError, match=rf"^{tmp_path}/a.tar: .*({message})"):
        read_all(tmp_path / "a.tar")
    assert time.process_time() - started < 2.0


def test_a_header_of_200_mb_is_refused_before_it_is_read(tmp_path):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 200 << 20
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header.tobuf())
        file.truncate(210 << 20)
    with pytest.raises(DataError, match=r"a header is too long: got [0-9]+ bytes, wanted at most 65536"):
        read_all(tmp_path / "a.tar")


@pytest.mark.slow
def test_an_archive_that_expands_beyond_its_limit_is_refused_before_that(tmp_path):
    (tmp_path / "a.tar").write_bytes(gzip.compress(member("a", size=1 << 27) + bytes(1 << 27)))
    with pytest.raises(DataError, match="too large"):
        read_all(tmp_path / "a.tar")


def test_a_damaged_compressed_archive_is_refused(tmp_path):
    packed = gzip.compress(member("a", random.Random(0).randbytes(100_000)) + END)
    for damaged in (packed[: len(packed) // 2], packed[:200] + b"\xff" * 100 + packed[300:]):
        (tmp_path / "a.tar").write_bytes(damaged)
        with pytest.raises(DataError, match=r"no tar file, or a damaged one|ends early"):
            read_all(tmp_path / "a.tar")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_the_files_of_a_plain_or_compressed_archive_are_read(pack, tmp_path):
    files = {"a/b.wav": bytes(range(256)) * 5000, "ü": b"1", "x" * 200 + "/" + "y" * 200: b"", "a/c": b"c"}
    content = b"".join(member(name, data) for name, data in files.items())
    (tmp_path / "a.tar").write_bytes(pack(member("a", kind=tarfile.DIRTYPE) + content + END))
    with open_tar(tmp_path / "a.tar", ARCHIVE, TarLimits(10, 1 << 21)) as tar:
        read = {each.name: b"".join(tar.chunks(each)) for each in tar.members()}
    assert read == {"a": b"", **files}


def test_errors_of_the_block_pass_as_they_are(tmp_path):
    (tmp_path / "a.tar").write_bytes(member("a") + END)
    with pytest.raises(OSError, match="disk"), open_tar(tmp_path / "a.tar", ARCHIVE, TAR_LIMITS):
        raise OSError("disk")


@pytest.mark.parametrize("name", ["a", "a/b", "./a", "a b", "ü.wav", "..a", "a" * 255])
def test_names_that_stay_in_their_folder_have_no_problem(name):
    assert problem_of_name(name) == ""
