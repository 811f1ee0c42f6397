"""Small configurations with every kind of section, what is put into them, and what a reading of one costs."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from nemo_lite.base.errors import NemoLiteError
from nemo_lite.core.app_state import AppState

TEXTS = """\
model: Texts
sample_rate: 16000
labels: &labels [" ", a, b, c]
AudioToTextDataLayer:
  min_duration: 0.1
  num_workers: 0
  max_corrupt: 0.1
  train:
    bucketing: true
    max_batch_seconds: 100
    augmentor:
      speed: {prob: 0.5, sr: 16000, num_rates: 3}
      gain: {prob: 1.0, min_gain_dbfs: -6, max_gain_dbfs: 6}
      white_noise: {prob: 0.1, min_level: -90, max_level: -46}
      shift: {prob: 0.2, min_shift_ms: -5.0, max_shift_ms: 5.0}
  eval: {shuffle: false}
AudioToMelSpectrogramPreprocessor: {features: 16, n_fft: 512, window_size: 0.02, window_stride: 0.01, dither: 0.00001,
  pad_to: 16, preemph: 0.97, normalize: per_feature, mag_power: 2.0, lowfreq: 0, highfreq: 8000, frame_splicing: 1}
SpectrogramAugmentation: {freq_masks: 1, time_masks: 1, time_width: 0.1, rect_masks: 2, rect_time: 5}
MultiplyBatch: {mult_batch: 2}
JasperEncoder:
  activation: relu
  conv_mask: true
  jasper:
    - {filters: 8, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.1, residual: false, separable: true}
    - {filters: 8, repeat: 2, kernel: 5, stride: 1, dilation: 2, dropout: 0, residual: true, groups: 2, se: true}
JasperDecoderForCTC: {vocabulary: *labels}
CTCLossNM: {label_smoothing: 0.1}
"""

HEADERS = """\
sample_rate: &rate 16000
labels: &labels [" ", "a", "b", "c"]
language: en
AudioToTextDataLayer_train:
  header: {full_spec: nemo.collections.asr.AudioToTextDataLayer}
  init_params: {sample_rate: *rate, labels: *labels, max_duration: 5.0, bos_id: 0, pad_id: 2,
    augmentor: {time_stretch: {prob: 1.0, n_fft: 512, num_rates: 0, min_speed_rate: 0.9}}}
AudioToTextDataLayer_eval:
  header: {full_spec: nemo.collections.asr.AudioToTextDataLayer}
  init_params: {sample_rate: *rate, labels: *labels, shuffle: false}
AudioToMFCCPreprocessor:
  header: {full_spec: nemo_asr.AudioToMFCCPreprocessor}
  init_params: {n_mels: 16, n_mfcc: 8, n_fft: 512, n_window_size: 320, window_size: null, lowfreq: 10, norm: ortho}
ContextNetEncoder:
  header: {full_spec: nemo_asr.ContextNetEncoder}
  init_params:
    feat_in: 8
    activation: swish
    normalization_mode: group
    norm_groups: 4
    residual_mode: stride_add
    jasper:
      - {filters: 8, repeat: 2, kernel: [5], stride: [2], dilation: [1], dropout: 0.1, residual: true,
         separable: true, heads: 8, se: true, se_context_size: -1, se_reduction_ratio: 4}
ContextNetDecoderForCTC:
  header: {full_spec: nemo_asr.ContextNetDecoderForCTC}
  init_params: {hidden_size: 12}
BeamSearchCTCDecoder:
  header: {full_spec: nemo_asr.BeamSearchCTCDecoder}
  init_params: {beam_size: 4, alpha: 0.5, beta: 1.0, min_log_prob: -6.0, hotwords: [abc, ca]}
"""

CLASSES = """\
name: classes
labels: [background, speech]
AudioToSpeechLabelDataLayer: {time_length: 0.63, sample_rate: 16000, bucketing: false,
  train: {augmentor: {noise: {prob: 0.5, manifest_path: noise.json, min_snr_db: 10}}}}
AudioToSpectrogramPreprocessor: {n_fft: 128, window_size: 0.005, window: hamming, normalized: true}
JasperEncoder:
  feat_in: 65
  activation: hardtanh
  init_mode: kaiming_normal
  residual_mode: max
  jasper:
    - {filters: 8, repeat: 1, kernel: 3, stride: 1, dilation: 1, dropout: 0.1, residual: true}
JasperDecoderForSpkrClass: {emb_sizes: "16,8", pool_mode: superVector, feat_in: 8, num_classes: 2}
CrossEntropyLossNM: {weight: [1.0, 2.0], reduction: mean}
"""

VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "0.5",
        "1.5",
        "-0.0",
        "65535",
        "65536",
        "100000",
        "2147483648",
        "1000000000",
        "1" + "0" * 27,
    ),
    *("9223372036854775807", "18446744073709551616", "1" * 30_000, "0x" + "f" * 5000, "1e308", "1e-320", ".5", "1_000"),
    *(".nan", ".inf", "-.inf", "null", "~", "true", "no", '""', "[]", "{}", "x" * 5000, "swish", "max", "2001-01-01"),
    *("[[[[1]]]]", "[1, 2]", "[0]", "[10000000]", "[null]", "[.nan]", "[a, a]", "['a', 'b']", "{a: 1}", "{prob: 1}"),
    *(
        "&a [*a]",
        "*undefined",
        "{<<: {a: 1}}",
        "<<",
        "!!python/object/apply:os.system [ls]",
        "!!binary aGk=",
        "!!int x",
    ),
    *("|", "- - - 1", "? a", "[,]", "'", '"', "!", "%", "@", "\u202e", "\u0663", '"\\ud800"', '"\\0"', "0b1", "+1"),
)
_PLACES = re.compile(r"(?<=: )[^\n,{}\[\]]+|(?<=\[)[^\n\[\]]*(?=\])")
# Sections that a configuration can do without: a shorter one is read in less time.
_OPTIONAL = re.compile(
    r"^(?:\w+DataLayer\w*|\w+Augmentation|MultiplyBatch|\w+LossNM|\w+CTCDecoder|\w+ForCTC):.*\n(?: .*\n)*", re.MULTILINE
)
_LIMIT_SECONDS = 5


class Cost(NamedTuple):
    """What a call gave, or the error that it raised; processor time in seconds; memory that it took, in MB."""

    outcome: object
    seconds: float
    megabytes: float


def mutated(bases: tuple[str, ...], rng: random.Random) -> str:
    """One of the texts with up to five changes: values, keys, lines, letters."""
    text = _OPTIONAL.sub(lambda section: rng.choice(("", section[0])), rng.choice(bases))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        lines, share = text.split("\n"), rng.random()
        line, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        found = [*(_PLACES if share < 0.75 else re.compile(r"\b\w+(?=:)")).finditer(text)]
        if share < 0.85 and found:
            place = rng.choice(found)
            new = rng.choice(VALUES) if share < 0.75 else rng.choice(found)[0]
            text = text[: place.start()] + new + text[place.end() :]
        elif share < 0.95:
            lines[line : line + rng.randrange(2)] = [" " * rng.randrange(5) + lines[other].lstrip()][: rng.randrange(2)]
            text = "\n".join(lines)
        else:
            first = rng.randrange(len(text) + 1)
            text = text[:first] + rng.choice((chr(rng.randrange(1, 128)), *VALUES)) + text[first + rng.randrange(20) :]
    return text


def cost_of(call: Callable[[], object]) -> Cost:
    """Run a call. An error that is not ours goes on, and so does the interruption of one that takes over 5 s."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"more than {_LIMIT_SECONDS} s of processor time")

    AppState().modules.clear()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the largest memory so far is that of now
    before, start = _largest_megabytes(), time.process_time()
    previous = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, _LIMIT_SECONDS)
    try:
        outcome = call()
    except NemoLiteError as error:
        outcome = error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    return Cost(outcome, time.process_time() - start, _largest_megabytes() - before)


def _largest_megabytes() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024
