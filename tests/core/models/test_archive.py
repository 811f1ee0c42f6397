"""NemoArchive: what is no archive of a model is refused in one line, and nothing is unpacked to the disk."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from toys.nemo_archives import write_tar

from nemo_lite.core.models import NemoArchive, write_archive
from nemo_lite.errors import CheckpointError, ModelNotFoundError

CONFIG = "header: {}\n"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("folder", [".nemo_tmp/", "./", "", "tmp/x/"])
def test_configuration_and_files_are_found_in_any_folder(tmp_path: Path, mode: str, folder: str) -> None:
    path = write_tar(tmp_path / "m.nemo", {f"{folder}module.yaml": CONFIG, f"{folder}E.pt": b"weights"}, mode)
    archive = NemoArchive(str(path))
    assert (archive.config_name, archive.config, archive.names) == ("module.yaml", CONFIG, ["E.pt"])
    member = archive.read("E.pt")
    assert (member.getvalue(), member.name) == (b"weights", f"{path}, E.pt")
    assert [each.name for each in tmp_path.iterdir()] == ["m.nemo"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"weights")
    write_archive(tmp_path / "m.nemo", {"module.yaml": CONFIG.encode(), "E.pt": tmp_path / "weights"})
    with tarfile.open(tmp_path / "m.nemo", "r:gz") as tar:
        assert tar.getnames() == [".nemo_tmp/module.yaml", ".nemo_tmp/E.pt"]
    assert NemoArchive(tmp_path / "m.nemo").read("E.pt").getvalue() == b"weights"


def linked(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("module.yaml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)


def growing(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("model_weights.ckpt")
        info.size = 70 * 2**20
        tar.addfile(info, io.BytesIO(bytes(info.size)))


def doubled(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("module.yaml"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: path.write_bytes(b"PK\x03\x04 nothing of the kind"),
            "the .nemo archive is no tar file, or a damaged one",
        ),
        (lambda path: path.write_bytes(b""), "the .nemo archive is no tar file, or a damaged one"),
        (lambda path: write_tar(path, {"E.pt": b""}), "it has no configuration: got E.pt, wanted one module.yaml or"),
        (
            lambda path: write_tar(path, {"module.yaml": CONFIG, "model_config.yaml": CONFIG}),
            "it has two configurations: got module.yaml, model_config.yaml, wanted one",
        ),
        (
            lambda path: write_tar(path, {"a/module.yaml": CONFIG, "b/module.yaml": CONFIG}),
            "it has two configurations: got a/module.yaml, b/module.yaml",
        ),
        (doubled, "a member is there twice: got module.yaml"),
        (
            lambda path: write_tar(path, {"module.yaml": CONFIG, "../evil.pt": b""}),
            r"a member lies outside its folder: got \.\./evil.pt; do not use this file",
        ),
        (
            lambda path: write_tar(path, {"module.yaml": CONFIG, "/tmp/evil.pt": b""}),
            "a member lies outside its folder: got /tmp/evil.pt",
        ),
        (
            lambda path: write_tar(path, {"a/module.yaml": CONFIG, "b/E.pt": b""}),
            "a member lies outside its folder: got b/E.pt, wanted all in a, where the configuration is",
        ),
        (linked, "a member is no file: it is a link, a device or sparse: got module.yaml; do not use this file"),
        (growing, "the members are too large: got 73400320 bytes up to model_weights.ckpt, wanted at most 67108864"),
        (lambda path: write_tar(path, {"module.yaml": "x" * 2**21}), "larger than 524288 bytes"),
        (lambda path: write_tar(path, {"module.yaml": b"\xff\xfe"}), "module.yaml is no text"),
    ],
)
def test_what_is_no_archive_of_a_model_is_named(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "m.nemo")
    with pytest.raises(CheckpointError, match=rf"m\.nemo: {message}"):
        NemoArchive(tmp_path / "m.nemo")
    assert [each.name for each in tmp_path.iterdir()] == ["m.nemo"]


def test_a_torn_archive_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "m.nemo", {"module.yaml": CONFIG, "E.pt": bytes(range(256)) * 500}, "w")
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(CheckpointError, match=r"m\.nemo: .*damaged"):
        NemoArchive(path).read("E.pt")


def test_a_missing_file_is_nemos_error_and_names_the_nearest(tmp_path: Path) -> None:
    write_tar(tmp_path / "quartznet.nemo", {"module.yaml": CONFIG})
    with pytest.raises(FileNotFoundError, match=r"no such file \(did you mean quartznet\.nemo\?\)") as caught:
        NemoArchive(tmp_path / "quartnet.nemo")
    assert isinstance(caught.value, ModelNotFoundError)
