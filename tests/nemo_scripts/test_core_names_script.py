"""A script of NeMo that reaches for its names runs as it is."""

from pathlib import Path

import pytest
from toys.nemo_alias import run_script

import nemo_lite
from nemo_lite.base.errors import CheckpointError, UnknownNameError


@pytest.mark.slow
def test_names_wires_types_state_configurations_and_files_are_where_nemo_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script("core_names.py", ["--work_dir", str(tmp_path)])
    told = capsys.readouterr()
    assert told.out.endswith("done\n")
    assert [line for line in told.out.splitlines() if line.startswith("loss: ")] != []
    assert told.err.count("is deprecated.") == 3
    assert "It is going to be removed in the 0.12 version. Use new_way." in told.err


def test_a_script_of_the_first_nemo_trains_and_prints_what_is_only_evaluated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_script("first_generation.py")
    told = capsys.readouterr().out
    assert told.endswith("done\n")
    assert told.count("predictions (16, 1) targets (16, 1)") == told.count("\nloss ") == 2


def test_the_trainer_of_the_first_nemo_knows_two_parameters() -> None:
    factory = nemo_lite.NeuralModuleFactory(placement=nemo_lite.DeviceType.CPU)
    with pytest.raises(UnknownNameError, match=r'get_trainer: key "optimizer" is not known.*mean optimizer_kind'):
        factory.get_trainer(params={"optimizer": "sgd"})


def test_a_file_of_objects_is_refused_and_a_missing_one_named(tmp_path: Path) -> None:
    nemo_lite.backends.save({"anything": Path("x")}, tmp_path / "objects")
    with pytest.raises(CheckpointError, match="cannot be read as plain values; save dictionaries, lists, numbers"):
        nemo_lite.backends.load(tmp_path / "objects")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        nemo_lite.backends.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"TaylorNet: .*Missing key"):
        nemo_lite.backends.set_state_dict(nemo_lite.tutorials.TaylorNet(dim=2), {})
