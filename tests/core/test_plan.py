"""The plan: every DAG with shapes and parameters, and the schedule, printed and saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys.nets import Mse, Net, Points

from nemo_lite import Dag
from nemo_lite.base.errors import UsageError
from nemo_lite.core.show import show_plan
from nemo_lite.utils.lr_policies import CosineAnnealing


def dag() -> Dag:
    x, y = Points()()
    return Dag([Mse()(out=Net()(x=x), target=y)])


def test_the_plan_shows_shapes_parameters_and_the_schedule_and_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = CosineAnnealing(total_steps=100)
    saved = tmp_path / "runs" / "one"
    show_plan({"training": dag()}, policy, 0.5, 25, 100, saved)
    printed = capsys.readouterr().out
    assert "training: 3 nodes, 4 parameters" in printed
    assert "B D? -> B D?" in printed
    assert "25 steps an epoch, 100 steps in all" in printed
    points = ", ".join(f"{policy(0.5, step, 0):.3g} at step {step}" for step in (0, 33, 66, 99))
    assert f"learning rate {points}\n" in printed
    assert (saved / "plan.txt").read_text().rstrip() in printed
    assert (saved / "training.svg").read_text().startswith("<svg")
    assert f"Saved plan.txt and training.svg in {saved}" in printed


def test_a_plan_that_cannot_be_saved_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/run: the folder is not writable"):
        show_plan({"training": dag()}, CosineAnnealing(total_steps=4), 0.5, 2, 4, tmp_path / "file" / "run")


def test_a_plan_of_one_step_names_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan({"training": dag()}, CosineAnnealing(total_steps=1), 0.5, 1, 1)
    assert "learning rate 0.5 at step 0\n" in capsys.readouterr().out
