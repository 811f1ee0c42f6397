"""nemo-lite verify-resume: kills a run at random steps and compares. The page about training runs it on speech."""

import hashlib

import pytest
from toys.quick_run import script

from nemo_lite.base.errors import UsageError
from nemo_lite.cli import verify_resume


def digest_of_state(run):
    (state,) = run.folder.glob("runs/*/state.json")
    return {"state.json": hashlib.sha256(state.read_bytes()).hexdigest()}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """The command's arguments for a run without torch, and so without checkpoints of ours."""
    monkeypatch.setattr(verify_resume, "_digests", digest_of_state)
    own = ["--kills", "2", "--seed", "32", "--folder", str(tmp_path / "out")]
    return [*own, "--", str(script(tmp_path))]


@pytest.mark.slow
def test_a_run_that_resumes_exactly_is_equal(quick, capsys):
    assert verify_resume.main(quick) == 0
    told = capsys.readouterr().out
    assert "without interruption: 40 steps" in told
    assert "SIGTERM, exit code 75" in told
    assert "SIGKILL, exit code -9" in told
    assert told.splitlines()[-1].startswith("equal: ")


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_forgets_its_generator_is_told_with_the_first_step_that_differs(quick, capsys):
    assert verify_resume.main([*quick, "--forget-generator"]) == 1
    told = capsys.readouterr().out
    assert "the interrupted run differs:\nloss of step " in told
    assert "state.json: " in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is no command to run; give it after --, such as"),
        (["--", "a.py", "--work_dir=x", "--load_dir", "y"], "leave --work_dir, --load_dir out"),
    ],
)
def test_a_command_that_cannot_be_verified_is_one_line(words, told):
    with pytest.raises(UsageError, match=told):
        verify_resume.main(words)


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(UsageError, match="the folder is not empty"):
        verify_resume.main(["--folder", str(tmp_path), "--", "a.py"])
