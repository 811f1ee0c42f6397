"""RunIdentity: a launcher's id tells runs apart; without one, script and arguments do, but for those of one process."""

from __future__ import annotations

import pytest
from toys.launchers import openmpi, slurm_task, torchrun

from nemo_lite.backends.pytorch.distributed.rendezvous import differences, identity_of, options_in
from nemo_lite.utils.launch import who_am_i


def run_of(line, environ=None):
    return identity_of(who_am_i(environ=environ or torchrun(0, 0)), line.split())


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        (torchrun(1, 1, TORCHELASTIC_RUN_ID="jasper-1"), "pytorch jasper-1"),
        (slurm_task(3), "slurm 200505.0"),
        (openmpi(2), "mpi 1234567890"),
    ],
)
def test_a_launchers_id_names_the_run_whatever_the_command_line(environ, run_id):
    assert run_of("jasper.py --lr 0.1", environ).run_id == run_of("x.py", environ).run_id == run_id
    assert differences([run_of("jasper.py --lr 0.1", environ), run_of("x.py", environ)]) == ""


def test_a_run_without_an_id_is_named_after_its_command_line():
    first, again, other = (run_of(f"{folder}/jasper.py --lr {lr}") for folder, lr in (("/a", 1), ("/b", 1), ("/a", 2)))
    assert first.run_id == again.run_id != other.run_id
    assert first.run_id.startswith("jasper.py ")


def test_differences_are_those_in_names_with_both_values():
    runs = [run_of("jasper.py --lr=0.02 --exp_name A --work_dir=/ssd0/runs --gpu 0")]
    runs += [run_of("/b/jasper.py --lr=2e-2 --exp-name=A --work_dir /ssd1/runs --gpu 1")]
    assert differences(runs) == ""
    assert differences([*runs, run_of("/else/where/eval.py --work_dir other")]) == (
        "script: rank 0 has jasper.py, rank 2 has eval.py; --exp_name: rank 0 has A, rank 2 has none; "
        "--work_dir: rank 0 has runs, rank 2 has other"
    )


def test_options_in_a_command_line():
    assert options_in(["a.wav", "-v", "--lr=1e-3", "--betas", "0.9", "-0.5", "--exp-name"]) == {
        "": ["a.wav"],
        "v": [],
        "lr": ["1e-3"],
        "betas": ["0.9", "-0.5"],
        "exp_name": [],
    }
