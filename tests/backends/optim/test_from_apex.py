"""The fused optimizers: apex's where it is installed, otherwise our own, which is said once.

The real apex cannot be installed here; these tests run against a small package with its published signatures.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from toys.apex_installed import FOLDER, apex_from, copy_without

from nemo_lite.backends.pytorch import create_optimizer as from_apex
from nemo_lite.backends.pytorch.create_optimizer import create_optimizer
from nemo_lite.backends.pytorch.foreach_optimizers import Lamb, Novograd
from nemo_lite.backends.pytorch.precision import choose_precision
from nemo_lite.core.backend import Optimization
from nemo_lite.utils import logging

CASES = [
    ("fused_adam", "FusedAdam", torch.optim.AdamW, ("FusedAdam", True)),
    ("fused_sgd", "FusedSGD", torch.optim.SGD, ("FusedSGD", 0.9)),
    ("fused_novograd", "FusedNovoGrad", Novograd, ("FusedNovoGrad", (0.95, 0.25), False)),
    ("fused_lamb", "FusedLAMB", Lamb, ("FusedLAMB", 0.0, math.inf)),
]


def made(name, **options):
    return create_optimizer(name, [nn.Parameter(torch.ones(2))], {"lr": 0.1, **options})


@pytest.mark.parametrize(("name", "apex_class", "own", "call"), CASES)
def test_the_names_are_apexs_where_it_is_installed_and_our_own_elsewhere(name, apex_class, own, call):
    with apex_from() as apex:
        optimizer = made(name)
        assert (type(optimizer).__module__, type(optimizer).__name__) == ("apex.optimizers", apex_class)
        assert apex.calls == [call]
    assert type(made(name)) is own


@pytest.mark.parametrize(("name", "options"), [("fused_adam", {"amsgrad": True}), ("fused_novograd", {"luc": True})])
def test_an_option_that_apex_lacks_makes_it_our_own(name, options, capsys):
    with apex_from():
        assert not type(made(name, **options)).__module__.startswith("apex")
    assert f"{name}: not of apex: it has no {next(iter(options))}" in capsys.readouterr().out


def test_which_one_it_is_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(logging, "_once", set())
    made("fused_adam")
    made("fused_adam")
    assert capsys.readouterr().out.count("fused_adam: not of apex: its optimizers are for GPUs") == 1
    monkeypatch.setattr(from_apex, "_DEVICES", ("cpu",))  # what a GPU would read without it
    made("fused_adam")
    assert "fused_adam: not of apex: apex is not installed" in capsys.readouterr().out
    with apex_from():
        made("fused_sgd")
    assert "fused_sgd: apex.optimizers.FusedSGD" in capsys.readouterr().out


def test_on_a_cpu_and_without_its_extensions_apex_is_not_used(capsys, monkeypatch, tmp_path):
    with apex_from():
        monkeypatch.setattr(from_apex, "_DEVICES", ("cuda",))
        assert type(made("fused_adam")) is torch.optim.AdamW
    broken = copy_without("nothing", tmp_path / "broken")
    (broken / "apex" / "optimizers" / "__init__.py").write_text("import amp_C")
    with apex_from(broken):
        assert type(made("fused_adam")) is torch.optim.AdamW
    told = capsys.readouterr().out
    assert "fused_adam: not of apex: its optimizers are for GPUs" in told
    assert "fused_adam: not of apex: it cannot be used here (No module named 'amp_C')" in told


def test_an_optimizer_of_apex_gets_master_weights():
    net, precision = nn.Linear(1, 1), choose_precision(Optimization.mxprO2, torch.device("cpu"))
    with apex_from(), precision.prepared([net], trained=True):
        optimizer = create_optimizer("fused_adam", net.parameters(), {"lr": 0.1})
        precision.adopt([net], [optimizer])
        assert [p.dtype for p in optimizer.param_groups[0]["params"]] == [torch.float32] * 2
    assert (FOLDER / "apex" / "optimizers").is_dir()
