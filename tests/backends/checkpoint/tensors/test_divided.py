"""Names under which what optimizers keep is found again; those of divided parameters are tested with two ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from nemo_lite.backends.pytorch.checkpoint.storage import save_training_state
from nemo_lite.backends.pytorch.checkpoint.tensors import (
    key_of,
    params_by_place,
    read_for,
    stored_tensors,
    without_pieces,
)
from nemo_lite.backends.pytorch.distributed.comm import Piece


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
