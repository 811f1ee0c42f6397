"""apex: which one is installed, and training by apex.amp against a small package with its signatures."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from toys.apex_installed import apex_from, copy_without
from toys.nets import Mse, Net, Points, Record, build, train

import nemo_lite as nemo
from nemo_lite.backends.pytorch.precision import choose_precision, import_amp, problem_with_apex
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.run_options import Optimization

# apex.amp, where it is installed: which calls it gets, and what is said where it cannot be had.


CPU = torch.device("cpu")


def factory(level, **options):
    return nemo.NeuralModuleFactory(
        placement=nemo.DeviceType.CPU, random_seed=1, optimization_level=level, amp_backend="apex", **options
    )


def test_no_apex_is_one_clear_line():
    assert "apex" not in sys.modules
    message = r"amp_backend apex: apex is not installed; install tag 24\.04\.01 of github.com/NVIDIA/apex; or amp_back"
    with pytest.raises(UsageError, match=message):
        factory("O1")


def test_apex_without_amp_is_one_clear_line(tmp_path):
    folder = copy_without("amp", tmp_path / "apex25")
    with apex_from(folder), pytest.raises(UsageError, match=r"apex that is installed has no amp.*; install tag 24\.04"):
        factory("O2")


def test_another_package_of_that_name_is_one_clear_line_and_is_not_imported(tmp_path):
    package = tmp_path / "site" / "apex"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemError('imported')")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package.parent)
        with pytest.raises(UsageError, match=r"apex that is installed is not NVIDIA's \(.*apex\); pip uninstall apex"):
            import_amp()


def test_apex_that_cannot_be_imported_is_one_clear_line(tmp_path):
    folder = copy_without("nothing", tmp_path / "broken")
    (folder / "apex" / "amp" / "__init__.py").write_text("import amp_C")
    with (
        apex_from(folder),
        pytest.raises(UsageError, match=r"apex\.amp cannot be imported: got No module"),
    ):
        import_amp()


@pytest.mark.parametrize(
    ("device", "dtype", "message"),
    [
        ("cuda", "bfloat16", "amp_backend apex: apex.amp computes in float16: got bfloat16"),
        ("meta", None, "amp_backend apex: apex.amp computes on GPUs: got meta"),
    ],
)
def test_what_apex_does_not_compute_is_refused(device, dtype, message):
    with apex_from(), pytest.raises(UsageError, match=message):
        choose_precision(Optimization.mxprO1, torch.device(device), dtype, amp_backend="apex")


def test_backends_of_other_names_are_refused_and_auto_is_native():
    with pytest.raises(UnknownNameError, match='amp_backend "apx" is not known; known: apex, auto, native'):
        choose_precision(Optimization.mxprO1, CPU, amp_backend="apx")
    with apex_from() as apex:
        train(nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, optimization_level="O2"), [build()[1]])
        assert apex.calls == []


class SeesCasts(Mse):
    """Notes whether apex casts what torch's functions take."""

    def _loss_function(self, out, target):
        amp = import_module("apex.amp")

        self.casts, self.dtypes = amp.casts_are_on, (out.dtype, target.dtype)
        return super()._loss_function(out, target)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_run_makes_the_documented_calls_and_learns(level):
    with apex_from() as apex:
        amp = import_module("apex.amp")

        net, loss = Net(norm=True), SeesCasts()
        x, y = Points(n=16, batch_size=4)()
        record = Record()
        made = factory(level)
        train(made, [loss(out=net(x=x), target=y)], record, params={"num_epochs": 6}, batches_per_step=2)
        assert record.losses[-1] < record.losses[0] / 3
        assert apex.calls[0] == ("initialize", 1, 1, level, None, 2.0**24)
        assert apex.calls[1:3] == [("scale_loss", True), ("scale_loss", False)]
        assert (loss.casts, loss.dtypes) == (level != "O1", (torch.float32, torch.float32))
        assert amp.casts_are_on
        assert {value.dtype for value in net.state_dict().values()} == {torch.float32, torch.int64}
        (optimizer,) = made.get_trainer().optimizers
        assert {p.dtype for p in amp.master_params(optimizer)} == {torch.float16 if level == "O3" else torch.float32}
        assert {p.dtype for p in net.fc.parameters()} == {torch.float32 if level == "O1" else torch.float16}


def test_checkpoints_have_the_master_weights_and_the_loss_scale_and_resuming_is_exact(tmp_path):
    weights, scales = [], []
    for steps in (6, 3, 6):  # in one go; then in two
        with apex_from():
            amp = import_module("apex.amp")

            net, loss = build()
            callbacks = [nemo.CheckpointCallback(tmp_path / "two", step_freq=3)] if weights else []
            params = {"lr": 0.1, "max_steps": steps, "momentum": 0.9}
            factory("O2").train([loss], optimizer="sgd", optimization_params=params, callbacks=callbacks)
            weights.append({name: value.clone() for name, value in net.state_dict().items()})
            scales.append(amp.state_dict())
    once, half_way, twice = weights
    assert torch.equal(once["fc.weight"], twice["fc.weight"])
    assert not torch.equal(once["fc.weight"], half_way["fc.weight"])
    assert not torch.equal(once["fc.weight"], once["fc.weight"].half().float())
    assert scales[0] == scales[2]


def test_a_step_whose_gradients_overflow_is_left_out_once_and_lowers_the_scale():
    class Overflows(nemo.NeMoCallback):
        def on_step_start(self, state):
            weights.append(net.fc.weight.detach().clone())
            amp.scales["scale"] = math.inf if state.step == 1 else 1024.0

    with apex_from() as apex:
        amp = import_module("apex.amp")

        weights: list[torch.Tensor] = []
        net, loss = build()
        params = {"lr": 0.1, "max_steps": 4}
        factory("O2").train([loss], optimizer="sgd", optimization_params=params, callbacks=[Overflows()])
        assert apex.calls.count(("skip_step",)) == 1
        assert [torch.equal(a, b) for a, b in pairwise(weights)] == [False, True, False]


def test_a_second_training_of_a_process_is_refused():
    with apex_from():
        made = factory("O1")
        train(made, [build()[1]])
        with pytest.raises(UsageError, match=r"apex\.amp can be initialised once in a process; amp_backend="):
            train(made, [build()[1]])


def test_what_is_only_evaluated_is_native():
    with apex_from() as apex:
        x, _ = Points()()
        (values,) = factory("O2").infer([Net()(x=x)])
        assert (values[0].dtype, apex.calls) == (torch.float16, [])


def test_the_fake_has_the_folders_that_tell_nvidias_package():
    folder = Path(__file__).parents[1] / "toys" / "fake_apex" / "apex"
    assert {path.name for path in folder.iterdir() if path.is_dir()} >= {"amp", "optimizers"}


# Which apex is installed, found without importing it.


def test_what_is_missing_is_told_with_the_remedy(tmp_path):
    assert problem_with_apex("amp") == ("apex is not installed", "install tag 24.04.01 of github.com/NVIDIA/apex")
    with apex_from():
        assert problem_with_apex("amp") == problem_with_apex("optimizers") == ("", "")
    with apex_from(copy_without("amp", tmp_path / "newer")):
        assert problem_with_apex("amp")[0] == "the apex that is installed has no amp, which it lost in 2025"
        assert problem_with_apex("optimizers") == ("", "")


def test_another_package_of_that_name_is_not_imported(tmp_path):
    package = tmp_path / "apex"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemError('imported')")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        problem, remedy = problem_with_apex("optimizers")
    assert (problem, remedy.split(",")[0]) == (
        f"the package apex that is installed is not NVIDIA's ({package})",
        "pip uninstall apex",
    )
    assert "apex" not in sys.modules
