"""The learning rate of a resumed run: by its policy, by the checkpoint, or as the user gives it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys.nets import Record, build
from toys.resumable import train

import nemo_lite as nemo
from nemo_lite.utils.lr_policies import CosineAnnealing


def fading(initial: float, step: int, epoch: int) -> float:
    return initial * max(0.0, 1 - step / 4)


class Halve(nemo.NeMoCallback):
    """A schedule of the user's own."""

    def on_step_end(self, state: Any) -> None:
        for group in state.optimizers[0].param_groups:
            group["lr"] /= 2


def rates(folder: Path, max_steps: int, **settings: Any) -> list[float]:
    return [rate for _, _, rate in train(folder, max_steps, **settings).steps]


class Fails(nemo.NeMoCallback):
    def on_step_end(self, state: Any) -> None:
        if state.step == 2:
            raise RuntimeError("enough")


def test_a_second_training_with_the_same_optimizer_begins_at_its_rate(factory: nemo.NeuralModuleFactory) -> None:
    net, loss = build()
    optimizer = torch.optim.SGD([{"params": net.fc.weight, "lr": 0.2}, {"params": net.fc.bias}], lr=0.05)

    def rates_of(policy: Any, *callbacks: nemo.NeMoCallback) -> list[float]:
        record, params = Record(), {"max_steps": 4}
        train_again = {"optimizer": optimizer, "lr_policy": policy, "optimization_params": params}
        factory.train([loss], callbacks=[record, *callbacks], **train_again)
        return record.rates

    first = rates_of(fading)
    assert first == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert rates_of(fading) == first
    with pytest.raises(RuntimeError, match="enough"):
        rates_of(fading, Fails())
    assert rates_of(fading) == first
    assert rates_of(None) == [0.2] * 4, "the policy ended with its run"
    optimizer.param_groups[0]["lr"] = 0.1
    assert rates_of(fading) == pytest.approx([rate / 2 for rate in first])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.05]


def test_a_run_resumed_without_its_policy_takes_the_rate_that_is_given(tmp_path: Path) -> None:
    assert rates(tmp_path, 4, lr_policy=fading)[-1] < 0.02
    assert rates(tmp_path, 6) == [0.05, 0.05], "not what the policy had last"


def test_a_run_resumed_with_another_rate_takes_it(tmp_path: Path) -> None:
    rates(tmp_path, 2)
    assert rates(tmp_path, 4, params={"lr": 0.3}) == [0.3, 0.3]


def test_a_rate_that_a_callback_has_set_goes_on(tmp_path: Path) -> None:
    assert rates(tmp_path, 2, callbacks=[Halve()]) == [0.05, 0.025]
    assert rates(tmp_path, 4, callbacks=[Halve()]) == [0.0125, 0.00625]


def cosine(steps: int) -> Any:
    return CosineAnnealing(steps)


def test_a_schedule_that_jumps_where_a_run_goes_on_is_told_as_a_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = rates(tmp_path, 4, lr_policy=cosine(4))
    more = rates(tmp_path, 8, lr_policy=cosine(8))
    (told,) = [line for line in caplog.messages if line.startswith("learning rate: ")]
    assert told.startswith(f"learning rate: the last step had {first[-1]:.2e}, the next has {more[0]:.2e}: the sche")
    assert more[0] > 3 * first[-1]


def test_a_schedule_that_goes_on_as_it_was_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rates(tmp_path, 3, lr_policy=cosine(8))
    rates(tmp_path, 6, lr_policy=cosine(8))
    rates(tmp_path, 8, lr_policy=cosine(8), callbacks=[Halve()])
    assert not [line for line in caplog.messages if line.startswith("learning rate: ")]


def test_callbacks_of_a_resumed_run_see_its_rate_before_the_first_step(tmp_path: Path) -> None:
    seen = []

    class See(nemo.NeMoCallback):
        def on_epoch_start(self, state: Any) -> None:
            seen.append(state.learning_rate)

    rates(tmp_path, 2)
    rates(tmp_path, 3, callbacks=[See()])
    assert seen == [pytest.approx(0.05)]
