"""AudioPreprocessor: frame sizes, ports, blocks, padding and chunks, which all preprocessors share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F

from nemo_asr.features.spectra import (
    OWN_FRAMING,
    Framing,
    blocks,
    centred,
    exported_chunk_power,
    exported_power_spectra,
    extended_signal,
    fill_beyond_,
    first_samples,
    frame_count,
    next_samples,
    own_samples,
    power_spectra,
    splice_frames,
    window_function,
)
from nemo_asr.run.arguments import FrameSamples, FrameSeconds, SampleRate
from nemo_lite import NonTrainableNM
from nemo_lite.backends.pytorch.streaming import Delay, SlidingWindow, State, larger, num_new
from nemo_lite.base.errors import UsageError
from nemo_lite.core.neural_types import (
    AudioSignal,
    AxisKind,
    AxisType,
    ChannelType,
    LengthsType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, ceil_div, named

# On CPU, how many windowed samples belong to the utterances that go through all steps together: enough for the cost of
# the calls to vanish. See `SPECTRUM_VALUES` of `spectra`.
ROWS_VALUES = 2**22

SecondsOrSamples: TypeAlias = tuple[FrameSeconds | None, FrameSamples | None]  # of which one is given

# With pad_to="max" batches are padded to the longest utterance of NeMo's LibriSpeech recipes.
MAX_SECONDS = 16.7
FRAMES_MULTIPLE = 16
_MOST_SAMPLES = 65_536
_MOST_SPECTRUM_VALUES = 2**24  # of a second; speech at 16 kHz has 100 frames of 512


def audio_ports(sample_rate: int) -> Ports:
    """The output ports of data layers of recordings without texts."""
    return {
        "audio_signal": NeuralType("B T", AudioSignal(freq=sample_rate)),
        "a_sig_length": NeuralType("B", LengthsType()),
    }


class AudioPreprocessor(NonTrainableNM):
    """Base of the preprocessors: B utterances of T samples to B x D features x U frames.

    Frame t is centred at sample t * hop; n samples make ceil(n / hop) frames (with frame splicing, fewer), unless
    ``framing`` is that of an older or newer NeMo. Each
    utterance is treated as if it stood alone, mirrored at its beginning and followed by silence; NeMo mirrors the end
    of the batch's longest utterance as well. Frames beyond an utterance hold ``pad_value``. Samples may be of any scale
    and type, and are never modified.

    On CPU the work is done in blocks that fit the cache, up to the end of the longest utterance; sizes follow from the
    values of ``length`` there. An exporter (``torch.export``, and so ONNX) sees plain operations instead, with the same
    result, and the sizes of the batch.

    No weights, no gradients, float32 throughout; the window and the filters follow the module's device and are not part
    of its state.

    Subclasses set the class attributes and implement :meth:`_bands`, and :meth:`_finish` where bands are not the
    features yet.

    Args:
        sample_rate: Hz.
        window_size: a frame's window, as (seconds, samples) of which one is given.
        window_stride: from frame to frame, likewise.
        n_fft: samples of a frame; by default the next power of 2.
        window: see :func:`window_function`.
        periodic: the window in its periodic form.
        name: the module's name.

    Arguments of subclasses:
        window_size: seconds of a frame's window.
        window_stride: seconds from frame to frame.
        n_window_size: the window in samples; ``window_size`` is then None.
        n_window_stride: the stride in samples; ``window_stride`` is then None.
        window: hann, hamming, blackman, bartlett, or ones.
        preemph: coefficient of the pre-emphasis, or None.
        features: mel bands.
        lowfreq: where the first band begins, in Hz.
        highfreq: where the last band ends, in Hz; by default half the sample rate.
        pad_value: the value of frames behind an utterance's last one.

    Raises:
        UsageError: both or neither of a pair, nothing positive, or a window longer than ``n_fft``.
        UnknownNameError: another window.
    """

    keep_float32 = True
    spectrogram_type: ClassVar[type[ChannelType]] = SpectrogramType

    num_features: int
    num_bands: int
    dither: float = 0.0
    preemph: float | None = None
    pad_to: int | Literal["max"] = 0
    pad_value: float = 0.0
    frame_splicing: int = 1
    framing: Framing = OWN_FRAMING
    window: torch.Tensor

    def __init__(
        self,
        sample_rate: SampleRate,
        window_size: SecondsOrSamples,
        window_stride: SecondsOrSamples,
        n_fft: FrameSamples | None,
        window: str | None,
        *,
        periodic: bool,
        name: str | None,
    ) -> None:
        super().__init__(name)
        place = type(self).__name__
        self.sample_rate = sample_rate
        self.win_length = self._num_samples("window_size", *window_size)
        self.hop_length = self._num_samples("window_stride", *window_stride)
        if self.win_length > _MOST_SAMPLES:
            wanted = f"at most {_MOST_SAMPLES}"
            raise UsageError("the window is too long", place=place, got=f"{self.win_length} samples", wanted=wanted)
        self.n_fft = n_fft or 2 ** math.ceil(math.log2(self.win_length))
        if self.win_length > self.n_fft:
            got, remedy = f"{self.win_length} and {self.n_fft} samples", "raise n_fft, or leave it out"
            raise UsageError("the window is longer than n_fft", place=place, got=got, remedy=remedy)
        if (values := self.sample_rate // self.hop_length * self.n_fft) > _MOST_SPECTRUM_VALUES:
            got, wanted = f"{values} numbers (frames x n_fft)", f"at most {_MOST_SPECTRUM_VALUES}"
            problem, remedy = "the spectrum of a second of audio is too large", "raise window_stride, or lower n_fft"
            raise UsageError(problem, place=place, got=got, wanted=wanted, remedy=remedy)
        weights = window_function(window, self.win_length, periodic=periodic)
        self.register_buffer("window", centred(weights, self.n_fft), persistent=False)

    def compared_in_evaluation(self) -> Mapping[str, Any]:
        """All arguments but those that do not change what a feature means."""
        arguments = super().compared_in_evaluation()
        return {key: value for key, value in arguments.items() if key not in ("dither", "pad_to", "pad_value")}

    def _num_samples(self, argument: str, seconds: float | None, samples: int | None) -> int:
        place = type(self).__name__
        if bool(seconds) == bool(samples):
            got = "both" if seconds else "neither"
            remedy = f"pass {argument}=None as well" if seconds else ""
            raise UsageError(f"give one of {argument} and n_{argument}", place=place, got=got, remedy=remedy)
        # 0.29 * 100 is 28.999999999999996.
        number = int(seconds * self.sample_rate + 1e-6) if seconds else samples or 0
        if number < 1:
            got = f"{seconds} s at {self.sample_rate} Hz" if seconds else str(samples)
            raise UsageError(f"{argument} must be at least one sample", place=place, got=got)
        return number

    @property
    def input_ports(self) -> Ports:
        return {
            "input_signal": NeuralType("B T", AudioSignal(self.sample_rate)),
            "length": NeuralType("B", LengthsType()),
        }

    @property
    def output_ports(self) -> Ports:
        features = AxisType(AxisKind.Dimension, self.num_features * self.frame_splicing)
        axes = (AxisType(AxisKind.Batch), features, AxisType(AxisKind.Time))
        return {
            "processed_signal": NeuralType(axes, self.spectrogram_type()),
            "processed_length": NeuralType("B", LengthsType()),
        }

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """``B D T`` with T = ceil(samples / hop), or floor(samples / hop) + 1, as the generation of NeMo has it."""
        batch, samples = shapes["input_signal"]
        frames = named("T", ceil_div(samples + self._surplus_samples(), self.hop_length * self.frame_splicing))
        spectrogram = (batch, self.num_features * self.frame_splicing, frames)
        return {"processed_signal": spectrogram, "processed_length": (batch,)}

    @property
    def summary(self) -> str:
        """What the features are, in a line: how many, and whose."""
        return f"{self.num_features} a frame; frames of {self.framing.files}"

    @property
    def featurizer(self) -> Featurizer:
        """NeMo's inner part, as scripts call it and set its ``dither`` and ``pad_to``: this module itself."""
        return Featurizer(self)

    def get_features(self, signal: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Features (B, D, T) alone."""
        features: torch.Tensor = self(signal, length)[0]
        return features

    def get_seq_len(self, length: torch.Tensor) -> torch.Tensor:
        """(B,) frames of so many samples, int64."""
        return frame_count(self._valid_frames(length.long()), self.frame_splicing)

    @torch.no_grad()
    def forward(self, input_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, D, T) and the valid frames of each utterance (B,)."""
        length = length.to(input_signal.device, torch.int64)
        num_valid, num_frames = self._valid_frames(length), self._num_frames(input_signal.shape[1])
        if torch.compiler.is_exporting():
            power = self._exported_power(own_samples(input_signal, length), length, num_frames)
            return self._spliced(self.of_bands(self._bands(power).mT, num_valid), num_valid)
        shape = (input_signal.shape[0], self.num_features, self._padded(num_frames))
        features = torch.full(shape, self.pad_value, dtype=torch.float32, device=input_signal.device)
        cost, limit = num_frames * self.n_fft, ROWS_VALUES
        for rows in blocks(shape[0], cost, limit, input_signal):
            block = self._features(input_signal[rows], length[rows], num_valid[rows])
            features[rows, :, : block.shape[2]] = block
        return self._spliced(features, num_valid)

    def of_bands(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Features (B, D, T) of the powers (B, num_bands, U) of all bands; for exporters.

        Args:
            bands: free to be changed; another program may have computed them.
            num_valid: (B,) frames that belong to each utterance.
        """
        features = fill_beyond_(self._moved(self._finish(bands, num_valid)), num_valid, self.pad_value)
        return F.pad(features, (0, self._padded(bands.shape[2]) - bands.shape[2]), value=self.pad_value)

    def stream_problem(self) -> str:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        if not self._has_own("step") and not self._has_own("_step"):
            return f"the frames of {type(self).__name__} have no form in chunks"
        return ""

    def graph_problem(self) -> str:
        """Why it cannot run in chunks in an exported graph, where all sizes are fixed; empty if it can."""
        if not self._has_own("_framed"):
            return f"the frames of {type(self).__name__} have no form in chunks of a file"
        return self.stream_problem()

    def _has_own(self, method: str) -> bool:
        """Whether a method knows the frames of this class: one that frames the signal otherwise needs its own."""
        of_method, of_frames = (next(c for c in type(self).__mro__ if name in vars(c)) for name in (method, "_power"))
        return issubclass(of_method, of_frames)

    def stream_delay(self) -> Delay:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        return self._frame_delay().then(self._splices.delay)

    def _frame_delay(self) -> Delay:
        """When frames are there, before splicing."""
        return Delay(self.hop_length, self.n_fft - self.n_fft // 2 - 1)

    @property
    def _splices(self) -> SlidingWindow:
        """The frames that become one, those behind the last one included."""
        return SlidingWindow(self.frame_splicing, self.frame_splicing, 0, self.frame_splicing - 1)

    def initial_state(self, batch: int) -> State:
        """See :class:`nemo_lite.backends.pytorch.streaming.Streams`."""
        state = dict(self._frame_state(batch))
        if self.frame_splicing != 1:
            state["splices"] = self._splices.initial((batch, self.num_features, 0), 2, self.window)
        return state

    def _frame_state(self, batch: int) -> State:
        return first_samples(batch, self.window)

    @torch.no_grad()
    def step(
        self, input_signal: torch.Tensor, length: torch.Tensor, *, state: State, last: bool
    ) -> tuple[tuple[torch.Tensor, ...], State]:
        """The next samples (B, T) to the features (B, D, U) of the frames that they complete."""
        features, new_state = self._step(input_signal, state, last)
        if self.frame_splicing != 1:
            features, kept = self._splices.take(state["splices"], features, 2, last, self.pad_value)
            features = splice_frames(features, self.frame_splicing)
            new_state = {**new_state, "splices": kept}
        return (features, num_new(features, 2)), new_state

    def _step(self, input_signal: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        """The same before splicing."""
        samples, number, new_state = next_samples(
            input_signal, state, last, self.n_fft, self.hop_length, self.preemph, self.framing
        )
        features = samples.new_empty(samples.shape[0], self.num_bands, number)
        for frames, power in power_spectra(samples, self.window, self.hop_length, number) if number else ():
            features[:, :, frames] = self._bands(power).mT
        return self._finish(features, num_new(features, 2)), new_state

    def graph_window(self, num_frames: int) -> tuple[int, int]:
        """Samples before the beginning of the recording and samples in all that so many first frames see."""
        return 1 + self.n_fft // 2, 1 + self.n_fft + (num_frames * self.frame_splicing - 1) * self.hop_length

    def graph_state(self, batch: int) -> State:
        """What is kept between chunks in a graph, all zeros at first."""
        return {}

    def of_window(
        self, signal: torch.Tensor, length: torch.Tensor, at_start: torch.Tensor, state: State
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Features (B, D, U) of a chunk of frames, how many there are from its first frame to the end, and what is kept
        for the next chunk; in a graph.

        Args:
            signal: (B, T): the samples of :meth:`graph_window`. Zeros stand before and behind the recording.
            length: (B,) samples from the first one that is not before the beginning to the end of the recording: below
                0 behind it, more than there are as long as the end is not known.
            at_start: (B,) whether the first frame is that of the recording.
            state: of :meth:`graph_state`, or what the chunk before kept.
        """
        power, num_valid = self._framed(signal, length, at_start)
        features, new_state = self._moved_on(self._finish(self._bands(power).mT, num_valid), state, last=False)
        if self.frame_splicing != 1:
            is_there = torch.arange(features.shape[2], device=features.device) < num_valid[:, None, None]
            features = splice_frames(torch.where(is_there, features, self.pad_value), self.frame_splicing)
            num_valid = frame_count(num_valid, self.frame_splicing)
        return features, num_valid, new_state

    def _framed(
        self, signal: torch.Tensor, length: torch.Tensor, at_start: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Power (B, U, n_fft // 2 + 1) of the frames of :meth:`of_window`, and how many there are to the end."""
        return exported_chunk_power(
            signal, length, at_start, self.window, self.hop_length, self.preemph, framing=self.framing
        )

    def _spliced(self, features: torch.Tensor, num_valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.frame_splicing == 1:
            return features, num_valid
        num_valid = frame_count(num_valid, self.frame_splicing)
        return splice_frames(features, self.frame_splicing), num_valid

    def _features(self, signal: torch.Tensor, length: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Some utterances from samples to finished features."""
        samples = own_samples(signal, length, dither=self.dither if self.training else 0.0)
        num_frames = self._num_frames(samples.shape[1])
        bands = samples.new_empty(samples.shape[0], self.num_bands, num_frames)
        for frames, power in self._power(samples, length, num_frames):
            bands[:, :, frames] = self._bands(power).mT
        return fill_beyond_(self._moved(self._finish(bands, num_valid)), num_valid, self.pad_value)

    def _moved(self, features: torch.Tensor) -> torch.Tensor:
        """What is done to the features of a whole utterance that depends on the frames before."""
        return features

    def _moved_on(self, features: torch.Tensor, state: State, last: bool) -> tuple[torch.Tensor, State]:
        """The same of a chunk, with what of the frames before is kept."""
        return features, {}

    # The frames: how many there are, and what is in them. A preprocessor with other frames has its own of these.

    def _surplus_samples(self) -> int:
        """With so many samples more, there is a frame for each hop that they fill or begin."""
        return self.framing.extra

    def _num_frames(self, num_samples: int) -> int:
        """The frames that are computed of so many samples."""
        return frame_count(num_samples + self._surplus_samples(), self.hop_length)

    def _valid_frames(self, length: torch.Tensor) -> torch.Tensor:
        """(B,) the frames that belong to so many samples."""
        return self.framing.valid_frames(length, self.hop_length)

    def _power(
        self, samples: torch.Tensor, length: torch.Tensor, num_frames: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Which frames, and their power (B, frames of the block, n_fft // 2 + 1), of :func:`own_samples`."""
        extended = extended_signal(samples, self.n_fft, self.preemph, length=length, framing=self.framing)
        return power_spectra(extended, self.window, self.hop_length, num_frames)

    def _exported_power(self, samples: torch.Tensor, length: torch.Tensor, num_frames: int) -> torch.Tensor:
        """The power of all frames, in operations that an exported graph runs fast."""
        return exported_power_spectra(
            samples,
            self.window,
            self.win_length,
            self.hop_length,
            num_frames,
            self.preemph,
            length=length,
            framing=self.framing,
        )

    def _bands(self, power: torch.Tensor) -> torch.Tensor:
        """Powers (B, U, n_fft // 2 + 1) of some frames to the values (B, U, num_bands) that are kept of them."""
        raise NotImplementedError(f"{type(self).__name__} has no _bands")

    def _finish(self, bands: torch.Tensor, num_valid: torch.Tensor) -> torch.Tensor:
        """Bands (B, num_bands, U) of whole utterances, free to be changed, to features (B, num_features, U)."""
        return bands

    def _padded(self, num_frames: int) -> int:
        """Frames before splicing, such that the frames behind it are as many as ``pad_to`` says."""
        splicing = self.frame_splicing
        spliced = frame_count(num_frames, splicing)
        if self.pad_to == "max":
            hop = self.hop_length * splicing
            shortest_padded = frame_count(int(MAX_SECONDS * self.sample_rate), hop)
            spliced = larger(shortest_padded, spliced)
        multiple = FRAMES_MULTIPLE if self.pad_to == "max" else self.pad_to or 1
        return frame_count(spliced, multiple) * multiple * splicing


class Featurizer:
    """A preprocessor that gives features only when called; all its attributes are the preprocessor's."""

    def __init__(self, preprocessor: AudioPreprocessor) -> None:
        object.__setattr__(self, "_preprocessor", preprocessor)

    def __call__(self, signal: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._preprocessor.get_features(signal, length)
        return features

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_preprocessor"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._preprocessor, name, value)
