"""Arguments of train(), eval() and the factory that cannot be are refused before anything runs."""

import re

import pytest
import torch
from toys.nets import Net, Points, Record, build, train
from toys.rank_training import rank_factory, train_net

import nemo_lite as nemo
from nemo_lite.base.errors import UnknownNameError, UsageError


def test_tuples_do_not_go_with_accumulation(factory):
    net, loss = build()
    with pytest.raises(UsageError, match="tuples go with neither optimizer= nor batches_per_step above 1"):
        train(factory, [(torch.optim.SGD(net.parameters(), lr=0.1), [loss])], batches_per_step=2)


def test_neither_epochs_nor_steps_is_refused_before_anything_runs(factory):
    _, loss = build()
    record = Record()
    with pytest.raises(UsageError, match="must be said: got neither, wanted num_epochs or max_steps"):
        train(factory, [loss], record, params={"momentum": 0.0})
    assert record.events == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_epochs": "3"}, 'num_epochs is "3", wanted int from 1 on or null'),
        ({"num_epochs": 1.5}, "num_epochs is 1.5, wanted int from 1 on or null"),
        ({"max_steps": 0}, "max_steps is 0, wanted int from 1 on or null"),
        ({"num_epochs": 1, "grad_norm_clip": -1.0}, "grad_norm_clip is -1.0, wanted float above 0 or null"),
        ({"num_epochs": 1, "grad_norm_clip": "1"}, 'grad_norm_clip is "1", wanted float above 0 or null'),
    ],
)
def test_numbers_that_cannot_be_are_refused(factory, params, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        train(factory, [build()[1]], params=params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batches_per_step": 0}, "batches_per_step is 0, wanted int from 1 on"),
        ({"callbacks": Record()}, "callbacks must be a list: got Record; put brackets around it"),
        ({"lr_policy": "CosineAnnealing"}, "lr_policy must be a policy .* got 'CosineAnnealing'; make an object"),
        ({"lr_policy": nemo.utils.lr_policies.CosineAnnealing}, "got CosineAnnealing; make an object of the class"),
    ],
)
def test_arguments_of_another_kind_are_refused(factory, arguments, message):
    params = {"num_epochs": 1, "lr": 0.1}
    with pytest.raises(UsageError, match=message):
        factory.train([build()[1]], optimizer="sgd", optimization_params=params, **arguments)


def test_one_loss_without_a_list_is_refused(factory):
    with pytest.raises(UsageError, match="tensors_to_optimize must be a list: got NmTensor; put brackets around it"):
        factory.train(build()[1], optimizer="sgd", optimization_params={"num_epochs": 1, "lr": 0.1})


def test_one_evaluator_without_a_list_is_refused(factory):
    evaluator = nemo.EvaluatorCallback(build()[1], lambda values, collected: None, lambda collected: None)
    with pytest.raises(UsageError, match="callbacks must be a list: got EvaluatorCallback"):
        factory.eval(evaluator)


def test_a_policy_for_uneven_data_that_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match=r'uneven "padd" is not known.*did you mean pad'):
        train_net(rank_factory(), Net(), Points(n=4), uneven="padd")
