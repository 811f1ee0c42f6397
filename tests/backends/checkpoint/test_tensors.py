"""Tensors in files: our safetensors files, whole and in parts; files of torch.save; values that are not finite."""

from __future__ import annotations

import codecs
import copy
import io
import itertools
import json
import math
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from toys.nemo_archives import packed, write_0, write_tar
from toys.nets import BD, Net, build

import nemo_lite as nemo
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite.backends.pytorch.checkpoint import tensors as safetensors_file
from nemo_lite.backends.pytorch.checkpoint.fitting import refuse_not_finite
from nemo_lite.backends.pytorch.checkpoint.folder import SavePlan, read_checkpoint
from nemo_lite.backends.pytorch.checkpoint.storage import (
    Weights,
    load_module,
    load_training_state,
    read_tensors,
    save_module,
    save_training_state,
)
from nemo_lite.backends.pytorch.checkpoint.store import write_part
from nemo_lite.backends.pytorch.checkpoint.tensors import (
    key_of,
    params_by_place,
    read_for,
    stored_tensors,
    without_pieces,
    write_safetensors,
)
from nemo_lite.backends.pytorch.checkpoint.torch_files import read_torch_file
from nemo_lite.backends.pytorch.distributed.comm import Piece
from nemo_lite.backends.pytorch.nm import TrainableNeuralModuleWrapper
from nemo_lite.base.errors import CheckpointError
from nemo_lite.base.helpers import Part
from nemo_lite.core.callbacks import ModuleSaverCallback

# Files in safetensors' format: the library reads what was written, and equal content gives equal bytes.


def written(tensors, metadata=None):
    file = io.BytesIO()
    write_safetensors(file, tensors, metadata or {})
    return file.getvalue()


def test_the_library_reads_every_type_and_shape(tmp_path):
    shapes = ((), (0,), (3,), (2, 3))
    tensors = {
        f"{dtype} {shape} ж": torch.randint(0, 2, shape).to(dtype)
        for dtype in safetensors_file._NAMES
        for shape in shapes
    }
    tensors["transposed"] = torch.arange(6).view(2, 3).T
    tensors["part"] = torch.arange(9)[2:4]
    (tmp_path / "x").write_bytes(written(tensors, {"class": 'A"b\n', "x": ""}))
    with safe_open(tmp_path / "x", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert file.metadata() == {"class": 'A"b\n', "x": ""}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].tolist() == tensor.tolist(), name


def test_equal_content_gives_equal_bytes():
    metadata = {name: name for name in "abcdefgh"}
    first = written({"a": torch.ones(3), "b": torch.zeros(2)}, metadata)
    assert first == written({"b": torch.zeros(2), "a": torch.ones(3)}, metadata)


def test_a_tensor_that_the_format_lacks_is_named():
    with pytest.raises(CheckpointError, match=r"x cannot be stored: got a tensor of torch\.complex128"):
        written({"x": torch.zeros(1, dtype=torch.complex128)})
    with pytest.raises(CheckpointError, match=r"x cannot be stored: got a tensor of torch\.float32, torch\.sparse_coo"):
        written({"x": torch.zeros(1).to_sparse()})


# Tensors read from a file or from its parts: the same values, only what is asked for, and what is wrong with parts.


WHOLE = {"w": torch.arange(35.0).view(5, 7), "h": torch.arange(6).view(2, 3).bfloat16(), "n": torch.tensor(4)}
NAMES = [f"E-STEP-5.part-{number}-of-3.safetensors" for number in (1, 2, 3)]


def cut(tensor: Tensor, rank: int, count: int, dim: int = 0) -> Piece:
    rows = -(-tensor.shape[dim] // count)
    start = min(rank * rows, tensor.shape[dim])
    stop = min(start + rows, tensor.shape[dim])
    return Piece(tensor.narrow(dim, start, stop - start), dim, start, tensor.shape[dim])


def write(folder: Path, count: int, dim: int = 0, whole: dict[str, Tensor] = WHOLE) -> Path:
    for rank in range(count):
        own = {name: cut(value, rank, count, dim) if value.dim() else value for name, value in whole.items()}
        state = {"step": 5, "optimizers": [{"state": {3: {"m": own["w"], "step": own["n"]}}}], "of": {"first": rank}}
        writers = SavePlan("STEP", 5, 1).writers({"E": Weights("E", own)}, state, Part(rank + 1, count))
        write_part(folder, folder, writers)
    return folder / f"E-STEP-5.part-1-of-{count}.safetensors"


@pytest.mark.parametrize(("count", "dim"), [(2, 0), (3, 0), (8, 0), (3, 1)])
def test_parts_are_read_as_the_whole_and_by_any_slice(tmp_path: Path, count: int, dim: int) -> None:
    path = write(tmp_path, count, dim)
    for each in (path, tmp_path / f"E-STEP-5.part-{count}-of-{count}.safetensors", tmp_path / "E-STEP-5.pt"):
        found = read_tensors(each)
        assert found.keys() == WHOLE.keys()
        assert all(found[name].equal(value) and found[name].dtype == value.dtype for name, value in WHOLE.items())
    with stored_tensors(path) as stored:
        for along, (start, stop) in itertools.product((0, 1), itertools.combinations(range(6), 2)):
            if stop <= WHOLE["w"].shape[along]:
                assert stored.read_slice("w", along, start, stop).equal(WHOLE["w"].narrow(along, start, stop - start))
    state = load_training_state(tmp_path / f"trainer-STEP-5.part-1-of-{count}.safetensors")
    assert state["optimizers"][0]["state"][3]["m"].equal(WHOLE["w"])
    assert (state["optimizers"][0]["state"][3]["step"], state["of"]) == (4, {"first": 0})


def test_a_part_holds_its_own_rows_and_no_others(tmp_path: Path) -> None:
    whole = {"w": torch.zeros(3000, 7), "h": torch.zeros(3, 3), "n": torch.tensor(1)}
    write(tmp_path, 3, whole=whole)
    sizes = [(tmp_path / name).stat().st_size for name in NAMES]
    assert max(sizes) < 3000 * 7 * 4 / 3 + 1000


def relabelled(path: Path, **changes: list[int]) -> None:
    """The same file, whose header says that its tensors have other places."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    places = json.loads(header["__metadata__"]["places"]) | changes
    header["__metadata__"]["places"] = json.dumps(places)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ([0, 1, 5], r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* overlap: indices 0 to 2 and"),
        (
            [0, 3, 5],
            r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* leave a gap: .* 0 to 2 and 3",
        ),
        ([0, 2, 6], r"parts of w do not fit together: .*part-1-of-3.* and .*part-2-of-3.* are of different tensors"),
        ([1, 0, 7], r"parts of w do not fit together: .* are of different tensors"),
        ([0, 4, 5], r"part-2-of-3.*: the file is damaged: w of shape \(2, 7\) has the place \[0, 4, 5\]"),
        ([2, 0, 5], r"part-2-of-3.*: the file is damaged: w of shape"),
        ([0, -1, 5], r"the file is damaged: w of shape .* has the place"),
        ([0, 1], r"the file is damaged: w of shape .* has the place"),
    ],
)
def test_parts_whose_places_do_not_fit_are_refused(tmp_path: Path, place: list[int], problem: str) -> None:
    path = write(tmp_path, 3)
    relabelled(tmp_path / NAMES[1], w=place)
    with pytest.raises(CheckpointError, match=problem):
        read_tensors(path)


def test_parts_that_leave_rows_out_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    for name, place in zip(NAMES, ([0, 0, 6], [0, 3, 6], [0, 5, 6]), strict=True):
        relabelled(tmp_path / name, w=place)
    with pytest.raises(CheckpointError, match=r"part-1-of-3.* and .*part-2-of-3.* leave a gap: indices 0 to 2 and 3"):
        read_tensors(path)
    for name, place in zip(NAMES, ([0, 0, 9], [0, 2, 9], [0, 4, 9]), strict=True):
        relabelled(tmp_path / name, w=place)
    with pytest.raises(CheckpointError, match="indices 0 to 5 are there, 0 to 9 belong to it"):
        read_tensors(path)


def test_a_part_that_is_missing_or_of_another_place_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    second = (tmp_path / NAMES[1]).read_bytes()
    (tmp_path / NAMES[1]).write_bytes((tmp_path / NAMES[2]).read_bytes())
    with pytest.raises(
        CheckpointError, match=r"part-2-of-3.*: .* another part than its name says: got 3 of 3, wanted 2"
    ):
        read_tensors(path)
    (tmp_path / "renamed.safetensors").write_bytes(second)
    with pytest.raises(CheckpointError, match=r"renamed\.safetensors: .*: got 2 of 3, wanted a whole file"):
        read_tensors(tmp_path / "renamed.safetensors")
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(CheckpointError, match=r"part-2-of-3\.safetensors: this part is missing, one of 3"):
        read_tensors(path)
    alone = path.rename(tmp_path / "E-STEP-5.part-1-of-999999.safetensors")
    with pytest.raises(CheckpointError, match=r"part-1-of-999999\.safetensors: .*: got 1 of 3"):
        read_tensors(alone)


# Names under which what optimizers keep is found again; those of divided parameters are tested with two ranks.


def test_a_stored_name_leads_to_its_parameter_with_a_number_before_it_or_without() -> None:
    assert key_of("7:state.optimizers.0.state.3.exp_avg") == "state.optimizers.0.state.3"
    assert key_of("state.optimizers.0.state.3.exp_avg") == "state.optimizers.0.state.3"


def test_what_is_kept_for_whole_parameters_is_read_whole(tmp_path: Path) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    assert params_by_place([torch.optim.SGD([param])]) == {}
    save_training_state(tmp_path / "t.safetensors", {"m": torch.arange(4.0)})
    with stored_tensors(tmp_path / "t.safetensors") as stored:
        (name,) = stored.outlines
        assert read_for(param, stored, name).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_pieces_of_a_state_are_noted_by_their_tensors() -> None:
    piece, found = Piece(torch.ones(2), 0, 2, 4), dict[int, Piece]()
    state = without_pieces({"a": [1, (piece, "b")]}, found)
    assert state == {"a": [1, (piece.tensor, "b")]}
    assert found == {id(piece.tensor): piece}


# Files of torch.save: no code of theirs runs, and they cannot claim more than they hold.


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
    with pytest.raises(CheckpointError, match=r"m\.pt: the file does not begin with its first part"):
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


# Weights that are not finite are refused, and the good sets stay.


class Spoil(nemo.NeMoCallback):
    """Makes a weight infinite after a step, as a rate that is much too high does."""

    def __init__(self, net, step):
        super().__init__()
        self.net, self.step = net, step

    def on_step_end(self, state):
        if state.step == self.step:
            with torch.no_grad():
                self.net.fc.weight[0, 0] = math.inf


def test_a_run_whose_weights_are_not_finite_ends_and_its_good_checkpoints_stay(factory, tmp_path):
    net, loss = build(net=Net(norm=True, name="net"))
    callbacks = [Spoil(net, 3), nemo.CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=2)]
    with pytest.raises(
        CheckpointError, match=r"Net: weights that are not finite are not saved: got NaN or infinity in fc"
    ):
        factory.train(
            [loss], optimizer="sgd", callbacks=callbacks, optimization_params={"lr": 0.1, "momentum": 0, "max_steps": 6}
        )
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-STEP-2", "checkpoint-STEP-3"]
    assert all(torch.isfinite(value).all() for value in read_checkpoint(tmp_path).weights["net"].values())


def test_a_saver_of_modules_refuses_them_too(factory, tmp_path):
    net, loss = build(net=Net(name="net"))
    with pytest.raises(CheckpointError, match="weights that are not finite are not saved"):
        factory.train(
            [loss],
            optimizer="sgd",
            callbacks=[Spoil(net, 1), ModuleSaverCallback([net], step_freq=2, folder=tmp_path)],
            optimization_params={"lr": 0.1, "max_steps": 2},
        )
    assert list(tmp_path.iterdir()) == []


def test_infinities_of_a_buffer_may_be_a_mask_and_nan_may_not():
    net = Net(norm=True)
    net.register_buffer("mask", torch.full((2,), -math.inf))
    refuse_not_finite(net, net.state_dict())
    net.norm.running_var[1] = math.nan
    with pytest.raises(CheckpointError, match=r"got NaN or infinity in norm\.running_var; the checkpoints"):
        refuse_not_finite(net, net.state_dict())


def test_an_infinite_weight_of_a_wrapped_module_is_refused():
    net = TrainableNeuralModuleWrapper(nn.Linear(3, 1), {"x": BD}, {"out": BD})
    refuse_not_finite(net, net.state_dict())
    with torch.no_grad():
        net._pt_module.weight[0, 1] = math.inf
    with pytest.raises(CheckpointError, match=r"Wrapper: weights that are not .*: got NaN or infinity in weight"):
        refuse_not_finite(net, net.state_dict())


def test_only_some_of_many_weights_are_listed():
    net = Net(norm=True)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(CheckpointError, match=r"norm\.weight, norm\.bias, fc\.weight and 1 more"):
        refuse_not_finite(net, net.state_dict())


@pytest.fixture
def factory():
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU)
