"""FSDP2 on two ranks: what it trains, saves and loads is what DDP and one process train, save and load."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode
from toys.device_verdict import use_device_verdict
from toys.names import forget_names
from toys.nets import BD, Mse, Points
from toys.ranks import results_of

import nemo_lite as nemo
from nemo_asr.models.jasper import JasperDecoderForCTC, JasperEncoder
from nemo_asr.models.losses import CTCLossNM
from nemo_lite.backends.pytorch.distributed.batchnorm import is_sharded, is_synced, synced_batchnorm
from nemo_lite.backends.pytorch.distributed.comm import Alone, Replica
from nemo_lite.backends.pytorch.distributed.group import DataParallel
from nemo_lite.backends.pytorch.distributed.sharding import ShardedReplica, like, load_optimizer_state, shard, whole
from nemo_lite.backends.pytorch.engine.module_state import evaluating
from nemo_lite.backends.pytorch.half_modules import float32_parts
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.nm import DataLayerNM, TrainableNM
from nemo_lite.backends.pytorch.optimizers import create_optimizer
from nemo_lite.base.errors import CheckpointError, UsageError
from nemo_lite.compat.tutorials import TaylorNet
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_module import NeuralModule, subclasses
from nemo_lite.core.neural_types import (
    AxisKind,
    AxisType,
    ChannelType,
    LabelsType,
    LengthsType,
    MelSpectrogramType,
    NeuralType,
)
from nemo_lite.core.ports import WeightShareTransform

CPU = torch.device("cpu")
NUM_FEATURES, NUM_CLASSES = 4, 5
SIZES = {"kernel": [5], "dilation": [1], "dropout": 0.0}
BLOCKS = [
    {**SIZES, "filters": 6, "repeat": 1, "stride": [2], "residual": False, "separable": True},
    {**SIZES, "filters": 6, "repeat": 2, "stride": [1], "residual": True},
    {**SIZES, "filters": 7, "repeat": 1, "stride": [1], "residual": True, "separable": True, "se": False},
]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "adam": {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True},
    "adam_w": {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True},
    "novograd": {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True, "grad_averaging": True},
    "fused_novograd": {"lr": 0.01, "luc": True},
    "lamb": {"lr": 0.01, "weight_decay": 0.01},
}


class Utterances(DataLayerNM):
    """Only its ports are used: the batches come from :func:`batch_of`."""

    output_ports = {
        "features": NeuralType(
            (AxisType(AxisKind.Batch), AxisType(AxisKind.Dimension, NUM_FEATURES), AxisType(AxisKind.Time)),
            MelSpectrogramType(),
        ),
        "length": NeuralType("B", LengthsType()),
        "transcript": NeuralType("B T", LabelsType()),
        "transcript_length": NeuralType("B", LengthsType()),
    }


class Model:
    """A small Jasper: its modules, the lowered training DAG and an evaluation DAG over the same modules."""

    def __init__(self, normalization: str = "layer", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.encoder = JasperEncoder(BLOCKS, "relu", NUM_FEATURES, normalization_mode=normalization)
        self.decoder = JasperDecoderForCTC(feat_in=7, num_classes=NUM_CLASSES)
        features, length, transcript, transcript_length = Utterances()()
        encoded, lengths = self.encoder(audio_signal=features, length=length)
        scores = self.decoder(encoder_output=encoded)
        targets = {"targets": transcript, "target_length": transcript_length}
        loss = CTCLossNM(NUM_CLASSES)(log_probs=scores, input_length=lengths, **targets)
        self.training = lower(Dag([loss]).slice())
        self.evaluation = lower(Dag([scores]).slice())

    def parameters(self) -> list[nn.Parameter]:
        return [*self.encoder.parameters(), *self.decoder.parameters()]

    def state(self) -> dict[str, Any]:
        return {"encoder": self.encoder.state_dict(), "decoder": self.decoder.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.decoder.load_state_dict(state["decoder"])


def batch_of(number: int, rows: slice) -> tuple[Tensor, ...]:
    """A part of four utterances, in the order of the data layer's ports."""
    generator = torch.Generator().manual_seed(number)
    features = torch.randn(4, NUM_FEATURES, 24, generator=generator)
    transcript = torch.randint(NUM_CLASSES, (4, 3), generator=generator)
    lengths = torch.tensor([24, 20, 24, 17]), torch.tensor([3, 2, 1, 3])
    return features[rows], lengths[0][rows], transcript[rows], lengths[1][rows]


CASES: list[tuple[Any, ...]] = [
    *((kind, normalization) for normalization in ("layer", "batch") for kind in ("FSDP2", "DDP")),
    *(("FSDP2", "layer", name, None, 3) for name in OPTIMIZERS),
    *((kind, "layer", "adam", torch.bfloat16, 2) for kind in ("FSDP2", "DDP")),
    *(("FSDP2 in half", normalization, "adam", torch.bfloat16, 2) for normalization in ("layer", "batch")),
    ("DDP", "batch", "adam", torch.bfloat16, 2),
]
RESUMED = [("novograd", "FSDP2"), ("adam", "FSDP2"), ("sgd", "DDP")]
KINDS: dict[str, Callable[[Model], Replica]] = {
    "one process": lambda model: Alone(model.training),
    "DDP": lambda model: DataParallel(model.training, CPU),
    "FSDP2": lambda model: sharded(model),
    "FSDP2 in half": lambda model: sharded(model, torch.bfloat16),
}


def sharded(model: Model, half: torch.dtype | None = None) -> Replica:
    modules = [*model.training.children()]
    wide = [part for module in modules for part in float32_parts(module, norms_too=True)]
    shard(modules, CPU, half=half, float32_parts=wide)
    return ShardedReplica(model.training)


def rows_of_rank() -> slice:
    return slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2) if dist.is_initialized() else slice(None)


def steps(replica: Replica, optimizer: torch.optim.Optimizer, num_steps: int, dtype: Any = None) -> list[float]:
    """Optimizer steps of two batches each, clipped; this rank's loss of every batch."""
    losses = []
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(num_steps):
        optimizer.zero_grad()
        for micro in range(2):
            with replica.sync_only_if(micro == 1):
                with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
                    (loss,) = replica(*batch_of(micro, rows_of_rank()))
                (loss / 2).backward()
            losses.append(loss.item())
        clip_grad_norm_(params, 1.0)
        optimizer.step()
    return losses


def evaluated(model: Model) -> Tensor:
    with evaluating([model.evaluation]), torch.no_grad():
        (scores,) = model.evaluation(*(batch_of(99, rows_of_rank())[i] for i in range(len(_inputs(model)))))
    assert isinstance(scores, Tensor)
    return scores


def _inputs(model: Model) -> list[Any]:
    return [node for node in model.evaluation.graph.nodes if node.op == "placeholder"]


def trained(
    kind: str, normalization: str = "layer", name: str = "novograd", dtype: Any = None, num_steps: int = 5
) -> dict[str, Any]:
    # A rank that is not the first starts from other weights, which must not matter.
    model = Model(normalization, seed=dist.get_rank() if dist.is_initialized() else 0)
    replica = KINDS[kind](model)
    optimizer = create_optimizer(name, model.parameters(), OPTIMIZERS[name])
    sync = synced_batchnorm([model.training], None) if dist.is_initialized() else contextlib.nullcontext()
    with sync:
        losses = steps(replica, optimizer, num_steps, dtype)
    scores = evaluated(model)
    state = {"modules": model.state(), "optimizer": optimizer.state_dict()}
    return {"losses": losses, "scores": scores, "state": whole(state) if dist.is_initialized() else state}


def everything(folder: Path) -> dict[Any, Any]:
    """What the tests below look at, in one pair of ranks: starting one takes longer than most of it."""
    dist.init_process_group("gloo")
    results: dict[Any, Any] = {case: trained(*case) for case in CASES}
    results |= {"resumed": {case: resumed(*case) for case in RESUMED}, "restored": restored(folder)}
    results |= {"described": described(), "shared": shared(), "refused": refused()}
    dist.destroy_process_group()
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("modules")
    Model(seed=1).encoder.save_to(folder / "encoder.safetensors")
    Model().decoder.save_to(folder / "decoder.safetensors")
    return results_of(2, everything, folder)


def largest_difference(got: Any, wanted: Any) -> float:
    """Over two structures of tensors and numbers, which must be alike."""
    if isinstance(wanted, Tensor):
        assert not isinstance(got, DTensor)
        assert got.shape == wanted.shape
        return float((got - wanted).abs().max()) if wanted.numel() else 0.0
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        return max((largest_difference(got[key], wanted[key]) for key in wanted), default=0.0)
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        return max((largest_difference(*pair) for pair in zip(got, wanted, strict=True)), default=0.0)
    if isinstance(wanted, float):
        return abs(float(got) - wanted)
    assert got == wanted or wanted is None or isinstance(wanted, bool)
    return 0.0


def joined(results: list[Any], *case: Any) -> dict[str, Any]:
    """The ranks' mean losses, all scores, and the state that the first has."""
    of_ranks = [result[case] for result in results]
    assert [of_rank["state"] is None for of_rank in of_ranks] == [False, True]
    losses = [sum(pair) / 2 for pair in zip(*(of_rank["losses"] for of_rank in of_ranks), strict=True)]
    scores = torch.cat([of_rank["scores"] for of_rank in of_ranks])
    return {"losses": losses, "scores": scores, "state": of_ranks[0]["state"]}


# Equality


@pytest.mark.long
@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_sharded_training_is_that_of_ddp_and_of_one_process(results: list[Any], normalization: str) -> None:
    by_fsdp, by_ddp = joined(results, "FSDP2", normalization), joined(results, "DDP", normalization)
    alone = trained("one process", normalization)
    assert alone["losses"][-2] < alone["losses"][0] - 0.01  # it learns, so that equal weights mean something
    for other in (by_ddp, alone):
        for key in ("losses", "scores"):
            assert largest_difference(by_fsdp[key], other[key]) < 1e-5, key
        assert largest_difference(by_fsdp["state"], other["state"]) < 1e-5
    fresh = Model(normalization, seed=7)
    fresh.load(by_fsdp["state"]["modules"])
    assert largest_difference(evaluated(fresh), alone["scores"]) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_on_shards_as_on_whole_weights(results: list[Any], name: str) -> None:
    together, alone = joined(results, "FSDP2", "layer", name, None, 3), trained("one process", "layer", name, None, 3)
    assert largest_difference(together["losses"], alone["losses"]) < 1e-5
    assert largest_difference(together["state"]["modules"], alone["state"]["modules"]) < 1e-5


@pytest.mark.long
def test_bfloat16_autocast_trains_shards_as_it_trains_replicas(results: list[Any]) -> None:
    by_fsdp, by_ddp = (joined(results, kind, "layer", "adam", torch.bfloat16, 2) for kind in ("FSDP2", "DDP"))
    assert by_fsdp["losses"] == pytest.approx(by_ddp["losses"], abs=1e-3)
    assert by_fsdp["losses"] != joined(results, "FSDP2", "layer", "adam", None, 3)["losses"][:4]


@pytest.mark.long
@pytest.mark.parametrize("normalization", ["layer", "batch"])
def test_weights_that_travel_in_half_train_as_replicas_under_autocast(results: list[Any], normalization: str) -> None:
    about = (normalization, "adam", torch.bfloat16, 2)
    in_half, by_ddp = (joined(results, kind, *about) for kind in ("FSDP2 in half", "DDP"))
    # On a CPU the encoder computes depthwise convolutions in the type of the weights: here in half, there in float32.
    assert in_half["losses"] == pytest.approx(by_ddp["losses"], rel=5e-3)
    # Two updates of up to 0.01 each, by Adam: where a gradient is nearly 0, rounding decides its sign.
    of_fsdp, of_ddp = (flat(each["state"]["modules"]) for each in (in_half, by_ddp))
    assert (of_fsdp - of_ddp).abs().mean() < 1e-3
    assert of_fsdp.dtype == torch.float32


def flat(state: dict[str, dict[str, Tensor]]) -> Tensor:
    return torch.cat(
        [value.flatten() for values in state.values() for value in values.values() if value.is_floating_point()]
    )


class Seen(TorchDispatchMode):
    """The types and bytes of what all-gathers and reduce-scatters send."""

    def __init__(self) -> None:
        super().__init__()
        self.gathered: Counter[torch.dtype] = Counter()
        self.reduced: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        for prefix, counted in (("_allgather_base", self.gathered), ("_reduce_scatter_base", self.reduced)):
            if name.startswith(prefix):
                counted[args[1].dtype] += args[1].numel() * args[1].element_size()
        return func(*args, **(kwargs or {}))


class Rows(nn.Module):
    """Eight blocks with a normalisation each, and a part that stays in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(8))
        )
        self.wide = Wide()

    def forward(self, x: Tensor) -> Tensor:
        """(B, 32) -> (B, 32)."""
        y: Tensor = self.wide(self.blocks(x))
        return y


class Wide(nn.Module):
    """A part of a module that says that it stays in float32."""

    keep_float32 = True

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.types = nn.Parameter(torch.full((32,), 1 / 3)), set[torch.dtype]()

    def forward(self, x: Tensor) -> Tensor:
        """x * scale."""
        self.types.add(self.scale.dtype)
        return x * self.scale


def in_half_on_a_rank(half: torch.dtype | None) -> dict[str, Any]:
    """What a forward and a backward pass send and keep, under autocast; gradients, and a call outside autocast."""
    module = Rows()
    shard([module], CPU, half=half, float32_parts=float32_parts(module, norms_too=True))
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))[4 * dist.get_rank() :][:4]
    kept: dict[int, torch.UntypedStorage] = {}

    def note(value: Tensor) -> Tensor:
        if value.dtype == torch.bfloat16 and value.numel() == 32 * 32:
            kept[value.untyped_storage().data_ptr()] = value.untyped_storage()
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda value: value)
    with hooks, Seen() as forward, torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    num_kept = sum(storage.size() for storage in kept.values())  # FSDP frees what it will gather again
    with Seen() as backward:
        y.float().square().sum().backward()
    gradients = whole({name: parameter.grad for name, parameter in module.named_parameters()})
    with torch.no_grad():
        apart = module(x).dtype
    return {
        "kept": num_kept,
        "gathered": forward.gathered,
        "reduced": backward.reduced,
        "gradients": gradients,
        "types": module.wide.types,
        "apart": apart,
        "shards": {parameter.dtype for parameter in module.parameters()},
    }


def in_half() -> list[dict[str, Any]]:
    dist.init_process_group("gloo")
    found = [in_half_on_a_rank(half) for half in (None, torch.bfloat16)]
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def by_type() -> list[dict[str, Any]]:
    """On rank 0: with weights that travel in float32, and in half."""
    found: list[dict[str, Any]] = results_of(2, in_half)[0]
    return found


def test_weights_travel_in_half_and_the_graph_keeps_no_half_copy_of_them(by_type: list[dict[str, Any]]) -> None:
    wide, narrow = by_type
    # The first block's input needs no gradient, so its weight is not kept.
    assert (wide["kept"], narrow["kept"]) == (7 * 32 * 32 * 2, 0)
    weights, norms = 8 * 33 * 32, 8 * 2 * 32 + 32
    # Of a rank: half of each.
    assert wide["gathered"] == {torch.float32: 4 * (weights + norms) // 2}
    assert narrow["gathered"] == {torch.bfloat16: 2 * weights // 2, torch.float32: 4 * norms // 2}
    assert narrow["reduced"] == wide["reduced"] == {torch.float32: 4 * (weights + norms)}
    assert narrow["shards"] == {torch.float32}


def test_parts_that_stay_in_float32_have_float32_weights_where_the_others_are_half(
    by_type: list[dict[str, Any]],
) -> None:
    assert [each["types"] for each in by_type] == [{torch.float32}] * 2


def test_gradients_of_weights_that_travel_in_half_are_those_of_autocast(by_type: list[dict[str, Any]]) -> None:
    wide, narrow = (each["gradients"] for each in by_type)
    for name, gradient in wide.items():
        assert narrow[name].dtype == torch.float32
        assert (narrow[name] - gradient).abs().max() <= 0.02 * gradient.abs().max(), name


def test_a_module_whose_weights_are_half_runs_also_outside_autocast(by_type: list[dict[str, Any]]) -> None:
    assert [each["apart"] for each in by_type] == [torch.float32, torch.float32]


# States


def resumed(name: str, into: str) -> list[float]:
    """Two steps sharded, then one more from the whole states, in new modules."""
    model = Model()
    replica, optimizer = KINDS["FSDP2"](model), create_optimizer(name, model.parameters(), OPTIMIZERS[name])
    losses = steps(replica, optimizer, 2)
    states = [whole({"modules": model.state(), "optimizer": optimizer.state_dict()})]
    dist.broadcast_object_list(states)
    model = Model(seed=5 + dist.get_rank())
    replica, optimizer = KINDS[into](model), create_optimizer(name, model.parameters(), OPTIMIZERS[name])
    model.load(states[0]["modules"])
    load_optimizer_state(optimizer, states[0]["optimizer"])
    return losses + steps(replica, optimizer, 1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "into"), RESUMED)
def test_a_run_goes_on_from_whole_states_sharded_or_not(results: list[Any], name: str, into: str) -> None:
    losses = [sum(pair) / 2 for pair in zip(*(result["resumed"][name, into] for result in results), strict=True)]
    assert largest_difference(losses, trained("one process", "layer", name, None, 3)["losses"]) < 1e-5


def restored(folder: Path) -> tuple[list[str], Any]:
    model = Model(seed=3)
    shard([model.encoder, model.decoder], CPU)
    model.encoder.restore_from(folder / "encoder.safetensors")
    state = whole(model.encoder.state_dict())
    with pytest.raises(CheckpointError) as of_another:
        model.encoder.restore_from(folder / "decoder.safetensors")
    optimizer = create_optimizer("adam", model.encoder.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match="size") as of_optimizer:
        load_optimizer_state(optimizer, {"state": {}, "param_groups": [{"params": [0, 1]}]})
    return [str(of_another.value), str(of_optimizer.value)], state


@pytest.mark.long
def test_files_of_whole_modules_are_restored_and_others_refused_as_ever(results: list[Any]) -> None:
    assert largest_difference(results[0]["restored"][1], Model(seed=1).encoder.state_dict()) == 0.0
    for result in results:
        of_another, of_optimizer = result["restored"][0]
        assert "belongs to JasperEncoder" in of_another
        assert "doesn't match the size of optimizer's group" in of_optimizer


# What sharding does to modules


def described() -> dict[str, Any]:
    model = Model()
    model.encoder.register_buffer("is_first", torch.tensor([dist.get_rank() == 0]))
    before = model.encoder.serialize(), repr(model.encoder), model.encoder.name, list(model.encoder.state_dict())
    optimizer = create_optimizer("sgd", model.parameters(), {"lr": 0.1})
    replica = KINDS["FSDP2"](model)
    shard([model.encoder], CPU)  # sharded already: nothing happens
    blocks: list[Any] = list(model.encoder.encoder)
    seen: list[list[bool]] = []
    for block in blocks:
        block.mconv[0].register_forward_hook(lambda *_: seen.append([is_whole(each) for each in blocks]))
    steps(replica, create_optimizer("sgd", model.parameters(), {"lr": 0.1}), 1)
    evaluated(model)
    features, length, *_ = Utterances()()
    encoded = model.encoder(audio_signal=features, length=length)
    weight = model.encoder.get_parameter("encoder.1.mconv.0.conv.weight")
    assert isinstance(weight, DTensor)
    assert isinstance(weight.grad, DTensor)
    return {
        "unchanged": before
        == (model.encoder.serialize(), repr(model.encoder), model.encoder.name, list(model.encoder.state_dict())),
        "class": (type(model.encoder).__name__, type(model.encoder).__qualname__),
        "is an encoder": isinstance(model.encoder, JasperEncoder),
        "output": type(encoded).__name__,
        "classes": [cls for cls in subclasses(NeuralModule) if cls.__name__ == "JasperEncoder"] == [JasperEncoder],
        "whole while each runs": seen[:3],
        "whole afterwards": [is_whole(each) for each in (*blocks, model.decoder)],
        "elements": (weight.to_local().numel(), weight.grad.to_local().numel(), weight.numel()),
        "num_weights": model.encoder.num_weights,
        "buffer": bool(model.encoder.get_buffer("is_first")),
        "old parameters": {*optimizer.param_groups[0]["params"]} & {*model.parameters()},
        "is_sharded": (is_sharded([model.evaluation]), is_sharded([Model().evaluation])),
    }


def is_whole(block: nn.Module) -> bool:
    kinds = {isinstance(parameter, DTensor) for parameter in block.parameters()}
    assert len(kinds) == 1
    return not kinds.pop()


@pytest.mark.long
def test_a_sharded_module_is_what_it_was_and_one_block_at_a_time_is_whole(results: list[Any]) -> None:
    for result in (each["described"] for each in results):
        assert result["unchanged"]
        assert result["class"] == ("JasperEncoder", "JasperEncoder")
        assert result["is an encoder"]
        assert result["output"] == "JasperEncoderOutput"
        assert result["classes"]
        assert result["whole while each runs"] == [[True, False, False], [False, True, False], [False, False, True]]
        assert result["whole afterwards"] == [False] * 4
        assert result["elements"] == (6 * 6 * 5 // 2, 6 * 6 * 5 // 2, 6 * 6 * 5)
        assert result["num_weights"] == Model().encoder.num_weights
        assert result["buffer"]
        assert result["old parameters"] == set()
        assert result["is_sharded"] == (True, False)


# What is sharded, what stays whole, what is refused


class Pair(TrainableNM):
    """Blocks that share a weight among themselves, one that runs twice, and a normalisation between them."""

    input_ports = {"x": NeuralType("B D", ChannelType())}
    output_ports = {"y": NeuralType("B D", ChannelType())}

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        first, second, twice = (nn.Linear(3, 3) for _ in range(3))
        second.weight = first.weight
        twice.weight = nn.Parameter(twice.weight.detach().t())  # not contiguous
        self.layers = nn.Sequential(first, second, twice, nn.BatchNorm1d(3), twice, nn.Linear(3, 3), nn.Linear(3, 3))
        self.inner = inner
        self.frozen = nn.ModuleList([nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])])

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 3)."""
        for layer in (*self.layers, *self.frozen[0]):  # type: ignore[misc]  # a list of lists
            x = layer(x)
        return x


def shared() -> tuple[list[bool], Any]:
    torch.manual_seed(dist.get_rank())
    module, x = Pair(), torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    rows = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    with synced_batchnorm([module], None):
        shard([module], CPU)
        module.layers[5].requires_grad_(False)
        (module(x[rows]).square().mean() + module(2 * x[rows]).square().mean()).backward()
    kinds = [type(layer).__mro__[1].__name__ == "FSDPModule" for layer in module.layers]
    return kinds, whole({name: p.grad for name, p in module.named_parameters() if p.grad is not None})


@pytest.mark.long
def test_shared_weights_stay_together_and_what_runs_twice_has_both_gradients(results: list[Any]) -> None:
    torch.manual_seed(0)
    module, x = Pair(), torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    module.layers[5].requires_grad_(False)
    (module(x).square().mean() + module(2 * x).square().mean()).backward()
    wanted = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert results[0]["shared"][0] == [False, False, False, False, False, True, True]
    got = results[0]["shared"][1]
    assert got.keys() == wanted.keys()
    assert all(torch.allclose(got[name], gradient, atol=1e-6) for name, gradient in wanted.items())


def refused() -> list[str]:
    tied, transposed, scalar = TaylorNet(2), Pair(), TaylorNet(2)
    tied.tie_weights_with(other := TaylorNet(2), ["fc1.weight"])
    names = {"layers.6.weight": ("layers.5.weight", WeightShareTransform.TRANSPOSE)}
    transposed.tie_weights_with(Pair(), ["layers.6.weight"], names)
    scalar.scale = nn.Parameter(torch.ones(()))
    messages = []
    for modules in ([other, tied], [transposed], [scalar], [inner := TaylorNet(2), Pair(inner)]):
        with pytest.raises(UsageError) as caught:
            shard(modules, CPU)
        messages.append(str(caught.value))
    assert not is_sharded([tied, other, transposed, scalar])
    return messages


@pytest.mark.long
def test_weights_that_cannot_be_divided_are_refused_by_name(results: list[Any]) -> None:
    problem = "weights that modules share cannot be sharded: got the same as"
    remedy = "train without FSDP2, or do not tie them"
    for result in results:
        assert result["refused"] == [
            f"TaylorNet.fc1.weight: {problem} TaylorNet.fc1.weight; {remedy}",
            f"Pair.layers.6.weight: {problem} another one; {remedy}",
            "TaylorNet.scale: a weight without dimensions cannot be sharded; give it the shape (1,)",
            f"Pair.inner.fc1.weight: {problem} TaylorNet.fc1.weight; {remedy}",
        ]


def test_a_tensor_that_is_whole_or_of_another_shape_stays_itself() -> None:
    tensor = torch.zeros(2)
    assert like(tensor, torch.ones(2)) is tensor
    assert like(tensor, None) is tensor


# Behind shard_weights: the same script, results and checkpoints as with whole weights on every rank


class Deep(nemo.TrainableNM):
    """Blocks in a row, as encoders have them."""

    input_ports = {"x": BD}
    output_ports = {"out": BD}

    def __init__(self, name=None):
        super().__init__(name=name)
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)))
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.blocks(x))


def train(folder, sharded, max_steps, optimizer, resume=False):
    """Losses, the values of an evaluation over uneven batches, the names of the files saved, and the weights."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, shard_weights=sharded)
    net = Deep(name="net")
    x, y = Points(n=18, batch_size=2, shuffle=True)()
    loss = Mse()(out=net(x=x), target=y)
    held_out, _ = Points(n=5, batch_size=2)()
    seen, losses = [], []
    callbacks = [
        nemo.CheckpointCallback(folder, step_freq=3, force_load=resume),
        nemo.SimpleLossLoggerCallback([loss], lambda values: losses.append(float(values[0])), step_freq=1),
        nemo.EvaluatorCallback(
            [net(x=held_out)], lambda values, _: seen.extend(next(iter(values.values()))), lambda _: None, eval_step=3
        ),
    ]
    params = {"lr": 0.05, "max_steps": max_steps, "grad_norm_clip": 1.0}
    factory.train([loss], callbacks=callbacks, optimizer=optimizer, optimization_params=params, batches_per_step=2)
    evaluated = torch.cat(seen).flatten().tolist() if seen else []
    values = factory.infer([net(x=held_out)], checkpoint_dir=folder)
    inferred = None if values is None else torch.cat(values[0]).flatten().tolist()
    return losses, evaluated, inferred


class WeightedMse(Mse):
    """A loss with a weight of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def _loss_function(self, out, target):
        return (self.scale * (out - target)).square().mean()


def with_a_weighted_loss(sharded):
    """Losses by the verdict of a CPU and by that of accelerators, which guards the updates of shards."""
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, shard_weights=sharded)
    by_verdict = []
    for verdict in ("host", "device"):
        if verdict == "device":
            use_device_verdict(pytest.MonkeyPatch())
        forget_names()
        net, mse = Deep(name="net"), WeightedMse()
        x, y = Points(n=16, batch_size=2)()
        loss, losses = mse(out=net(x=x), target=y), []
        optimizer = factory.create_optimizer("adam", [net, mse], {"lr": 0.05})
        logger = nemo.SimpleLossLoggerCallback([loss], lambda v, to=losses: to.append(float(v[0])), step_freq=1)
        factory.train([(optimizer, [loss])], callbacks=[logger], optimization_params={"max_steps": 6})
        by_verdict.append(losses)
    return by_verdict


@pytest.mark.long
def test_losses_with_weights_and_optimizers_made_before_train_go_with_sharding():
    whole, sharded = (results_of(2, with_a_weighted_loss, sharded)[0] for sharded in (False, True))
    assert sharded[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-5)
    assert (whole[1], sharded[1]) == (whole[0], sharded[0])


class NormedAtO1(Deep):
    """Notes the types of its weights while it runs."""

    def __init__(self):
        super().__init__()
        self.norm, self.types = nn.BatchNorm1d(3), []

    def forward(self, x):
        self.types.append((self.last.weight.dtype, self.norm.weight.dtype))
        return self.last(self.blocks(self.norm(x)))


class NotedMse(WeightedMse):
    def __init__(self):
        super().__init__()
        self.types = []

    def _loss_function(self, out, target):
        self.types.append((self.scale.dtype, out.dtype))
        return super()._loss_function(out, target)


def at_o1(sharded):
    """Losses at O1 with synchronised statistics, what is inferred afterwards, and the types of weights in use."""
    settings = {"optimization_level": "O1", "amp_dtype": "bfloat16", "shard_weights": sharded}
    factory = nemo.NeuralModuleFactory(placement=nemo.DeviceType.CPU, random_seed=5, **settings)
    net, mse = NormedAtO1(), NotedMse()
    x, y = Points(n=16, batch_size=2)()
    loss, losses = mse(out=net(x=x), target=y), []
    logger = nemo.SimpleLossLoggerCallback([loss], lambda values: losses.append(float(values[0])), step_freq=1)
    params = {"lr": 0.05, "max_steps": 6}
    factory.train([loss], callbacks=[logger], optimizer="adam", optimization_params=params, synced_batchnorm=True)
    held_out, _ = Points(n=5, batch_size=2)()
    values = factory.infer([net(x=held_out)])
    inferred = None if values is None else torch.cat(values[0]).flatten().tolist()
    return losses, inferred, {str(types) for types in (*net.types, *mse.types)}, is_synced(net.norm)


@pytest.mark.long
def test_at_o1_sharded_weights_are_half_where_autocast_would_cast_them_and_losses_stay_in_float32():
    (losses, inferred, _, _), _ = results_of(2, at_o1, False)
    (sharded_losses, sharded_inferred, types, stays_synced), _ = results_of(2, at_o1, True)
    assert sharded_losses == pytest.approx(losses, rel=0.02, abs=2e-3)
    assert sharded_inferred == pytest.approx(inferred, rel=0.02, abs=0.02)
    half, wide = torch.bfloat16, torch.float32
    assert types == {str((half, wide)), str((wide, wide))}, (
        "of the net and its normalisation, of the loss and its input"
    )
    assert not stays_synced


def weights_in(folder):
    net = Deep()
    net.restore_from(sorted(folder.glob("*/net-STEP-*.safetensors"))[-1])
    return nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.parametrize(
    "optimizer", [*(pytest.param(name, marks=pytest.mark.long) for name in ("sgd", "adam")), "novograd"]
)
def test_sharded_and_whole_weights_train_evaluate_and_save_the_same(tmp_path, optimizer):
    (whole, _), (sharded, other) = (
        results_of(2, train, tmp_path / name, name == "sharded", 6, optimizer) for name in ("whole", "sharded")
    )
    for mine, theirs in zip(sharded, whole, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert other[1:] == ([], None)
    torch.testing.assert_close(weights_in(tmp_path / "sharded"), weights_in(tmp_path / "whole"), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_run_goes_on_with_sharded_weights_and_back_from_its_checkpoints(tmp_path):
    straight = results_of(2, train, tmp_path / "straight", False, 9, "adam")[0]
    parts = [
        loss
        for steps, sharded in ((3, False), (6, True), (9, False))
        for loss in results_of(2, train, tmp_path / "parts", sharded, steps, "adam", steps > 3)[0][0]
    ]
    assert parts == pytest.approx(straight[0], rel=1e-4, abs=1e-5)
