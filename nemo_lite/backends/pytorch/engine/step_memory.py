"""Memory that a training step takes, counted without computing it: shapes are known, values are not.

Forward and backward pass run on torch's fake tensors, which have a shape, a type and a lifetime, and no memory. So each
tensor that a step holds is counted from where it is made to where the last reader lets it go. Integers stay real:
lengths decide on paths.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nemo_lite.backends.pytorch.engine.module_state import evaluating, left_as_they_are, modules_of, set_training
from nemo_lite.backends.pytorch.lowering import lower
from nemo_lite.backends.pytorch.optimizers import create_optimizer
from nemo_lite.backends.pytorch.placement import NUM_KERNELS
from nemo_lite.backends.pytorch.precision import Precision
from nemo_lite.core.dag import Dag
from nemo_lite.core.neural_types import NmTensor, Value

# Any: torch's operators take and give any values.

aten = torch.ops.aten
_FACTORIES = (aten.empty.memory_format, aten.zeros.default, aten.ones.default, aten.rand.default, aten.randn.default)
_CTC = (aten._ctc_loss.Tensor, aten._ctc_loss.default)
_CTC_BACKWARD = (aten._ctc_loss_backward.Tensor, aten._ctc_loss_backward.default)
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
# What a kernel for a bfloat16 product of one shape keeps. Measured (torch 2.13, AVX-512): 1.1 to 3.7 MiB of address
# space; in six models 1.5 on average.
_OF_PRODUCT = 3 << 19
_LSTM, _LSTM_BACKWARD = aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default


class StepMemory(NamedTuple):
    """Bytes of tensors in a training step.

    Attributes:
        weights: parameters and buffers, in float32 as files have them.
        gradients: of the parameters that are trained, and of their master weights. They live until the next step.
        optimizer: what the optimizer keeps for them, and the moving average of the weights where there is one.
        passes: the most that forward and backward pass hold beside: the batch, what the backward pass needs,
            gradients, intermediate values.
        update: the most that the optimizer's step holds beside: gradients, intermediate values.
        kernels: what a CPU keeps beside tensors for matrix products in bfloat16, of each shape a kernel.
    """

    weights: int
    gradients: int
    optimizer: int
    passes: int
    update: int
    kernels: int

    @property
    def kept(self) -> int:
        """What a checkpoint holds too: weights and what the optimizer keeps."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> int:
        """The most that is held at once."""
        return self.kept + max(self.passes, self.update)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that live. Floating values that operators make without an input become fake.

    Args:
        fake: makes these.

    Attributes:
        now, peak: bytes.
        products: the shapes of matrix products in bfloat16.
        picks_rows: whether values decide on some sizes, so that products may have any number of shapes.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.products: set[object] = set()
        self.picks_rows = False
        self._fake = fake
        self._living: dict[int, Any] = {}

    def count(self, values: object) -> None:
        """Count the tensors among these values, each memory once, from now on while it lives."""
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._living:
            return

        def let_go(_: object) -> None:
            self.now -= size
            del self._living[key]

        self._living[key] = weakref.ref(storage, let_go)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        is_fake = any(isinstance(value, FakeTensor) for value in tree_leaves((args, kwargs)))
        if is_fake and func in _CTC:  # it has no form without values
            log_probs, targets = args[:2]
            num_frames, num_items, _ = log_probs.shape
            out: Any = (
                log_probs.new_empty(num_items),
                log_probs.new_empty(num_items, num_frames, 2 * targets.shape[-1] + 1),
            )
        elif is_fake and func in _CTC_BACKWARD:
            out = torch.empty_like(args[1])
        elif is_fake and func is aten.nonzero.default:  # as many as there can be
            out = torch.zeros(args[0].numel(), args[0].dim(), dtype=torch.int64)
            self.picks_rows = True
        elif is_fake and func is _LSTM:
            # What oneDNN keeps for the backward pass, which torch's fake operator leaves out: for each label and unit
            # four gates, and states and gradients of two layers. Measured (torch 2.13): 15.1 to 15.6 values.
            hiddens, hidden, cell, nothing = func(*args, **kwargs)
            is_training = args[-1]
            out = hiddens, hidden, cell, hiddens.new_empty(15 * hiddens.numel()) if is_training else nothing
        elif is_fake and func is _LSTM_BACKWARD:
            # Measured: the weights in another order, and the gates and their gradients.
            inside = [torch.empty_like(weight) for weight in args[1:3]] + [args[7].new_empty(8 * args[7].numel())]
            out = func(*args, **kwargs)
            self.count([out, inside])
        elif func in _FACTORIES and (kwargs.get("dtype") or torch.get_default_dtype()).is_floating_point:
            with self._fake:
                out = func(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        if func in _PRODUCTS and out.dtype is torch.bfloat16:
            self.products.add(tuple((each.shape, each.stride()) for each in args if isinstance(each, Tensor)))
        self.count(out)
        return out


def step_memory(
    losses: Sequence[NmTensor],
    batch: Sequence[Value],
    precision: Precision,
    optimizer: str,
    optimizer_params: Mapping[str, object],
    batches_per_step: int = 1,
) -> StepMemory:
    """Count the memory of a training step on a batch of these sizes. The modules stay as they are.

    Kernels are chosen as on a CPU. What they take inside is not counted, but for LSTMs and products in bfloat16, nor
    what an allocator keeps, nor copies that several processes make of gradients.

    Args:
        losses: the wires that are minimised.
        batch: values of the data layer's ports; of floating ones only the shapes are used.
        precision: of the run, on the CPU.
        optimizer: its name.
        optimizer_params: its options, and ``ema_decay``.
        batches_per_step: micro-batches of a step: behind the first, the gradients so far are there.

    Raises:
        RuntimeError: an operation on the way to the losses needs values.
    """
    with _counting(losses, batch, precision, training=True) as (run, live, parameters, weights), torch.enable_grad():
        for _ in range(min(batches_per_step, 2)):  # the second one beside the gradients of the first
            total = torch.stack([loss.reshape(()) for loss in run()]).sum()
            total.backward()
            del total
        passes = live.peak - weights
        shapes = NUM_KERNELS if live.picks_rows and live.products else min(len(live.products), NUM_KERNELS)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        masters = precision.masters_of(trained)  # in the types of the run: halves in O3
        state, update = _optimizer_memory(masters, optimizer, optimizer_params)
        gradients = sum(weight.nbytes for weight in dict.fromkeys([*trained, *masters]))
        update += sum(half.nbytes for half, master in zip(trained, masters, strict=True) if half is not master)
    if optimizer_params.get("ema_decay") is not None:
        state += 4 * sum(parameter.numel() for parameter in parameters)
    return StepMemory(weights, gradients, state, passes, gradients + update, shapes * _OF_PRODUCT)


def evaluation_memory(wires: Sequence[NmTensor], batch: Sequence[Value], precision: Precision) -> int:
    """The most that an evaluation holds beside weights: as :func:`step_memory`, whose arguments these are."""
    with _counting(wires, batch, precision, training=False) as (run, live, _, weights), torch.no_grad():
        run()
        return live.peak - weights


@contextmanager
def _counting(
    wires: Sequence[NmTensor], batch: Sequence[Value], precision: Precision, training: bool
) -> Iterator[tuple[Callable[[], Sequence[Tensor]], _LiveBytes, list[nn.Parameter], int]]:
    """Inside, weights and the batch are fake, and what lives is counted.

    Yields:
        what computes the wires, the count, the parameters, and the bytes of weights.
    """
    dag = Dag(wires)
    modules = modules_of(dag)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    live = _LiveBytes(fake)
    module = lower(dag.slice(list(wires)), "CountedDag")
    was_training = {each: each.training for owner in modules for each in owner.modules()}
    with left_as_they_are(dag.modules.values(), torch.device("cpu")), _fake_weights(modules, fake):
        set_training(modules)
        try:
            parameters = list(dict.fromkeys(each for owner in modules for each in owner.parameters()))
            live.count([parameters, [list(owner.buffers()) for owner in modules]])
            weights = live.now
            values = [_as_fake(value, fake) for value in batch]
            live.count(values)

            def run() -> Sequence[Tensor]:
                with precision.forward():
                    outputs: Sequence[Tensor] = module(*values)
                return outputs

            with live, precision.prepared(modules, training), nullcontext() if training else evaluating(modules):
                yield run, live, parameters, weights
        finally:
            for each, mode in was_training.items():
                each.training = mode


def _optimizer_memory(parameters: Sequence[Tensor], name: str, params: Mapping[str, object]) -> tuple[int, int]:
    """Bytes that the optimizer keeps, and the most that its step holds beside weights, gradients and those."""
    own = [nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta")) for p in parameters]
    return _of_updates(create_optimizer(name, own, dict(params)), own)


def _of_updates(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> tuple[int, int]:
    """Bytes of the state that two updates leave, and the most beside it, weights and gradients."""
    live = _LiveBytes(FakeTensorMode())
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    live.count([[parameter, parameter.grad] for parameter in parameters])
    before = live.now
    with live:
        optimizer.step()
        live.peak = live.now
        optimizer.step()
    return live.now - before, live.peak - live.now


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that an optimizer without a state will keep after its first step; 0 where it has one, or nobody knows."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or any(parameter.is_meta for parameter in parameters):
        return 0
    own = [nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in parameters]
    try:
        twin = type(optimizer)(own, **optimizer.defaults)
        return _of_updates(twin, own)[0]
    except (TypeError, RuntimeError, NotImplementedError):
        return 0


def _as_fake(value: Value, fake: FakeTensorMode) -> Value:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    with fake:
        return torch.empty(value.shape, dtype=value.dtype)


@contextmanager
def _fake_weights(modules: Sequence[nn.Module], fake: FakeTensorMode) -> Iterator[None]:
    """Inside, parameters and floating buffers are fake ones, and other buffers zeros; afterwards what they were."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    made: dict[Any, Any] = {}
    try:
        for part in dict.fromkeys(part for module in modules for part in module.modules()):
            for own in (part._parameters, part._buffers):
                for name, value in list(own.items()):
                    if value is None:
                        continue
                    if value not in made:
                        made[value] = _stand_in(value, fake)
                    before.append((own, name, value))
                    own[name] = made[value]
        yield
    finally:
        for own, name, value in before:
            own[name] = value


def _stand_in(value: Tensor, fake: FakeTensorMode) -> Tensor:
    if not (value.is_floating_point() or value.is_complex()):
        return torch.zeros(value.shape, dtype=value.dtype)
    with fake:
        empty = torch.empty(value.shape, dtype=value.dtype)
    return nn.Parameter(empty, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else empty
