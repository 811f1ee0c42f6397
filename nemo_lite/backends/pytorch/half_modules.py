"""Half types: of which device, in which parts of a module, with float32 weights in files and masters beside them."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from nemo_lite.backends.pytorch.tensor_codec import Tree
from nemo_lite.base.errors import UnknownNameError, UsageError
from nemo_lite.core.neural_types import Value

AUTO = "auto"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALVES = tuple(_DTYPES.values())
_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def half_dtype(amp_dtype: str | None, device: torch.device) -> torch.dtype:
    """The half type of this name; for ``auto`` or None, bfloat16 where the device computes it in hardware.

    NVIDIA's Volta (V100) and Turing (T4, RTX 20) emulate bfloat16, slowly: they get float16.

    Raises:
        UsageError: float16 on a CPU.
        UnknownNameError: another name.
    """
    check_dtype_name(amp_dtype)
    if amp_dtype is None or amp_dtype == AUTO:
        in_hardware = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if in_hardware else torch.float16
    if amp_dtype == "float16" and device.type == "cpu":
        raise UsageError("float16 is not computed on a CPU", place="amp_dtype", remedy="use bfloat16")
    return _DTYPES[amp_dtype]


def check_dtype_name(amp_dtype: str | None) -> None:
    """Raise UnknownNameError for what is neither a half type, ``auto`` nor None."""
    if amp_dtype not in (None, AUTO, *_DTYPES):
        raise UnknownNameError("amp_dtype", str(amp_dtype), [AUTO, *_DTYPES])


def name_of(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def stays_float32(part: nn.Module, norms_too: bool) -> bool:
    """Whether a part of a module, with all that is in it, stays in float32 where the rest of the module is half.

    Args:
        part: it says so itself (``keep_float32``), or it is a normalisation layer.
        norms_too: normalisation layers stay.
    """
    return bool(getattr(part, "keep_float32", False)) or (norms_too and isinstance(part, _NORMS))


def half_parts(module: nn.Module, norms_too: bool) -> Iterator[nn.Module]:
    """The parts of a module, itself first, without those that stay in float32."""
    if not stays_float32(module, norms_too):
        yield module
        for child in module.children():
            yield from half_parts(child, norms_too)


def float32_parts(module: nn.Module, norms_too: bool) -> Iterator[nn.Module]:
    """The outermost parts of a module that stay in float32; the module itself if all of it does."""
    if stays_float32(module, norms_too):
        yield module
        return
    for child in module.children():
        yield from float32_parts(child, norms_too)


def cast(values: Value, from_: Iterable[torch.dtype], to: torch.dtype) -> object:
    """The same values with tensors of some types in another type; in lists, tuples and dictionaries too.

    Any: arguments and results of modules.
    """
    if isinstance(values, torch.Tensor):
        return values.to(to) if values.dtype in from_ else values
    if type(values) in (list, tuple):
        return type(values)(cast(value, from_, to) for value in values)
    if type(values) is dict:
        return {key: cast(value, from_, to) for key, value in values.items()}
    return values


class SavedWeights:
    """The float32 values of half tensors, for as long as modules compute with the halves.

    Attributes:
        wide: the float32 value of each half tensor; None where the half one is the only one.
    """

    def __init__(self) -> None:
        self.wide: dict[Tensor, Tensor | None] = {}

    def attach(self, part: nn.Module) -> Iterable[RemovableHandle]:
        """Let a part save and load float32 values of its own tensors; returns what undoes it."""
        # Partials, because torch notes something in the functions that it is given.
        return (
            part.register_state_dict_post_hook(partial(self._widen_state)),
            part.register_load_state_dict_pre_hook(partial(self._take_state)),
        )

    def master_of(self, parameter: Tensor) -> Tensor:
        """The float32 weight that a half parameter is rounded from; the parameter itself where there is none."""
        master = self.wide.get(parameter)
        return parameter if master is None else master

    def float32_of(self, tensor: Tensor) -> Tensor:
        """The float32 value of a half tensor; of a buffer that changed, the changed value."""
        wide = self.wide[tensor]
        if wide is None:
            return tensor.detach().float()
        may_have_changed = not isinstance(tensor, (nn.Parameter, FakeTensor)) and not tensor.is_meta
        if may_have_changed and not torch.equal(tensor, wide.to(tensor.dtype)):
            return tensor.detach().float()
        return wide.detach()

    def _widen_state(self, part: nn.Module, state: dict[str, Tree], prefix: str, *unused: object) -> None:
        """Runs after a part has put its tensors into a ``state_dict``."""
        for name, tensor in own_tensors(part):
            if prefix + name in state and tensor in self.wide:
                state[prefix + name] = self.float32_of(tensor)

    def _take_state(self, part: nn.Module, state: Mapping[str, object], prefix: str, *unused: object) -> None:
        """Runs before a part loads a state: the float32 values take it in full, the halves by torch right after."""
        for name, tensor in own_tensors(part):
            wide, loaded = self.wide.get(tensor), state.get(prefix + name)
            if wide is not None and isinstance(loaded, Tensor) and loaded.shape == wide.shape:
                wide.detach().copy_(loaded.detach())


def own_tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A part's own parameters and buffers by name, without those of the parts in it."""
    return chain(
        part.named_parameters(recurse=False, remove_duplicate=False),
        part.named_buffers(recurse=False, remove_duplicate=False),
    )


_thread_of: dict[nn.Module, int] = {}  # that has turned the weights of a module into halves
_THREADS = threading.Lock()


@contextmanager
def _claimed_by_this_thread(modules: Iterable[nn.Module]) -> Iterator[None]:
    thread = threading.get_ident()
    with _THREADS:
        for module in modules:
            if _thread_of.get(module, thread) != thread:
                label = getattr(module, "label", type(module).__name__)
                remedy = "let one thread at a time use it, or choose optimization_level O0 or O1"
                raise UsageError(f"another thread computes with {label} in half weights", remedy=remedy)
        claimed = [module for module in modules if module not in _thread_of]
        _thread_of.update(dict.fromkeys(claimed, thread))
    try:
        yield
    finally:
        for module in claimed:
            del _thread_of[module]


class HalfModules:
    """Turns the weights of modules into halves for an action, and back.

    Parameters and buffers stay the same objects; only their values change their type. ``state_dict()`` gives float32
    tensors, and ``load_state_dict`` takes them, under the names of always.

    Args:
        dtype: the half type.
        norms_in_float32: normalisation layers stay in float32.
        keeps_masters: trained weights have a float32 value beside the half one; see :class:`MasterWeights`.

    Attributes:
        saved: the float32 values of the half weights.
    """

    def __init__(self, dtype: torch.dtype, norms_in_float32: bool, keeps_masters: bool) -> None:
        self._dtype, self._norms_in_float32, self._keeps_masters = dtype, norms_in_float32, keeps_masters
        self.saved = SavedWeights()
        self._modules: set[nn.Module] = set()

    @contextmanager
    def prepared(self, modules: Iterable[nn.Module], trained: bool) -> Iterator[None]:
        """Inside, the modules are half. Those that are so already stay as they are, also afterwards.

        Args:
            modules: the modules of a DAG; each takes float inputs of any type.
            trained: their weights change inside, and are float32 versions of the changed ones afterwards; otherwise
                exactly what they were.

        Raises:
            UsageError: another thread has the modules in halves: they would be float32 again when it ends.
        """
        new = [module for module in dict.fromkeys(modules) if module not in self._modules]
        parts = dict.fromkeys(part for module in new for part in half_parts(module, self._norms_in_float32))
        with _claimed_by_this_thread(new), ExitStack() as undo:
            undo.callback(self._widen, new, set(self.saved.wide))
            self._modules.update(new)
            for part in parts:
                self._narrow(part, trained)
            handles = chain.from_iterable(
                [*map(self._cast_inputs, new), *map(self._cast_around_float32, new), *map(self.saved.attach, parts)]
            )
            for handle in handles:
                undo.callback(handle.remove)
            yield

    def masters(self) -> dict[Tensor, nn.Parameter]:
        """The float32 weights that an optimizer may update, by the half parameters that are rounded from them."""
        return {half: wide for half, wide in self.saved.wide.items() if isinstance(wide, nn.Parameter)}

    def _narrow(self, part: nn.Module, trained: bool) -> None:
        for _, tensor in own_tensors(part):
            if tensor.dtype is torch.float32:
                wide: Tensor | None = tensor.data
                if trained and isinstance(tensor, nn.Parameter):
                    wide = nn.Parameter(tensor.data) if self._keeps_masters else None
                self.saved.wide[tensor] = wide
                tensor.grad, tensor.data = None, tensor.data.to(self._dtype)

    def _widen(self, modules: Iterable[nn.Module], but: Set[Tensor]) -> None:
        """Make modules float32 again, with all tensors but some."""
        self._modules.difference_update(modules)
        for tensor in [tensor for tensor in self.saved.wide if tensor not in but]:
            tensor.grad, tensor.data = None, self.saved.float32_of(tensor)
            del self.saved.wide[tensor]

    def _cast_inputs(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """A module of a DAG gets the inputs that its weights need; one without weights takes what comes."""
        if next(float32_parts(module, self._norms_in_float32), None) is module:
            yield casting_inputs(module, HALVES, torch.float32)
        elif any(tensor.is_floating_point() for tensor in chain(module.parameters(), module.buffers())):
            yield casting_inputs(module, (torch.float32,), self._dtype)

    def _cast_around_float32(self, module: nn.Module) -> Iterator[RemovableHandle]:
        for part in float32_parts(module, self._norms_in_float32):
            # Torch's kernels of batch normalisation take half inputs beside float32 weights as they are.
            takes_halves = isinstance(part, _NormBase) and not getattr(part, "keep_float32", False)
            if part is not module and not takes_halves:
                yield casting_inputs(part, HALVES, torch.float32)
                yield part.register_forward_hook(lambda part, args, out: cast(out, (torch.float32,), self._dtype))


def casting_inputs(part: nn.Module, from_: tuple[torch.dtype, ...], to: torch.dtype) -> RemovableHandle:
    """Let a part get the inputs of some types in another type; returns what undoes it."""

    def take(part: nn.Module, args: tuple[object, ...], kwargs: dict[str, Value]) -> tuple[Value, Value]:
        return cast(args, from_, to), cast(kwargs, from_, to)

    return part.register_forward_pre_hook(take, with_kwargs=True)


class MasterWeights:
    """The float32 weights of one optimizer.

    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018. A step: the halves' gradients become float32,
    the optimizer updates the float32 weights, and the halves are rounded from them (level O2).

    Until :meth:`release`, the optimizer's groups and states have the float32 weights in the place of the half ones.

    Args:
        optimizer: made over float32 parameters of modules that are half now.
        masters: the float32 parameters by the half ones.

    Raises:
        UsageError: the optimizer cannot have them: its parameters were half before, or it keeps them in other places
            than its groups.
    """

    def __init__(self, optimizer: Optimizer, masters: Mapping[Tensor, nn.Parameter]) -> None:
        parameters = parameters_of(optimizer)
        self._optimizer = optimizer
        self._pairs = [(half, masters[half]) for half in parameters if half in masters]
        self._refuse_unfit(parameters)
        self._exchange(dict(self._pairs))

    @property
    def halves(self) -> list[Tensor]:
        """The modules' own parameters."""
        return [half for half, _ in self._pairs]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Copy the gradients of the halves to the float32 weights."""
        narrow, wide = [], []
        for half, master in self._pairs:
            master.grad = None
            if half.grad is not None:
                master.grad = torch.empty_like(master)
                narrow.append(half.grad)
                wide.append(master.grad)
        if wide:
            torch._foreach_copy_(wide, narrow)

    @torch.no_grad()
    def hand_weights(self) -> None:
        """Round the float32 weights to the halves; after a step that was left out, this changes nothing."""
        if self._pairs:
            torch._foreach_copy_([half for half, _ in self._pairs], [master for _, master in self._pairs])

    def release(self) -> None:
        """Give the optimizer the modules' parameters again."""
        self._exchange({master: half for half, master in self._pairs})

    def _exchange(self, replacements: Mapping[Tensor, Tensor]) -> None:
        for group in self._optimizer.param_groups:
            group["params"][:] = [replacements.get(parameter, parameter) for parameter in group["params"]]
        for old, new in replacements.items():
            if old in self._optimizer.state:
                self._optimizer.state[new] = self._optimizer.state.pop(old)

    def _refuse_unfit(self, parameters: Sequence[Tensor]) -> None:
        halves = dict(self._pairs)
        other = next((p for p in parameters if p not in halves and p.dtype in HALVES), None)
        place = f"optimizer {type(self._optimizer).__name__}"
        if other is not None:
            raise UsageError(
                "O2 needs float32 weights to update",
                place=place,
                got=f"parameters that were {name_of(other.dtype)} before the run",
                remedy="leave the modules in float32: O2 makes the half weights itself",
            )
        # LBFGS keeps the very list of its group, whose entries are exchanged.
        lists = {id(group["params"]) for group in self._optimizer.param_groups}
        attributes = {n: value for n, value in vars(self._optimizer).items() if n not in ("param_groups", "state")}
        kept = [name for name, value in attributes.items() if id(value) not in lists and _has_any(value, halves)]
        if kept:
            raise UsageError(
                "this optimizer cannot have master weights",
                place=place,
                got=f"parameters outside its param_groups, in {kept[0]}",
                remedy="use O1, or an optimizer by name",
            )


def _has_any(value: object, tensors: Container[Tensor]) -> bool:
    """Whether a value is one of the tensors, or a collection with one in it."""
    if isinstance(value, Tensor):
        return value in tensors
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    return isinstance(value, (list, tuple, set)) and any(_has_any(item, tensors) for item in value)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """What an optimizer updates, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
