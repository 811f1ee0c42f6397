"""Files of torch.save: no code of theirs runs, and they cannot claim more than they hold."""

from __future__ import annotations

import copy
import io
import random
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from toys.nemo_archives import packed, write_0, write_tar

from nemo_asr.models.pretrained import read_nemo
from nemo_lite.backends.pytorch.checkpoint.storage import load_module, load_training_state, save_module
from nemo_lite.errors import CheckpointError


def test_a_file_that_would_inflate_is_refused(tmp_path):
    torch.save({"weight": torch.zeros(1000, 1000)}, tmp_path / "flat.pt")
    with (
        zipfile.ZipFile(tmp_path / "flat.pt") as flat,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in flat.namelist():
            bomb.writestr(name, flat.read(name))
    with pytest.raises(CheckpointError, match=r"bomb\.pt: the file is compressed"):
        load_module(nn.Linear(1000, 1000, bias=False), tmp_path / "bomb.pt")


def test_a_pickled_object_is_never_loaded(tmp_path):
    torch.save(nn.Linear(1, 1), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="holds objects other than tensors, which are never loaded"):
        load_module(nn.Linear(1, 1), tmp_path / "m.pt")


def test_tensors_without_values_are_refused(tmp_path):
    torch.save({"weight": torch.zeros(2**40, 1, device="meta")}, tmp_path / "meta.pt")
    torch.save({"weight": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    for name in ("meta.pt", "sparse.pt"):
        with pytest.raises(CheckpointError, match=rf"{name}: a tensor is sparse, quantized or without values"):
            load_module(nn.Linear(1, 1), tmp_path / name)


def test_an_archive_whose_parts_share_their_bytes_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"a": torch.zeros(5000), "b": torch.zeros(5001)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        first = max(archive.infolist(), key=lambda member: member.file_size)
        for index in range(9):
            again = copy.copy(first)
            again.filename = f"m/data/{index + 2}"
            archive.filelist.append(again)
        archive.writestr("m/end", b"")  # so that the list is written anew
    with pytest.raises(CheckpointError, match=r"m\.pt: the parts of the file claim more bytes than it has"):
        load_module(nn.Linear(1, 1), path)


def test_code_in_a_file_never_runs(tmp_path):
    class Runs:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    for zipped in (True, False):
        torch.save({"weight": Runs()}, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
        with pytest.raises(CheckpointError, match="objects other than tensors, which are never loaded"):
            load_module(nn.Linear(1, 1), tmp_path / "m.pt")
    assert not (tmp_path / "ran").exists()


def test_a_tensor_that_claims_more_than_it_holds_is_refused(tmp_path):
    torch.save({"optimizer_state": [torch.zeros(1).expand(2**40)]}, tmp_path / "trainer.pt")
    with pytest.raises(CheckpointError, match="a tensor claims more elements than the file holds"):
        load_training_state(tmp_path / "trainer.pt")


def flip_a_bit_of_a_tensor(path: Path, rng: random.Random) -> str:
    """Flip a bit of a record with a tensor's values, in a file that is or holds one of torch.save; the record."""
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\3\4")
    with zipfile.ZipFile(io.BytesIO(content[start:])) as archive:
        record = rng.choice([each for each in archive.infolist() if "/data/" in each.filename and each.file_size])
        with archive.open(record) as stored:
            place = content.index(stored.read(), start) + rng.randrange(record.file_size)
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return record.filename


@pytest.mark.parametrize("seed", range(14))
def test_a_flipped_bit_is_an_error_that_names_the_file_and_the_record(seed, tmp_path):
    path = tmp_path / "m.pt"
    save_module(nn.Linear(3, 4), path)
    record = flip_a_bit_of_a_tensor(path, random.Random(seed))
    with pytest.raises(CheckpointError, match=rf"^{path}: the file is damaged: got .*'{record}'"):
        load_module(nn.Linear(3, 4), path)


def test_a_flipped_bit_in_weights_of_a_nemo_archive_is_an_error_that_names_both(tmp_path):
    path = tmp_path / "m.nemo"
    modules = write_0(path)
    members = {f"{name}.pt": packed(module.state_dict()) for name, module in modules.items()}
    write_tar(path, {"module.yaml": "{}", **members}, "w")
    record = flip_a_bit_of_a_tensor(path, random.Random(0))
    with pytest.raises(CheckpointError, match=rf"^{path}, \w+\.pt: the file is damaged: got .*'{record}'"):
        read_nemo(path)


def test_a_file_that_was_saved_without_checksums_is_read(tmp_path):
    module = nn.Linear(3, 4)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(module.state_dict(), tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    read = nn.Linear(3, 4)
    load_module(read, tmp_path / "m.pt")
    assert torch.equal(read.weight, module.weight)
