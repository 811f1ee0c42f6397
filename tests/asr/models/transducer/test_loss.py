"""The losses of transducers: golden values, brute force, reductions over micro-batches and ranks, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from toys.host_reads import HostReads
from toys.lattice_paths import losses_by_paths
from toys.nets import train
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_asr.models.losses import CTCLossNM
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.lattice import Durations
from nemo_asr.models.transducer.loss import RNNTLoss
from nemo_lite.backends.pytorch.generators import generator_states, set_generator_states
from nemo_lite.base.errors import UsageError
from nemo_lite.core import Reference
from nemo_lite.core.run_options import CompileOptions

REDUCTIONS = ("mean_batch", "mean", "mean_volume", "sum")


def joint_of(num_classes=4, dropout=0.0, **durations):
    sizes = {"joint_hidden": 6, "pred_hidden": 5, "encoder_hidden": 5}
    return RNNTJoint({**sizes, "activation": "tanh", "dropout": dropout}, num_classes, **durations)


def of_logits(logits, **of_joint):
    """A joint that gives these logits (B, T, U + 1, K), and what it is given: each node has a unit of its own."""
    num_items, num_frames, num_columns, num_outputs = logits.shape
    joint = joint_of(num_outputs - 1 - sum(map(len, of_joint.values())), **of_joint)
    joint.enc = joint.pred = nn.Identity()
    joint.joint_net = nn.Sequential(nn.ReLU(), nn.Linear(num_items * num_frames * num_columns, num_outputs))
    joint.to(logits.dtype)
    with torch.no_grad():
        joint.joint_net[1].weight.copy_(logits.flatten(0, 2).T)
        joint.joint_net[1].bias.zero_()
    item, frame, column = torch.cartesian_prod(*map(torch.arange, logits.shape[:3])).T
    own = torch.arange(num_items)[:, None, None] == item
    encoded = (own & (torch.arange(num_frames)[:, None] == frame)).to(logits.dtype) - 0.5
    states = (own & (torch.arange(num_columns)[:, None] == column)).to(logits.dtype) - 0.5
    return joint, encoded.transpose(1, 2), states


def split(kwargs):
    """The arguments of the joint, and those of the loss."""
    of_joint = {name: value for name, value in kwargs.items() if "durations" in name}
    return of_joint, {name: value for name, value in kwargs.items() if name not in of_joint}


def losses_and_gradient(logits, labels, num_frames, num_labels, **kwargs):
    """The losses of the items (B,), and the gradient of their sum by the logits."""
    of_joint, of_loss = split(kwargs)
    joint, encoded, states = of_logits(logits, **of_joint)
    loss = RNNTLoss(Reference(joint), reduction="sum", **of_loss)
    loss.item_losses = []
    loss(encoded=encoded, states=states, labels=labels, num_frames=num_frames, num_labels=num_labels).backward()
    return loss.item_losses[0].losses, joint.joint_net[-1].weight.grad.T.unflatten(0, logits.shape[:3])


def golden_logits(num_outputs):
    shape = 2, 6, 4, num_outputs
    place = torch.arange(math.prod(shape), dtype=torch.float64)
    return (2 * torch.sin(0.37 * place + 0.11 * place * place / len(place))).reshape(shape)


ZERO_TO_FOUR, ONE_OR_TWO = {"durations": [0, 1, 2, 3, 4]}, {"durations": [1, 2]}
BLANKS = {"big_blank_durations": [2, 4], "sigma": 0.05}


@pytest.mark.parametrize(
    ("num_outputs", "kwargs", "losses", "gradients"),
    [
        (5, {}, (10.915491, 6.253700), 17.827547),
        (5, {"fastemit_lambda": 0.01}, (10.915491, 6.253700), 17.889662),
        (5, {"fastemit_lambda": 0.5}, (10.915491, 6.253700), 20.988014),
        (10, ZERO_TO_FOUR, (9.386757, 8.962825), 18.287128),
        (10, {**ZERO_TO_FOUR, "sigma": 0.05}, (9.598546, 9.121445), 18.266276),
        (7, ONE_OR_TWO, (6.765558, 8.488086), 15.612597),
        (7, {**ONE_OR_TWO, "sigma": 0.05}, (6.983317, 8.639346), 15.604645),
        (6, BLANKS, (7.955186, 4.160116), 11.900233),
    ],
)
def test_golden_values_of_other_toolkits_and_of_all_paths(num_outputs, kwargs, losses, gradients):
    labels = torch.tensor([[1, 2, 2], [0, 1, 0] if kwargs is BLANKS else [3, 0, 0]])
    lengths = torch.tensor([6, 4]), torch.tensor([3, 2])
    found, gradient = losses_and_gradient(golden_logits(num_outputs), labels, *lengths, **kwargs)
    assert found.tolist() == pytest.approx(losses, abs=1e-6)
    # With FastEmit the sum is that of a toolkit that computes in float32.
    within = 2e-5 if "fastemit_lambda" in kwargs else 1e-6
    assert float(gradient.abs().sum()) == pytest.approx(gradients, abs=within)


@pytest.mark.parametrize("durations", [None, [0, 1, 2, 3, 4], [0, 1], [1, 2], [0, 1, 3, 8]], ids=str)
@pytest.mark.parametrize("sigma", [0.0, 0.05])
@pytest.mark.parametrize("fastemit", [0.0, 0.3])
def test_losses_and_gradients_are_those_of_all_paths_one_by_one(durations, sigma, fastemit):
    torch.manual_seed(1)
    num_frames, num_labels, labels = torch.tensor([5, 3, 4]), torch.tensor([3, 1, 2]), torch.randint(0, 4, (3, 3))
    logits = torch.randn(3, 5, 4, 5 + len(durations or ()), dtype=torch.float64, requires_grad=True)
    kwargs = {} if durations is None else {"durations": durations, "sigma": sigma}
    found, gradient = losses_and_gradient(
        logits.detach(), labels, num_frames, num_labels, fastemit_lambda=fastemit, **kwargs
    )

    tokens, of_durations = logits[..., :5].log_softmax(-1), logits[..., 5:].log_softmax(-1)
    tokens = tokens if durations is None else tokens - sigma
    columns = F.pad(labels, (0, 1))[:, None, :, None].expand(-1, 5, -1, -1)
    blank, label = tokens[..., 4:5], tokens.gather(-1, columns)
    label = (1 + fastemit) * label - fastemit * label.detach()
    kind = Durations((1,), (0,))
    if durations is not None:
        blank, label, kind = blank + of_durations, label + of_durations, Durations(durations, durations)
    wanted = losses_by_paths(blank, label, num_frames, num_labels, kind)
    (expected,) = torch.autograd.grad(wanted.sum(), logits)
    torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-9)


def test_clamp_bounds_the_gradient_of_each_item_by_its_logits():
    labels, lengths = torch.tensor([[1, 2, 2], [3, 0, 0]]), (torch.tensor([6, 4]), torch.tensor([3, 2]))
    _, free = losses_and_gradient(golden_logits(5), labels, *lengths)
    _, clamped = losses_and_gradient(golden_logits(5), labels, *lengths, clamp=0.1)
    assert free.abs().max() > 0.1
    torch.testing.assert_close(clamped, free.clamp(-0.1, 0.1))


def values(num_items=4, num_classes=4, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "encoded": torch.randn(num_items, 5, 6, generator=generator, dtype=dtype),
        "states": torch.randn(num_items, 4, 5, generator=generator, dtype=dtype),
        "labels": torch.randint(0, num_classes, (num_items, 3), generator=generator),
        "num_frames": torch.tensor([6, 4, 5, 6])[:num_items],
        "num_labels": torch.tensor([3, 1, 2, 2])[:num_items],
    }


def made(dropout=0.0, **kwargs):
    torch.manual_seed(3)
    of_joint, of_loss = split(kwargs)
    joint = joint_of(dropout=dropout, **of_joint)
    return joint, RNNTLoss(Reference(joint), **of_loss)


def test_the_four_reductions():
    told = made(reduction="sum")[1]
    told.item_losses = []
    total = told(**values())
    losses, lengths = told.item_losses[0].losses, values()["num_labels"]
    expected = {
        "sum": losses.sum(),
        "mean_batch": losses.mean(),
        "mean": (losses / lengths).mean(),
        "mean_volume": losses.sum() / lengths.sum(),
    }
    assert torch.equal(total, expected["sum"])
    for reduction, wanted in expected.items():
        loss = made(reduction=reduction)[1]
        for training in (True, False):
            loss.train(training)
            torch.testing.assert_close(loss(**values()), wanted)


def test_an_item_without_a_path_is_left_out_of_each_reduction():
    kept = torch.tensor([0, 2, 3])
    for reduction in REDUCTIONS:
        given = values()
        given["num_frames"][1], given["num_labels"][1] = 3, 3
        joint, loss = made(reduction=reduction, **ONE_OR_TWO)
        found = loss(**given)
        found.backward()
        gradients = [weight.grad.clone() for weight in joint.parameters()]
        joint.zero_grad()
        wanted = loss(**{name: value[kept] for name, value in given.items()})
        wanted.backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(gradients, [weight.grad for weight in joint.parameters()])
        assert loss.eval()(**given) == math.inf


def test_frames_that_a_text_needs():
    assert made()[1].frames_needed([1, 1, 2]) == 1
    assert made(**ZERO_TO_FOUR)[1].frames_needed([1, 1, 2]) == 1
    assert made(**ONE_OR_TWO)[1].frames_needed([1, 1, 2]) == 4


def test_omega_takes_the_plain_loss_by_draws_that_do_not_depend_on_other_generators():
    joint, loss = made(**ZERO_TO_FOUR, omega=0.4)
    drawn = []
    for seed in range(20):
        torch.manual_seed(seed)  # as ranks have seeds of their own
        drawn.append(float(loss(**values()).detach()))
    again = made(**ZERO_TO_FOUR, omega=0.4)[1]
    assert [float(again(**values()).detach()) for _ in range(20)] == drawn
    timed = float(loss.eval()(**values()).detach())
    # The plain loss is RNNT's over the tokens alone.
    tokens = joint_of()
    tokens.enc, tokens.pred = joint.enc, joint.pred
    tokens.joint_net[-1].weight = nn.Parameter(joint.joint_net[-1].weight[:5])
    tokens.joint_net[-1].bias = nn.Parameter(joint.joint_net[-1].bias[:5])
    plain = float(RNNTLoss(Reference(tokens))(**values()).detach())
    is_plain = [value == pytest.approx(plain) for value in drawn]
    assert 3 <= sum(is_plain) <= 13
    assert [value for value, skip in zip(drawn, is_plain, strict=True) if not skip] == pytest.approx(
        [timed] * (20 - sum(is_plain))
    )


def test_the_state_of_the_draws_of_omega_is_part_of_a_checkpoint():
    loss = made(**ZERO_TO_FOUR, omega=0.5)[1]
    states = generator_states(torch.device("cpu"), {"loss": loss})
    first = [float(loss(**values()).detach()) for _ in range(8)]
    set_generator_states(states, torch.device("cpu"), {"loss": loss})
    assert [float(loss(**values()).detach()) for _ in range(8)] == first
    assert len({*first}) == 2


@pytest.mark.parametrize(
    ("kwargs", "got"),
    [
        ({"durations": [2, 4]}, r"\[2, 4\]"),
        ({"durations": [1, 1]}, r"\[1, 1\]"),
        ({"big_blank_durations": [2, 2]}, r"\[2, 2\]"),
    ],
)
def test_durations_without_1_and_equal_ones_are_refused(kwargs, got):
    with pytest.raises(
        UsageError, match=rf"^rnnt_joint: no loss has these durations: got {got}, wanted .* 1 among them"
    ):
        made(**kwargs)


@pytest.mark.parametrize(
    "kwargs", [{}, {**ZERO_TO_FOUR, "sigma": 0.1, "omega": 0.5}, {**BLANKS, "clamp": 1.0}], ids=str
)
def test_it_runs_on_the_meta_device_and_reads_nothing(kwargs):
    joint, loss = made(dropout=0.1, **kwargs)
    joint.to("meta")
    given = {name: value.to("meta") for name, value in values().items()}
    with HostReads() as reads:
        loss(**given).backward()
    assert reads.found == []
    assert all(weight.grad.is_meta for weight in joint.parameters())


def test_under_autocast_the_joint_is_in_bfloat16_and_the_rest_in_float32():
    joint, loss = made(**ZERO_TO_FOUR)
    types = []
    joint.joint_net[0].register_forward_hook(lambda module, given, out: types.append(out.dtype))
    wanted = loss(**values())
    wanted.backward()
    gradients = [weight.grad.clone() for weight in joint.parameters()]
    joint.zero_grad()
    types.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(**values())
    found.backward()
    assert {*types} == {torch.bfloat16}
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=5e-3, atol=0)
    for weight, gradient in zip(joint.parameters(), gradients, strict=True):
        assert weight.grad.dtype == torch.float32
        torch.testing.assert_close(weight.grad, gradient, rtol=0.05, atol=0.02)


class Encoded(nemo.DataLayerNM):
    """16 utterances, already encoded; of two the labels need more frames than there are."""

    output_ports = made()[1].input_ports

    def __init__(self, batch_size=4):
        super().__init__()
        self.label, self.batch_size = "encoded", batch_size

    def __len__(self):
        return 16

    @property
    def dataset(self):
        parts = [values(seed=seed) for seed in range(4)]
        columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        columns["num_frames"][[3, 8]] = 2
        return torch.utils.data.TensorDataset(*columns.values())


def new_factory(**kwargs):
    return nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, **kwargs)


def weights_after(factory, batch_size=4, reduction="mean_batch", **kwargs):
    joint, loss = made(reduction=reduction, **ONE_OR_TWO)
    train(factory, [loss(*Encoded(batch_size)())], params={"num_epochs": 1}, lr=0.02, **kwargs)
    weights = joint.state_dict().values()
    whole = [weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in weights]
    return [value for weight in whole for value in weight.flatten().tolist()]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_micro_batches_and_ranks_train_as_one_batch(reduction, capsys):
    expected = weights_after(new_factory(), batch_size=8, reduction=reduction)
    reason = CTCLossNM.when_infinite  # in the same words: a hybrid model has both losses, and says it once
    assert f"encoded[8]: its loss is infinite ({reason})" in capsys.readouterr().err
    found = weights_after(new_factory(), reduction=reduction, batches_per_step=2)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert expected != pytest.approx(made(**ONE_OR_TWO)[0].joint_net[-1].bias.tolist(), rel=1e-3)


def _on_ranks(shard_weights):
    factory = new_factory(shard_weights=shard_weights)
    return [weights_after(factory, reduction=reduction) for reduction in REDUCTIONS]


@pytest.mark.slow
@pytest.mark.parametrize("shard_weights", [False, True])
def test_the_gradients_of_two_ranks_are_exchanged(shard_weights):
    first, second = results_of(2, _on_ranks, shard_weights)
    assert first == second
    for reduction, found in zip(REDUCTIONS, first, strict=True):
        assert found == pytest.approx(
            weights_after(new_factory(), batch_size=8, reduction=reduction), rel=1e-5, abs=1e-6
        )


@pytest.mark.long
def test_torch_compile_leaves_the_loss_as_it_is():
    expected = weights_after(new_factory())
    found = weights_after(new_factory(), compile=CompileOptions("eager"))
    assert found == pytest.approx(expected, rel=1e-5)
