"""The joint network and its softmax in slices, so that the logits of all nodes of a lattice never exist at once.

Of (B, T, U + 1) nodes with thousands of logits each, a loss needs a few numbers each: these alone are kept. The
backward pass computes everything else again, slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nemo_lite.backends.pytorch.iterations import iterations

# The logits of so many nodes and a thousand labels fit the cache of a core, and fewer would keep it less busy.
_NODES_OF_CORE = 512
_SLICE_BYTES = 40 << 20
# Larger ones keep more cores busy; of the smaller ones the launches of kernels would take the most time.
_SLICE_BYTES_OF_GPU = 256 << 20


class Kept(NamedTuple):
    """What is kept of a node's outputs.

    Attributes:
        columns: (B, U + 1, n) which of the tokens; those of a node depend on the labels before it, not on the frame.
        num_tokens: the first outputs, which share a softmax. The others share another one, and all of them are kept.
    """

    columns: Tensor
    num_tokens: int


def sliced_losses(
    frames: Tensor,
    states: Tensor,
    joint_net: nn.Sequential,
    kept: Kept,
    losses_of: Callable[[Tensor], Tensor],
    clamp: float = 0.0,
    slice_bytes: int | None = None,
) -> Tensor:
    """``losses_of(log-probabilities kept of joint_net(frames[:, :, None] + states[:, None]))``.

    It computes in the type of the frames, from the softmax on in float32 or wider. Masks of dropout come from
    generators of their own, whose seeds the default generator of the CPU draws: so they are the same in both passes.

    Args:
        frames: (B, T, J), the joint's projection of the encoder's output.
        states: (B, U + 1, J), that of the prediction network's.
        joint_net: layers without weights, perhaps dropout, and a linear layer behind them.
        kept: what is kept.
        losses_of: from (B, T, U + 1, n + outputs that are no tokens) to (B,), each item's of its own values alone. It
            is differentiated in the forward pass.
        clamp: the most that a gradient of one item's loss by a logit is, up or down; 0: any.
        slice_bytes: the most that a slice takes, but for one frame of one item at least.
    """
    joint = _Joint(joint_net, kept, losses_of, clamp, slice_bytes)
    linear = joint_net[-1]
    losses: Tensor = _SlicedJoint.apply(joint, frames, states, linear.weight, linear.bias)
    return losses


class _Joint:
    """What both passes compute of a slice. Arguments as of `sliced_losses`."""

    def __init__(
        self,
        joint_net: nn.Sequential,
        kept: Kept,
        losses_of: Callable[[Tensor], Tensor],
        clamp: float,
        slice_bytes: int | None,
    ) -> None:
        self.layers, self.kept, self.losses_of, self.clamp = [*joint_net][:-1], kept, losses_of, clamp
        self._slice_bytes = slice_bytes
        draws = any(isinstance(layer, nn.Dropout) and layer.training and layer.p for layer in self.layers)
        self._seed = int(torch.randint(2**62, (1,), device="cpu").tolist()[0]) if draws else None

    def slices(self, frames: Tensor, num_outputs: int) -> Iterator[tuple[int, slice, slice]]:
        """Numbers, items and frames of the slices."""
        num_items, num_frames, hidden = frames.shape
        # Logits and their softmax, in float32; sums, activations and their gradients.
        of_node = (2 * num_outputs + 3 * hidden) * 4
        of_frame = self.kept.columns.shape[1] * of_node
        most = self._slice_bytes
        if most is None and frames.device.type == "cpu":
            most = min(_SLICE_BYTES, _NODES_OF_CORE * torch.get_num_threads() * of_node)
        elif most is None:
            most = _SLICE_BYTES_OF_GPU
        items = max(1, min(num_items, most // of_frame))
        length = max(1, most // (of_frame * items))
        places = [(i, t) for i in range(0, num_items, items) for t in range(0, num_frames, length)]
        # The third one follows a slice of full size, or the last frames of one: no two hold more.
        for number, (item, frame) in enumerate(iterations(places, frames, 3)):
            yield number, slice(item, item + items), slice(frame, frame + length)

    def hidden(self, frames: Tensor, states: Tensor, number: int) -> Tensor:
        """(B, t, J), (B, U + 1, J) -> (B, t, U + 1, J): what goes into the linear layer in slice ``number``."""
        values = frames.unsqueeze(2) + states.unsqueeze(1)
        for layer in self.layers:
            if not isinstance(layer, nn.Dropout):
                values = layer(values)
            elif self._seed is not None:
                device = "cpu" if values.device.type == "meta" else values.device
                generator = torch.Generator(device).manual_seed(self._seed + number)
                mask = torch.empty_like(values).bernoulli_(1 - layer.p, generator=generator)
                values = values * mask.div_(1 - layer.p)
        return values

    def softmaxes(self, num_outputs: int) -> list[slice]:
        """The outputs that share a softmax: the tokens, and the others if there are any."""
        num_tokens = self.kept.num_tokens
        return [slice(0, num_tokens), slice(num_tokens, num_outputs)][: 1 + (num_outputs > num_tokens)]

    def columns(self, items: slice, num_frames: int) -> Tensor:
        """(B, t, U + 1, n): those that are kept, for the items and frames of a slice."""
        return self.kept.columns[items].unsqueeze(1).expand(-1, num_frames, -1, -1)


class _Buffer:
    """Memory for the logits of one slice after the other: asking the system for pages takes as long as the softmax."""

    def __init__(self) -> None:
        self._values: Tensor | None = None

    def linear(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(N, J) -> (N, outputs). The next call overwrites the result."""
        if self._values is None or len(self._values) < len(values):
            self._values = values.new_empty(len(values), len(weight))
        return torch.addmm(bias, values, weight.mT, out=self._values[: len(values)])


class _SlicedJoint(torch.autograd.Function):
    """See :func:`sliced_losses`. From forward to backward goes the gradient of each item's loss by what is kept."""

    @staticmethod
    def forward(ctx: Any, joint: _Joint, frames: Tensor, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        wide = torch.promote_types(frames.dtype, torch.float32)
        own_weight, own_bias = weight.to(frames.dtype), bias.to(frames.dtype)
        softmaxes = joint.softmaxes(len(weight))
        num_columns, num_chosen = joint.kept.columns.shape[1:]
        num_kept = num_chosen + len(weight) - joint.kept.num_tokens
        kept = frames.new_empty((*frames.shape[:2], num_columns, num_kept), dtype=wide)
        totals = frames.new_empty((*kept.shape[:3], len(softmaxes)), dtype=wide)
        buffer = _Buffer()
        for number, items, part in joint.slices(frames, len(weight)):
            hidden = joint.hidden(frames[items, part], states[items], number)
            columns = joint.columns(items, hidden.shape[1]).flatten(0, 2)
            all_logits = buffer.linear(hidden.flatten(0, 2), own_weight, own_bias).to(wide)
            for place, rows in enumerate(softmaxes):
                logits = all_logits[:, rows]
                chosen = logits.gather(-1, columns) if rows.start == 0 else logits.clone()
                largest = logits.amax(-1, keepdim=True)
                total = logits.sub_(largest).exp_().sum(-1, keepdim=True).log_().add_(largest)
                places = slice(0, num_chosen) if rows.start == 0 else slice(num_chosen, num_kept)
                kept[items, part, :, places] = chosen.sub_(total).view(*hidden.shape[:3], -1)
                totals[items, part, :, place] = total.view(hidden.shape[:3])
        if not any(ctx.needs_input_grad):
            return joint.losses_of(kept)
        with torch.enable_grad():
            losses = joint.losses_of(kept.requires_grad_())
            (of_kept,) = torch.autograd.grad(losses.sum(), kept)
        ctx.joint = joint
        ctx.save_for_backward(frames, states, weight, bias, totals, of_kept)
        return losses.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        joint: _Joint = ctx.joint
        frames, states, weight, bias, totals, of_kept = ctx.saved_tensors
        own_weight, own_bias = weight.to(frames.dtype), bias.to(frames.dtype)
        softmaxes = joint.softmaxes(len(weight))
        num_chosen = joint.kept.columns.shape[2]
        scale = gradient[:, None, None, None]
        of_frames = torch.empty_like(frames)
        of_states, of_weight, of_bias = (torch.zeros_like(one, dtype=of_kept.dtype) for one in (states, weight, bias))
        buffer = _Buffer()
        for number, items, part in joint.slices(frames, len(weight)):
            with torch.enable_grad():
                own = frames[items, part].detach().requires_grad_(), states[items].detach().requires_grad_()
                hidden = joint.hidden(*own, number)
            wanted = (of_kept[items, part] * scale[items]).flatten(0, 2)
            # Most nodes are on no probable path. Without them a CPU is faster; a GPU would wait to know how many.
            used = wanted.any(1).nonzero().squeeze(1) if wanted.device.type == "cpu" else slice(None)
            columns = joint.columns(items, hidden.shape[1]).flatten(0, 2)[used]
            flat, total = hidden.detach().flatten(0, 2)[used], totals[items, part].flatten(0, 2)[used]
            of_chosen, of_others = wanted[used].tensor_split([num_chosen], -1)
            all_logits = buffer.linear(flat, own_weight, own_bias).to(of_kept.dtype)
            for place, rows in enumerate(softmaxes):
                probs = all_logits[:, rows].sub_(total[:, place : place + 1]).exp_()
                if rows.start == 0:
                    probs.mul_(-of_chosen.sum(-1, keepdim=True)).scatter_add_(-1, columns, of_chosen)
                else:
                    probs.mul_(-of_others.sum(-1, keepdim=True)).add_(of_others)
            if joint.clamp > 0:
                most = joint.clamp * scale[items].abs().expand(*hidden.shape[:3], 1).flatten(0, 2)[used]
                all_logits.clamp_(-most, most)
            of_logits = all_logits.to(frames.dtype)
            if of_weight.dtype == flat.dtype:
                of_weight.addmm_(of_logits.mT, flat)
            else:  # sums of many slices are in float32
                of_weight += of_logits.mT @ flat
            of_bias += of_logits.sum(0)
            of_flat = of_logits @ own_weight
            of_hidden = hidden.detach().new_zeros(hidden.shape).flatten(0, 2)
            of_hidden[used] = of_flat
            # A scalar, since the first gradient that torch is given takes half a second, in which it imports sympy.
            with torch.enable_grad():
                product = hidden.flatten().dot(of_hidden.flatten())
            of_frames[items, part], of_states_here = torch.autograd.grad(product, own)
            of_states[items] += of_states_here
        of_inputs = (of_states.to(states.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype))
        return None, of_frames, *of_inputs
