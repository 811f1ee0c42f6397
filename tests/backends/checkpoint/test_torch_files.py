"""Files of torch.save: no code of theirs runs, and they cannot claim more than they hold."""

from __future__ import annotations

import codecs
import copy
import io
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from toys.nemo_archives import packed, write_0, write_tar

from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.backends.pytorch.checkpoint.storage import (
    load_module,
    load_training_state,
    save_module,
)
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_file
from nemo_lite.base.errors import CheckpointError


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


class Call:
    """Pickled as a call; the arguments too may be calls."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def with_pickle(path, content, zipped):
    """A file of torch.save with another pickle in the place of its own."""
    data = content if isinstance(content, bytes) else pickle.dumps(content, 2)
    if not zipped:
        parts = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + data + pickle.dumps([], 2))
        return path
    torch.save({"a": torch.zeros(1)}, path.with_suffix(".plain"))
    with zipfile.ZipFile(path.with_suffix(".plain")) as plain, zipfile.ZipFile(path, "w") as made:
        for name in plain.namelist():
            made.writestr(name, data if name.endswith("data.pkl") else plain.read(name))
    return path


def storage(numel, kind=b"FloatStorage"):
    """Instructions that give the storage 0 with so many values."""
    size = b"\x8a\x08" + numel.to_bytes(8, "little", signed=True)
    return b"(X\7\0\0\0storagectorch\n" + kind + b"\nX\1\0\0\0" + b"0X\3\0\0\0cpu" + size + b"tQ"


def tensor(numel, size, stride, offset=0):
    """A pickle of a tensor in the storage 0."""
    numbers = [b"\x8a\x08" + number.to_bytes(8, "little", signed=True) for number in (offset, size, stride)]
    arguments = storage(numel) + numbers[0] + numbers[1] + b"\x85" + numbers[2] + b"\x85\x89N"
    return b"\x80\2}X\1\0\0\0a" + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tRs."


def nested(depth):
    """Lists of two, each of which is twice the one before."""
    return b"\x80\2}X\1\0\0\0a](K\1K\1eq\0" + b"](h\0h\0eq\0" * depth + b"s."


def copies(instruction, count):
    """One list of a thousand numbers, copied so often."""
    head = b"\x80\2}X\1\0\0\0a](" + b"".join(b"M" + n.to_bytes(2, "little") for n in range(1000)) + b"e\x85q\0]("
    return head + (instruction + b"h\0R") * count + b"es."


MANY = 2**33
FILLING = {
    "an array of zeros": pickle.dumps({"a": Call(bytearray, MANY)}, 2),
    "a tensor by its size": pickle.dumps({"a": Call(torch.Tensor, MANY)}, 2),
    "a tensor of a type": pickle.dumps({"a": Call(torch.FloatTensor, MANY)}, 2),
    "a storage": pickle.dumps({"a": Call(torch.UntypedStorage, MANY)}, 2),
    "values that are not there": tensor(MANY, MANY, 1),
    "a tensor beyond its storage": tensor(1, MANY, 1),
    "far strides": tensor(1, 2, MANY),
    "a far beginning": tensor(1, 1, 1, MANY),
    "nested lists": nested(40),
    "deep nested lists": nested(20_000),
    "copies of a list": copies(b"c__builtin__\nset\n", 3_000),
    "copies as a dictionary": copies(b"ccollections\nCounter\n", 3_000),
    "letters as digits": pickle.dumps({"a": Call(codecs.encode, Call(codecs.encode, "a", "latin1"), "hex")}, 2),
    "a list in itself": b"\x80\2}X\1\0\0\0a]q\0h\0as.",
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("trick", FILLING)
def test_a_small_file_takes_little_memory(trick, zipped, tmp_path, monkeypatch):
    path = with_pickle(tmp_path / "m.pt", FILLING[trick], zipped)
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("it is read"))
    told = "made to fill the memory|claims more elements than the file holds|holds objects other than tensors"
    with pytest.raises(CheckpointError, match=rf"m\.pt: .*({told})"):
        read_torch_file(path, "m.pt")


def test_an_archive_in_front_of_which_something_stands_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "m.pt")
    content = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(content + content)
    with pytest.raises(CheckpointError, match=r"m\.pt: the file (does not begin with its first part|is damaged)"):
        read_torch_file(tmp_path / "m.pt", "m.pt")


def test_whatever_a_training_saves_is_read_as_before(tmp_path):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    shared = torch.arange(12.0).view(3, 4)
    state = {
        "model": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "views": [shared, shared[1:, ::2], shared.t(), shared.expand(2, 3, 4)[:0], torch.tensor(1), torch.zeros(0, 7)],
        "types": [torch.zeros(2, dtype=getattr(torch, name)) for name in ("float16", "bfloat16", "bool", "int8")],
        "new types": [torch.ones(2).to(torch.float8_e4m3fn), torch.zeros(3, dtype=torch.uint16), torch.float32],
        "parameters": [nn.Parameter(torch.ones(2))],
        "others": [{1, 2}, (), {}, b"bytes", 2**70, -1.5, None, True, 1j, torch.Size([2, 3]), torch.device("cpu"), "é"],
        "nested": {"a": [{"b": (1, [2])}] * 3},
    }
    for zipped in (True, False):
        if not zipped:
            del state["new types"]  # which torch cannot read there
        torch.save(state, tmp_path / "s.pt", _use_new_zipfile_serialization=zipped)
        read = read_torch_file(tmp_path / "s.pt", "s.pt")
        assert str(read) == str(torch.load(tmp_path / "s.pt", weights_only=True))


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
