"""NeMoModel: a model of a user's own, saved to one file and read from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nemo_archives import write_1

from nemo_lite.backends.pytorch.tutorials import TaylorNet
from nemo_lite.core import NeuralModule, OperationMode
from nemo_lite.core.models import NemoArchive, NeMoModel
from nemo_lite.errors import CheckpointError, ConfigError, UsageError


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
