"""ConformerEncoder: subsampling and layers, with ports; what its arguments say. No decoders.

NVIDIA's Conformer and FastConformer and WeNet's Conformer and U2++ are settings of one encoder. Inside it tensors are
(B, T, D). Frames behind an utterance never reach its own: subsampling and convolutions see zeros there, attention
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from nemo_asr.models.conformer.convolution import ConvolutionModule
from nemo_asr.models.conformer.layer import ConformerLayer, Dropouts
from nemo_asr.models.conformer.self_attention import (
    ALL,
    FULL_CONTEXT,
    HIDDEN_SCORE,
    AttentionContext,
    Hidden,
    RelPositionAttention,
    drawn_context,
    hidden_frames,
    new_pos_biases,
    position_embeddings,
)
from nemo_asr.models.conformer.subsampling import ConvSubsampling, LinearInput, StackingSubsampling
from nemo_asr.models.jasper.encoder import encoded_ports, intermediate_of, spectrogram_ports
from nemo_asr.models.jasper.layers import Frames, are_full
from nemo_asr.run.arguments import Channels, refuse_even, refuse_too_large
from nemo_lite.backends.pytorch.nm import TrainableNM
from nemo_lite.backends.pytorch.streaming import ChunkFrames, Delay, State, keyed, num_new, prefixed
from nemo_lite.base.errors import UsageError
from nemo_lite.base.ranges import Between
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape

_PLACE = "ConformerEncoder"

Probability: TypeAlias = Annotated[float, Between(0, 1, below=True)]
Context: TypeAlias = Annotated[int, Between(0, 1_000_000, also=(-1,))]  # encoded frames; -1: all
SubsamplingName: TypeAlias = Literal["striding", "dw_striding", "vggnet", "stacking", "stacking_norm", "conv2d"]
AttentionName: TypeAlias = Literal["rel_pos", "rel_pos_no_shift", "no_pos"]
ContextStyle: TypeAlias = Literal["regular", "chunked_limited"]


class ConformerEncoder(TrainableNM):
    """Subsampling and a stack of Conformer layers over spectrogram frames.

    Shapes: B utterances, D features, T frames in, C channels, U frames out. U is ``ceil(T / subsampling_factor)``, but
    with causal subsampling ``T // 2 + 1`` after each halving, and with conv2d ``(T - 1) // 2``, after its step of 3
    ``(T - 2) // 3``.

    The arguments are those of NeMo's class of this name that have an effect; the last ones are for WeNet's.

    Sources: Gulati et al., "Conformer", Interspeech 2020; Rekesh et al., "Fast Conformer", ASRU 2023; Noroozi et al.,
    "Stateful Conformer with Cache-based Inference for Streaming ASR", ICASSP 2024 (contexts); Zhang et al., "Unified
    Streaming and Non-streaming Two-pass End-to-end Model", 2020 (dynamic chunks).

    Args:
        feat_in: features of a frame.
        n_layers: Conformer layers.
        d_model: channels inside.
        feat_out: channels of the output; with -1, or ``d_model``, there is no layer that changes them.
        causal_downsampling: subsampling sees no frames behind; for striding and dw_striding.
        subsampling: striding, dw_striding, vggnet, stacking, stacking_norm, or conv2d, WeNet's without padding.
        subsampling_factor: frames in for one out: a power of 2, with conv2d also 6, for stacking any; 1: one linear
            layer.
        subsampling_conv_channels: of the convolutions of subsampling; -1: ``d_model``.
        ff_expansion_factor: channels inside of feed-forward modules for one outside.
        self_attention_model: rel_pos; or rel_pos_no_shift, whose positions are counted from the start, as in WeNet; or
            no_pos: none, as in WeNet.
        n_heads: heads of attention.
        att_context_size: encoded frames before and behind a frame that it sees, -1 for all; or several such pairs: one
            is drawn for each batch of a training, and the first is for evaluation.
        att_context_probs: the probability of each pair; None: all alike.
        att_context_style: regular, or chunked_limited: frames are in chunks of one more than the second number, see
            their own whole, and of those before it as many as fit into the first.
        xscaling: multiply what subsampling gives by the root of ``d_model``.
        untie_biases: each layer has its own biases of attention; False: all have the same.
        conv_kernel_size: frames that a depthwise convolution sees, odd.
        conv_norm_type: batch_norm, layer_norm, or group_normN with N groups.
        conv_context_size: frames before and behind that it sees; causal: none behind; None: as many on both sides.
        use_bias: biases in layers.
        dropout: probability, behind modules and inside feed-forward ones.
        dropout_pre_encoder: probability, behind subsampling.
        dropout_emb: probability, of position embeddings.
        dropout_att: probability, of attention weights.
        stochastic_depth_drop_prob: probability with which training leaves out the last layer.
        stochastic_depth_mode: linear: it grows from layer to layer; uniform: it is the same.
        stochastic_depth_start_layer: layers before which none is left out.
        subsampling_mask: convolutions of subsampling see zeros behind an utterance, as in NeMo since 2.5. False: what
            the one before made there, as before; then an utterance's encoding depends on its batch.
        conv_pads_input: zeros stand before the convolution module, as in WeNet; with ``conv_context_size: causal``.
        after_norm: normalise behind the last layer, as WeNet does.
        use_dynamic_chunk: draw the context of each batch of a training as WeNet does: half of them see all, the others
            chunks of 1 to 25 frames. Evaluation has ``att_context_size``.
        use_dynamic_left_chunk: draw also how many chunks before its own a frame sees.
        intermediate_block: a layer whose output is given as well, counted from 0, for intermediate CTC; -1 is that of
            half the depth, None none.
        name: its name in DAGs, messages and checkpoints.

    Attributes:
        context_frames: None: attention may see the whole utterance.

    Raises:
        UsageError: numbers that contradict each other; more weights than a model may have.
    """

    context_frames = None
    _context_table: Tensor
    _context_probs: Tensor

    def __init__(
        self,
        feat_in: Channels,
        n_layers: Annotated[int, Between(1, 256)],
        d_model: Channels,
        feat_out: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        causal_downsampling: bool = False,
        subsampling: SubsamplingName = "striding",
        subsampling_factor: Annotated[int, Between(1, 64)] = 4,
        subsampling_conv_channels: Annotated[int, Between(1, 65_536, also=(-1,))] = -1,
        ff_expansion_factor: Annotated[int, Between(1, 64)] = 4,
        self_attention_model: AttentionName = "rel_pos",
        n_heads: Annotated[int, Between(1, 1_024)] = 4,
        att_context_size: tuple[Context, Context] | Sequence[tuple[Context, Context]] | None = None,
        att_context_probs: Sequence[Annotated[float, Between(0, 1)]] | None = None,
        att_context_style: ContextStyle = "regular",
        xscaling: bool = True,
        untie_biases: bool = True,
        conv_kernel_size: Annotated[int, Between(1, 1_001)] = 31,
        conv_norm_type: str = "batch_norm",
        conv_context_size: Literal["causal"] | tuple[int, int] | None = None,
        use_bias: bool = True,
        dropout: Probability = 0.1,
        dropout_pre_encoder: Probability = 0.1,
        dropout_emb: Probability = 0.1,
        dropout_att: Probability = 0.0,
        stochastic_depth_drop_prob: Probability = 0.0,
        stochastic_depth_mode: Literal["linear", "uniform"] = "linear",
        stochastic_depth_start_layer: Annotated[int, Between(1, 256)] = 1,
        subsampling_mask: bool = True,
        conv_pads_input: bool = False,
        after_norm: bool = False,
        use_dynamic_chunk: bool = False,
        use_dynamic_left_chunk: bool = False,
        intermediate_block: Annotated[int, Between(-1, 256)] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        for argument, name_of_kind, kinds in (
            ("subsampling", subsampling, get_args(SubsamplingName)),
            ("self_attention_model", self_attention_model, get_args(AttentionName)),
            ("att_context_style", att_context_style, get_args(ContextStyle)),
        ):
            if name_of_kind not in kinds:
                wanted = f"one of {', '.join(kinds)}"
                raise UsageError(f"{argument} is not known", place=_PLACE, got=name_of_kind, wanted=wanted)
        if d_model % n_heads or d_model % 2:
            got = f"d_model {d_model}, n_heads {n_heads}"
            raise UsageError("n_heads must divide d_model", place=_PLACE, got=got, wanted="a multiple, and an even one")
        refuse_even(_PLACE, "conv_kernel_size", conv_kernel_size)
        self._feat_in, self._feat_out = feat_in, d_model if feat_out == -1 else feat_out
        self._scale = math.sqrt(d_model) if xscaling else None
        self._is_shifted, self._has_positions = self_attention_model == "rel_pos", self_attention_model != "no_pos"
        self._contexts = _contexts(att_context_size, att_context_style)
        self._is_dynamic, self._draws_left = use_dynamic_chunk, use_dynamic_left_chunk
        self.register_buffer("_context_table", torch.tensor(self._contexts), persistent=False)
        self.register_buffer("_context_probs", _probabilities(att_context_probs, len(self._contexts)), persistent=False)
        channels = d_model if subsampling_conv_channels == -1 else subsampling_conv_channels
        of_layer = d_model * (d_model * (4 * ff_expansion_factor + 8) + conv_kernel_size)
        of_subsampling = 9 * channels**2 + (channels + subsampling_factor) * feat_in * d_model
        refuse_too_large(_PLACE, n_layers * of_layer + of_subsampling)
        self.pre_encode = _subsampling(
            subsampling, subsampling_factor, feat_in, d_model, channels, causal_downsampling, subsampling_mask
        )
        self.dropout_pre_encoder, self.dropout_emb = nn.Dropout(dropout_pre_encoder), nn.Dropout(dropout_emb)
        left = _frames_before(conv_context_size, conv_kernel_size)
        if conv_pads_input and left != conv_kernel_size - 1:
            problem, got = "conv_pads_input is for conv_context_size: causal", str(conv_context_size)
            raise UsageError(problem, place=_PLACE, got=got)
        _check_norm(conv_norm_type, d_model)
        shared = None if untie_biases else new_pos_biases(n_heads, d_model)
        self.layers = nn.ModuleList(
            ConformerLayer(
                d_model,
                d_model * ff_expansion_factor,
                RelPositionAttention(n_heads, d_model, dropout_att, use_bias, self._is_shifted, shared),
                ConvolutionModule(d_model, conv_kernel_size, conv_norm_type, left, use_bias, conv_pads_input),
                Dropouts(dropout, dropout, dropout, dropout),
                use_bias,
            )
            for _ in range(n_layers)
        )
        self._drop_probs = _drop_probs(
            n_layers, stochastic_depth_drop_prob, stochastic_depth_mode, stochastic_depth_start_layer
        )
        self.after_norm = nn.LayerNorm(d_model) if after_norm else None
        self.out_proj = nn.Linear(d_model, self._feat_out) if self._feat_out != d_model else None
        self._size = d_model
        block = intermediate_block
        self._intermediate = None if block is None else intermediate_of(block, n_layers, _PLACE)

    @property
    def input_ports(self) -> Ports:
        return spectrogram_ports(self._feat_in)

    @property
    def output_ports(self) -> Ports:
        return encoded_ports(self._feat_out, None if self._intermediate is None else self._size)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        batch, _, time = shapes["audio_signal"]
        num_frames = self.pre_encode.size(time)
        shapes_out = {"outputs": (batch, self._feat_out, num_frames), "encoded_lengths": (batch,)}
        if self._intermediate is None:
            return shapes_out
        return {**shapes_out, "intermediate": (batch, self._size, num_frames), "intermediate_lengths": (batch,)}

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """(B, D, T) and valid frames (B,) -> (B, C, U) and valid frames (B,), int64.

        Frames of the output beyond the valid ones are undefined. With an intermediate block its output and its valid
        frames follow.
        """
        x, lengths = self.pre_encode(audio_signal.transpose(1, 2), length.long())
        if self._scale is not None:
            x = x * self._scale
        x = self.dropout_pre_encoder(x)
        num_frames = x.shape[1]
        frames = Frames(lengths, is_masking=not are_full(lengths, num_frames))
        positions = self.dropout_emb(self.positions(num_frames, num_frames, x.device)).to(x.dtype)
        hidden = hidden_frames(lengths, num_frames, self._context(num_frames, x.device))
        tapped: tuple[Tensor, ...] = ()
        for index, layer in enumerate(self.layers):
            out = layer(x, frames, positions, hidden)
            drop_prob = self._drop_probs[index]
            if self.training and drop_prob > 0:
                keeps = torch.rand((), device=x.device) >= drop_prob
                out = x + (out - x) * (keeps / (1 - drop_prob))
            x = out
            if index == self._intermediate:
                tapped = (x.transpose(1, 2), lengths)
        if self.after_norm is not None:
            x = self.after_norm(x)
        if self.out_proj is not None:
            x = self.out_proj(x)
        return x.transpose(1, 2), lengths, *tapped

    def positions(self, num_queries: int, num_keys: int, device: torch.device, first: int | Tensor = 0) -> Tensor:
        """Embeddings (P, D) for queries that are the last of the keys: of the distances ``num_keys`` to
        ``1 - num_queries``, or without the shift of the keys, the first of which is ``first``, from the start. With
        several ``first`` (B, 1) these are (B, P, D). Without positions they are 0."""
        if not self._has_positions:
            return torch.zeros(num_keys, self._size, device=device)
        if self._is_shifted:
            return position_embeddings(num_keys, num_keys + num_queries, -1, self._size, device)
        return position_embeddings(first, num_keys, 1, self._size, device)

    @property
    def att_context_sizes(self) -> list[tuple[int, int]]:
        """Frames before and behind in each context of training, -1: all; the first is that outside of training."""
        sizes = []
        for chunk, left, right in self._contexts:
            frames = -1 if left == ALL else int(left) * int(chunk)
            sizes.append((frames, int(chunk) - 1 if right == 0 else -1 if right == ALL else int(right)))
        return sizes

    def set_default_att_context_size(self, att_context_size: Sequence[int]) -> None:
        """The context outside of training: encoded frames before and behind a frame that it sees, in chunks.

        Raises:
            UsageError: the first number is no multiple of one more than the second.
        """
        left, right = att_context_size
        self._contexts = [*_contexts((left, right), "chunked_limited"), *self._contexts[1:]]

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        context = self._contexts[0]
        if context.is_full:
            return (
                "attention sees the whole utterance; att_context_style: chunked_limited does not, nor a model that was "
                "trained with chunks (U2++), with --att_context_size LEFT RIGHT"
            )
        if context.right != 0:
            return "each layer of regular attention looks ahead further; att_context_style: chunked_limited does not"
        return self._layers()[0].stream_problem()

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        delays = [window.delay for window in self.pre_encode.windows]
        return reduce(Delay.then, [*delays, Delay(1, int(self._contexts[0].chunk) - 1)])

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        state = prefixed(self.pre_encode.initial_state(batch), "pre_encode")
        like = self._layers()[0].norm_out.weight
        state["waiting"] = like.new_zeros(batch, 0, self._size)  # encoded frames of a chunk that is not whole
        state["num_frames"] = torch.zeros(1, dtype=torch.int64, device=like.device)  # that went through the layers
        for index, layer in enumerate(self._layers()):
            state |= prefixed(layer.initial_state(batch), f"layers.{index}")
        return state

    def step(
        self, audio_signal: Tensor, length: Tensor, *, state: State, last: bool
    ) -> tuple[tuple[Tensor, ...], State]:
        """The next frames (B, D, T) to (B, C, U): those of chunks that are whole, at the end of the last one as well.

        Chunks are counted from the start, so the numbers do not depend on how frames arrive.
        """
        features = audio_signal.transpose(1, 2)
        if torch.compiler.is_exporting():
            return self._step_in_graph(features, length, state)
        x, kept, _ = self.pre_encode.step(features, keyed(state, "pre_encode"), last)
        x = self._with_waiting(x, state)
        chunk = int(self._contexts[0].chunk)
        number = x.shape[1] if last else x.shape[1] // chunk * chunk
        new_state = self._new_state(state, kept, x[:, number:], number)
        x = x[:, :number]
        if not number:
            new_state |= {key: value for key, value in state.items() if key.startswith("layers.")}
            return self._outputs(x, x, num_new(x, 1)), new_state
        num_kept = state["layers.0.attention"].shape[1]
        first = 0 if self._is_shifted else int(state["num_frames"]) - num_kept
        x, tapped, of_layers = self._through_layers(x, first, self._seen(number, num_kept, x.device), state)
        return self._outputs(x, tapped, num_new(x, 1)), new_state | of_layers

    def _step_in_graph(self, features: Tensor, length: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        """The same in an exported graph: chunks and states have one size, and `ChunkFrames` says which frames count."""
        frames = ChunkFrames.of_chunk(length, state["num_frames"] * self.stream_delay().stride)
        x, kept, encoded = self.pre_encode.step(features, keyed(state, "pre_encode"), False, frames)
        assert encoded is not None, "of frames in a graph come frames in a graph"
        num_waiting, num_kept = state["waiting"].shape[1], state["layers.0.attention"].shape[1]
        frames = encoded._replace(first=encoded.first - num_waiting)
        x = self._with_waiting(x, state)
        chunk = int(self._contexts[0].chunk)
        number = x.shape[1] // chunk * chunk
        new_state = self._new_state(state, kept, x[:, number:], number)
        x = x[:, :number]
        first = 0 if self._is_shifted else (frames.first - num_kept - frames.start).unsqueeze(1)
        sees = self._seen(number, num_kept, x.device) & frames.is_there(number, num_kept)[:, None, None]
        x, tapped, of_layers = self._through_layers(x, first, sees, state, frames)
        return self._outputs(x, tapped, frames.left), new_state | of_layers

    def _with_waiting(self, x: Tensor, state: State) -> Tensor:
        """Encoded frames of subsampling, behind those of a chunk that was not whole."""
        return torch.cat([state["waiting"], x if self._scale is None else x * self._scale], dim=1)

    def _new_state(self, state: State, of_subsampling: State, waiting: Tensor, number: int) -> dict[str, Tensor]:
        """The new state but that of the layers, which take so many frames."""
        counted = {"waiting": waiting, "num_frames": state["num_frames"] + number}
        return {**prefixed(of_subsampling, "pre_encode"), **counted}

    def _seen(self, number: int, num_kept: int, device: torch.device) -> Tensor:
        """(1, 1, T, S + T): which of the frames that were kept and of the new ones each new frame sees."""
        context = self._contexts[0]
        of_key = torch.arange(num_kept + number, device=device) // int(context.chunk)  # the chunk in which it is
        chunks_back = of_key[num_kept:].unsqueeze(1) - of_key
        return ((chunks_back >= 0) & (chunks_back <= int(context.left)))[None, None]

    def _through_layers(
        self, x: Tensor, first: int | Tensor, sees: Tensor, state: State, frames: ChunkFrames | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Whole chunks of frames to the encoded frames, to those of the intermediate block, and to the layers' state.

        Args:
            x: (B, T, D), at least one frame.
            first: the position of the first frame that was kept, counted from the start; see :meth:`positions`.
            sees: (1 or B, 1, T, S + T), which frames each frame sees.
            state: of the encoder.
            frames: in a graph, those of ``x``.
        """
        number, num_keys = sees.shape[2:]
        positions = self.positions(number, num_keys, x.device, first).to(x.dtype)
        hidden = Hidden(torch.where(sees, 0.0, HIDDEN_SCORE), ~sees.any(-1, keepdim=True))
        context = self._contexts[0]
        most_kept = int(context.left) * int(context.chunk)
        new_state: dict[str, Tensor] = {}
        tapped = x
        for index, layer in enumerate(self._layers()):
            x, kept = layer.step(x, positions, hidden, keyed(state, f"layers.{index}"), most_kept, frames)
            new_state |= prefixed(kept, f"layers.{index}")
            if index == self._intermediate:
                tapped = x
        return x if self.after_norm is None else self.after_norm(x), tapped, new_state

    def _outputs(self, x: Tensor, tapped: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """What a step gives, of encoded frames (B, U, D), those of the intermediate block and their lengths."""
        if self.out_proj is not None:
            x = self.out_proj(x)
        outputs = (x.transpose(1, 2), lengths)
        return outputs if self._intermediate is None else (*outputs, tapped.transpose(1, 2), lengths)

    def graph_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`."""
        if problem := self.stream_problem():
            return problem
        if self._contexts[0].left == ALL:
            return "attention sees all frames before; --att_context_size LEFT RIGHT with a number limits them"
        return ""

    @property
    def graph_chunk(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: the frames of a chunk of attention."""
        return self.stream_delay().stride * int(self._contexts[0].chunk)

    @property
    def graph_late(self) -> int:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: whole chunks of attention."""
        first, chunk = self._first(), int(self._contexts[0].chunk)
        return first % chunk - first

    def _first(self) -> int:
        """Where the frames begin that subsampling gives of a chunk in a graph."""
        return reduce(lambda first, window: window.first(first), self.pre_encode.windows, 0)

    def graph_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.StreamsInGraph`: zeros stand for what attention may see."""
        context, state = self._contexts[0], dict(self.initial_state(batch))
        state |= prefixed(self.pre_encode.initial_state(batch, first=0), "pre_encode")
        # Chunks of attention are counted from the first frame of the recording.
        state["waiting"] = state["waiting"].new_zeros(batch, self._first() % int(context.chunk), self._size)
        for index in range(len(self._layers())):
            key = f"layers.{index}.attention"
            state[key] = state[key].new_zeros(batch, int(context.left) * int(context.chunk), self._size)
        state["num_frames"] = state["num_frames"].expand(batch).clone()
        return state

    def _layers(self) -> list[ConformerLayer]:
        return [layer for layer in self.layers if isinstance(layer, ConformerLayer)]

    def _context(self, num_frames: int, device: torch.device) -> AttentionContext:
        """That of a batch: drawn in training, where there are several."""
        if self.training and self._is_dynamic:
            return drawn_context(num_frames, self._draws_left, device)
        if self.training and len(self._contexts) > 1:
            drawn = self._context_table[torch.multinomial(self._context_probs, 1)]
            return AttentionContext(*drawn.squeeze(0).unbind())
        return self._contexts[0]


def _contexts(sizes: tuple[int, int] | Sequence[tuple[int, int]] | None, style: ContextStyle) -> list[AttentionContext]:
    one_or_several: Sequence[Any] = sizes or [(-1, -1)]
    is_one = isinstance(one_or_several[0], int)
    contexts = []
    for left, right in [one_or_several] if is_one else one_or_several:
        if (left, right) == (-1, -1):
            contexts.append(FULL_CONTEXT)
        elif style == "regular" or right == -1:
            contexts.append(AttentionContext(1, ALL if left == -1 else left, ALL if right == -1 else right))
        elif left > 0 and left % (right + 1):
            problem, got = "the first number of att_context_size must be whole chunks", f"{[left, right]}"
            wanted = f"a multiple of {right + 1}, for one more than the second number"
            raise UsageError(problem, place=_PLACE, got=got, wanted=wanted)
        else:
            contexts.append(AttentionContext(right + 1, ALL if left == -1 else left // (right + 1), 0))
    return contexts


def _probabilities(of_pairs: Sequence[float] | None, number: int) -> Tensor:
    if of_pairs is None:
        return torch.full((number,), 1 / number)
    if len(of_pairs) != number or abs(sum(of_pairs) - 1) > 1e-6:
        wanted = f"{number} that sum to 1, one for each pair of att_context_size"
        raise UsageError("att_context_probs is wrong", place=_PLACE, got=str(list(of_pairs)), wanted=wanted)
    return torch.tensor(of_pairs)


def _subsampling(
    kind: str, factor: int, feat_in: int, feat_out: int, channels: int, is_causal: bool, is_masked: bool
) -> ConvSubsampling | StackingSubsampling | LinearInput:
    if is_causal and kind not in ("striding", "dw_striding"):
        wanted = "striding or dw_striding"
        raise UsageError("causal_downsampling has no such subsampling", place=_PLACE, got=kind, wanted=wanted)
    if factor == 1:
        return LinearInput(feat_in, feat_out)
    if kind in ("stacking", "stacking_norm"):
        return StackingSubsampling(factor, feat_in, feat_out, kind == "stacking_norm")
    if factor & (factor - 1) and (kind, factor) != ("conv2d", 6):
        wanted = "2, 4, 8 or 16, or with conv2d 6"
        raise UsageError("subsampling_factor is no power of 2", place=_PLACE, got=str(factor), wanted=wanted)
    return ConvSubsampling(kind, factor, feat_in, feat_out, channels, is_causal, is_masked)


def _frames_before(context: str | tuple[int, int] | None, kernel_size: int) -> int:
    """Frames before a frame that a depthwise convolution sees."""
    if context is None:
        return kernel_size // 2
    if isinstance(context, str):
        return kernel_size - 1
    if min(context) < 0 or sum(context) != kernel_size - 1:
        wanted = f"causal, or two numbers that sum to {kernel_size - 1}, one less than conv_kernel_size"
        raise UsageError("conv_context_size is wrong", place=_PLACE, got=str(list(context)), wanted=wanted)
    return context[0]


def _check_norm(norm: str, size: int) -> None:
    groups = norm.removeprefix("group_norm")
    is_group = norm != groups and groups.isdecimal() and int(groups) > 0 and size % int(groups) == 0
    if norm not in ("batch_norm", "layer_norm") and not is_group:
        wanted = f"batch_norm, layer_norm or group_norm with a number that divides {size} behind it"
        raise UsageError("conv_norm_type is not known", place=_PLACE, got=norm, wanted=wanted)


def _drop_probs(num_layers: int, last: float, mode: str, start: int) -> list[float]:
    """The probability with which each layer is left out."""
    if start > num_layers:
        raise UsageError(
            "stochastic_depth_start_layer is too large", place=_PLACE, got=str(start), wanted=f"1 to {num_layers}"
        )
    several = num_layers - start
    dropped = [last if mode == "uniform" else last * (index + 1) / several for index in range(several)]
    return [0.0] * start + dropped
