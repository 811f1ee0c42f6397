"""Module files and training states: what goes in comes out, and nothing else goes in."""

from __future__ import annotations

import collections
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from nemo_lite.backends.pytorch.checkpoint.storage import (
    load_module,
    load_training_state,
    save_module,
    save_training_state,
)
from nemo_lite.base.errors import CheckpointError, UsageError


class Encoder(nn.Module):
    def __init__(self, width=3, tie=False):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.second = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)
        if tie:
            self.second.weight = self.first.weight


def assert_same(left, right):
    left, right = left.state_dict(), right.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("tie", [False, True])
def test_a_module_survives_a_save_and_a_load(tmp_path, tie):
    saved, loaded = Encoder(tie=tie), Encoder(tie=tie)
    saved.norm.num_batches_tracked += 5
    save_module(saved, tmp_path / "e.safetensors")
    load_module(loaded, tmp_path / "e.safetensors")
    assert_same(saved, loaded)
    assert (loaded.first.weight is loaded.second.weight) == tie


def test_a_tied_tensor_is_stored_once(tmp_path):
    save_module(Encoder(500), tmp_path / "two.safetensors")
    save_module(Encoder(500, tie=True), tmp_path / "one.safetensors")
    saved_bytes = (tmp_path / "two.safetensors").stat().st_size - (tmp_path / "one.safetensors").stat().st_size
    assert saved_bytes > 500 * 2 * 4 - 200


def test_a_tied_file_fills_an_untied_module(tmp_path):
    saved, loaded = Encoder(tie=True), Encoder()
    save_module(saved, tmp_path / "e.safetensors")
    load_module(loaded, tmp_path / "e.safetensors")
    assert torch.equal(loaded.second.weight, saved.first.weight)


def test_an_untied_file_does_not_fit_a_tied_module(tmp_path):
    save_module(Encoder(), tmp_path / "e.safetensors")
    with pytest.raises(
        CheckpointError, match=r"tied in the module but not in the file: first.weight and second.weight"
    ):
        load_module(Encoder(tie=True), tmp_path / "e.safetensors")


def test_views_of_one_buffer_and_strided_tensors_are_stored_by_value(tmp_path):
    saved, loaded = nn.Module(), nn.Module()
    whole = torch.arange(6.0).reshape(2, 3)
    for module, data in ((saved, whole), (loaded, torch.zeros(2, 3))):
        for name, view in {"whole": data, "row": data[1], "turned": data.t(), "wide": data[:1].expand(4, 3)}.items():
            module.register_buffer(name, view if module is saved else view.clone())
    save_module(saved, tmp_path / "m.safetensors")
    load_module(loaded, tmp_path / "m.safetensors")
    assert_same(saved, loaded)


def test_other_element_types_survive(tmp_path):
    saved, loaded = nn.Module(), nn.Module()
    for module in (saved, loaded):
        module.register_buffer("halves", torch.ones(2, dtype=torch.bfloat16) * (module is saved))
        module.register_buffer("nothing", torch.zeros(0, 3))
        module.register_buffer("flag", torch.tensor(module is saved))
    save_module(saved, tmp_path / "m.safetensors")
    load_module(loaded, tmp_path / "m.safetensors")
    assert_same(saved, loaded)


def test_a_module_without_tensors_has_an_empty_file(tmp_path):
    save_module(nn.ReLU(), tmp_path / "empty.safetensors")
    load_module(nn.ReLU(), tmp_path / "empty.safetensors")


def test_all_differences_are_listed_at_once_and_nothing_is_loaded(tmp_path):
    saved, loaded = nn.Module(), nn.Module()
    for module, shapes in ((saved, {"a": 2, "b": 3, "d": 1}), (loaded, {"a": 2, "b": 4, "c": 5})):
        for name, size in shapes.items():
            module.register_buffer(name, torch.full((size,), float(module is saved)))
    save_module(saved, tmp_path / "m.safetensors")
    message = (
        r"m\.safetensors: does not fit Module: missing: c \(5\); unexpected: d \(1\); "
        r"different: b is \(3\), the module has \(4\); make the module with the configuration"
    )
    with pytest.raises(CheckpointError, match=message):
        load_module(loaded, tmp_path / "m.safetensors")
    assert loaded.a.sum() == 0


def test_whole_numbers_do_not_fill_a_float_tensor(tmp_path):
    torch.save({"weight": torch.ones(1, 1, dtype=torch.int64)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"weight is torch\.int64, the module has torch\.float32"):
        load_module(nn.Linear(1, 1, bias=False), tmp_path / "m.pt")


def test_long_lists_of_differences_are_cut(tmp_path):
    save_module(nn.Sequential(*[nn.Linear(1, 1) for _ in range(20)]), tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="and 30 more"):
        load_module(nn.Sequential(nn.Linear(1, 1)), tmp_path / "m.safetensors")


def test_a_file_that_matches_nothing_is_said_to_be_another_modules(tmp_path):
    save_module(nn.Linear(1, 1), tmp_path / "m.safetensors")
    message = "none of its 2 tensors belongs to Encoder: got .*, wanted first.weight; this is another module's file"
    with pytest.raises(CheckpointError, match=message):
        load_module(Encoder(), tmp_path / "m.safetensors")


def test_a_module_with_a_state_that_is_no_tensor_is_refused(tmp_path):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(CheckpointError, match=r"Odd\._extra_state cannot be stored: got dict, wanted a tensor"):
        save_module(Odd(1, 1), tmp_path / "m.safetensors")


def test_a_missing_file_is_answered_with_the_nearest_name(tmp_path):
    save_module(nn.Linear(1, 1), tmp_path / "Encoder-STEP-10.safetensors")
    message = r"Encoder-STEP-100\.safetensors: no such file \(did you mean Encoder-STEP-10\.safetensors\?\)"
    with pytest.raises(CheckpointError, match=message):
        load_module(nn.Linear(1, 1), tmp_path / "Encoder-STEP-100.safetensors")


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
@pytest.mark.parametrize("content", [b"", b"abcdefghijkl", b"PK\x03\x04" + bytes(40)])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}: the file is damaged"):
        load_module(nn.Linear(1, 1), tmp_path / name)


def test_a_torn_file_is_named(tmp_path):
    for name, save in {
        "m.safetensors": save_module,
        "m.pt": lambda module, path: torch.save(module.state_dict(), path),
    }.items():
        save(nn.Linear(9, 9), tmp_path / name)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(CheckpointError, match="the file is damaged"):
            load_module(nn.Linear(9, 9), tmp_path / name)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_of_nemo_is_read(tmp_path, zipped):
    saved, loaded = Encoder(), Encoder()
    torch.save(saved.state_dict(), tmp_path / "e.pt", _use_new_zipfile_serialization=zipped)
    load_module(loaded, tmp_path / "e.pt")
    assert_same(saved, loaded)


def test_a_training_state_survives_with_its_types(tmp_path):
    state = {
        "step": 3,
        "big": 2**80,
        "lr": 0.1,
        "worst": -math.inf,
        "none": None,
        "flag": True,
        "name": "é\n",
        "betas": (0.95, 0.25),
        "nested": [[], {}, (), [1, [2.5]]],
        "by_number": {0: {"exp_avg": torch.arange(3.0)}, 7: {}},
        "$dollar": {"$tensor": "not one"},
        "rng": torch.tensor([1, 2], dtype=torch.uint8),
    }
    save_training_state(tmp_path / "t.safetensors", state)
    loaded = load_training_state(tmp_path / "t.safetensors")
    assert torch.equal(loaded.pop("rng"), state.pop("rng"))
    assert torch.equal(loaded["by_number"][0].pop("exp_avg"), state["by_number"][0].pop("exp_avg"))
    assert loaded == state
    assert type(loaded["flag"]) is bool
    assert type(loaded["betas"]) is tuple


def test_the_file_of_a_training_state_is_what_it_always_was(tmp_path):
    structure = (
        '{"step": 3, "optimizers": [{"state": {"$items": [[0, {"exp_avg": {"$tensor": '
        '"0:state.optimizers.0.state.0.exp_avg"}}]]}, "param_groups": [{"lr": 0.1, "betas": {"$tuple": [0.9, 0.99]}}]}]'
        ', "precision": {"scale": {"$float": "inf"}}}'
    )
    tensors = {"0:state.optimizers.0.state.0.exp_avg": torch.arange(3.0)}
    save_file(tensors, tmp_path / "old.safetensors", {"format": "nemo_lite training state", "structure": structure})
    loaded = load_training_state(tmp_path / "old.safetensors")
    moments = loaded["optimizers"][0]["state"][0]["exp_avg"]
    assert moments.tolist() == [0.0, 1.0, 2.0]
    assert loaded == {
        "step": 3,
        "optimizers": [{"state": {0: {"exp_avg": moments}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}],
        "precision": {"scale": math.inf},
    }
    save_training_state(tmp_path / "new.safetensors", loaded)
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "nemo_lite training state", "structure": structure}
        assert list(file.keys()) == list(tensors)


def test_numbers_and_containers_of_other_classes_become_plain_ones(tmp_path):
    state = collections.OrderedDict(a=collections.defaultdict(int, {1: 2}), b=math.nan)
    save_training_state(tmp_path / "t.safetensors", state)
    loaded = load_training_state(tmp_path / "t.safetensors")
    assert loaded["a"] == {1: 2}
    assert math.isnan(loaded["b"])


def test_one_tensor_in_two_places_is_stored_once_and_views_by_value(tmp_path):
    tensor = torch.arange(4.0)
    save_training_state(tmp_path / "t.safetensors", {"a": tensor, "b": tensor, "view": tensor[:2]})
    loaded = load_training_state(tmp_path / "t.safetensors")
    assert loaded["a"] is loaded["b"]
    assert loaded["view"].tolist() == [0.0, 1.0]


def test_a_loaded_state_does_not_depend_on_its_file(tmp_path):
    path = tmp_path / "t.safetensors"
    save_training_state(path, {"a": torch.ones(100_000)})
    loaded = load_training_state(path)
    loaded["a"] += 1
    path.write_bytes(bytes(path.stat().st_size))
    assert loaded["a"].unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [{"b": object()}]}, r"state\.a\.0\.b cannot be stored: got object, wanted a number"),
        ({"a": {(object(),): 1}}, r"state\.a\.key\.0 cannot be stored: got object"),
        ({"a": b"x"}, r"state\.a cannot be stored: got bytes"),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(tmp_path, state, message):
    with pytest.raises(CheckpointError, match=message):
        save_training_state(tmp_path / "t.safetensors", state)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_contains_itself_is_refused(tmp_path):
    state = {}
    state["self"] = state
    with pytest.raises(CheckpointError, match="the state is nested too deeply"):
        save_training_state(tmp_path / "t.safetensors", state)


@pytest.mark.slow
def test_a_state_with_huge_lists_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_lite.backends.pytorch.checkpoint.storage._MAX_STRUCTURE_BYTES", 2**20)
    with pytest.raises(
        CheckpointError, match=r"got \d+ MiB without its tensors, wanted at most 1 MiB; store long lists"
    ):
        save_training_state(tmp_path / "t.safetensors", {"a": list(range(2**18))})


def test_a_module_file_is_not_a_training_state(tmp_path):
    save_module(nn.Linear(1, 1), tmp_path / "m.safetensors")
    with pytest.raises(
        CheckpointError, match="this is no training state: got nemo_lite module Linear, wanted a trainer"
    ):
        load_training_state(tmp_path / "m.safetensors")


def test_a_training_state_of_nemo_is_read(tmp_path):
    torch.save(
        {"step": 5, "epoch": 1, "optimizer_state": [{"state": {0: {"step": 1}}}]}, tmp_path / "trainer-STEP-5.pt"
    )
    state = load_training_state(tmp_path / "trainer-STEP-5.pt")
    assert (state["step"], state["epoch"], state["optimizers"][0]["state"]) == (5, 1, {0: {"step": 1}})


def test_a_folder_that_is_missing_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UsageError, match="the file cannot be written"):
        save_module(nn.Linear(1, 1), tmp_path / "gone" / "m.safetensors")


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.ckpt", "m", "m.weights"])
def test_what_is_saved_under_any_suffix_is_read_back(tmp_path, name):
    saved, loaded = Encoder(tie=True), Encoder(tie=True)
    save_module(saved, tmp_path / name)
    load_module(loaded, tmp_path / name)
    assert_same(saved, loaded)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt"])
def test_torch_reads_what_is_saved_under_its_suffixes_and_finds_nothing_but_the_tensors(tmp_path, suffix):
    saved, path = Encoder(), tmp_path / f"m{suffix}"
    saved.second.weight.data = torch.zeros(500, 500)[:3, :2]  # a part of something larger
    save_module(saved, path)
    state = torch.load(path, weights_only=True)
    assert list(state) == list(saved.state_dict())
    assert torch.equal(state["first.weight"], saved.first.weight)
    assert path.stat().st_size < 10_000


def test_a_file_is_known_by_its_content(tmp_path):
    saved, loaded = Encoder(), Encoder()
    save_module(saved, tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").rename(tmp_path / "m.pt")
    load_module(loaded, tmp_path / "m.pt")
    assert_same(saved, loaded)
    torch.save(saved.state_dict(), tmp_path / "n.safetensors")
    load_module(loaded, tmp_path / "n.safetensors")


def test_a_name_of_nemos_finds_our_file(tmp_path):
    saved, loaded = Encoder(), Encoder()
    save_module(saved, tmp_path / "Encoder-STEP-2.safetensors")
    load_module(loaded, tmp_path / "Encoder-STEP-2.pt")
    assert_same(saved, loaded)


def test_a_training_state_under_torchs_suffix_has_nemos_keys(tmp_path):
    moments = {0: {"exp_avg": torch.arange(3.0)}}
    optimizers = [{"state": moments, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]}]
    save_training_state(tmp_path / "trainer-STEP-3.pt", {"step": 3, "epoch": 1, "optimizers": optimizers})
    state = torch.load(tmp_path / "trainer-STEP-3.pt", weights_only=True)
    assert (state["step"], state["epoch"]) == (3, 1)
    assert torch.equal(state["optimizer_state"][0]["state"][0]["exp_avg"], moments[0]["exp_avg"])
    loaded = load_training_state(tmp_path / "trainer-STEP-3.pt")
    assert loaded["optimizers"][0]["param_groups"] == optimizers[0]["param_groups"]
