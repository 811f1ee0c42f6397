"""NeMoModel and its .nemo archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nemo_archives import write_1, write_tar

from nemo_lite.base import nemo_archive as models
from nemo_lite.base.errors import CheckpointError, ConfigError, ModelNotFoundError, UsageError
from nemo_lite.base.nemo_archive import NemoArchive, write_archive
from nemo_lite.compat.nemo_model import NeMoModel
from nemo_lite.compat.tutorials import TaylorNet
from nemo_lite.core import NeuralModule, OperationMode

# NemoArchive: what is no archive of a model is refused in one line, and nothing is unpacked to the disk.


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
        (lambda path: write_tar(path, {"module.yaml": b"\xff\xfe"}), "module.yaml is no text"),
    ],
)
def test_what_is_no_archive_of_a_model_is_named(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / "m.nemo")
    with pytest.raises(CheckpointError, match=rf"m\.nemo: {message}"):
        NemoArchive(tmp_path / "m.nemo")
    assert [each.name for each in tmp_path.iterdir()] == ["m.nemo"]


def test_weights_of_half_types_are_read_and_what_grows_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_SMALL_BYTES", 1000)
    weights = torch.randn(100_000).bfloat16().float().numpy().tobytes()
    path = write_tar(tmp_path / "m.nemo", {"module.yaml": CONFIG, "E.pt": weights})
    assert path.stat().st_size < len(weights) / 2
    assert NemoArchive(path).read("E.pt").getvalue() == weights
    write_tar(path, {"module.yaml": CONFIG, "E.pt": weights + bytes(4 * len(weights))})
    with pytest.raises(CheckpointError, match=r"m\.nemo: the members are too large: got .* E\.pt, wanted at most"):
        NemoArchive(path)


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


# NeMoModel: a model of a user's own, saved to one file and read from it.


class Series(NeMoModel):
    """One polynomial."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.net = TaylorNet(dim)

    @property
    def modules(self) -> Sequence[NeuralModule]:
        return [self.net]

    def train_call(self, **wires: Any) -> Any:
        return "train", wires

    def eval_call(self, **wires: Any) -> Any:
        return "eval", wires


def test_the_mode_decides_between_the_calls_and_reaches_the_modules() -> None:
    model = Series()
    assert model(x=1) == ("train", {"x": 1})
    model.eval()
    assert model(x=1) == ("eval", {"x": 1})
    assert (model.operation_mode, model.net.training) == (OperationMode.evaluation, False)
    model.operation_mode = OperationMode.training
    assert (model(), model.net.training) == (("train", {}), True)
    assert (model.train_graph, model.eval_graph, model.num_weights) == (None, None, 4)


def test_what_is_saved_is_read_back_also_frozen_weights(tmp_path: Path) -> None:
    saved = Series(dim=5)
    saved.net.freeze()
    path = saved.save_to("series", str(tmp_path / "new"))
    assert path == str(tmp_path / "new" / "series.nemo")
    loaded = Series.from_pretrained(path)
    assert torch.equal(loaded.net.fc1.weight, saved.net.fc1.weight)
    assert loaded.init_params == {"dim": 5}


def test_weights_that_do_not_fit_are_named_with_their_file(tmp_path: Path) -> None:
    path = Series(dim=5).save_to(str(tmp_path / "m.nemo"))
    with pytest.raises(
        CheckpointError, match=r"m\.nemo, TaylorNet\.pt: does not fit TaylorNet: different: fc1\.weight is"
    ):
        Series(dim=4).restore_modules(NemoArchive(path))


def test_a_file_of_another_class_or_generation_is_refused(tmp_path: Path) -> None:
    write_1(tmp_path / "new.nemo")
    with pytest.raises(CheckpointError, match=r"this is a file of NeMo 1\.x, which Series does not read"):
        Series.from_pretrained(str(tmp_path / "new.nemo"))
    path = Series().save_to(str(tmp_path / "m"))

    class Unrelated(NeMoModel):
        pass

    with pytest.raises(ConfigError, match=r"m\.nemo, module\.yaml.* is not a Unrelated that is loaded"):
        Unrelated.from_pretrained(path)


def test_onnx_in_a_file_that_is_to_be_read_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"save_to: a \.nemo file of ONNX modules cannot be read back; export the modules"
    ):
        Series().save_to(str(tmp_path / "m"), optimize_for_deployment=True)
    assert list(tmp_path.iterdir()) == []
