"""A model's YAML, in each schema of NeMo 0.x, into modules; and all that can be wrong with it."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from nemo_asr.features.preprocessors import AudioToMelSpectrogramPreprocessor, AudioToSpectrogramPreprocessor
from nemo_asr.tasks.recipe import Recipe, load_recipe
from nemo_lite.base.errors import ConfigError, UsageError
from nemo_lite.core.neural_types import LengthsType, NeuralType, SpectrogramType

Write = Callable[[str], Path]

FLAT = """\
model: Tiny
sample_rate: 16000
dropout: &drop 0.1

AudioToTextDataLayer:
  max_duration: 5.0
  normalize_transcripts: false
  train: {shuffle: true}
  eval: {shuffle: false, max_duration: null}

AudioToMelSpectrogramPreprocessor:
  features: 16
  n_fft: 512

SpectrogramAugmentation:
  freq_masks: 1

JasperEncoder:
  activation: relu
  jasper:
    - {filters: 8, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: *drop, residual: false}
    - {filters: 12, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}

labels: [" ", "a", "b", "c"]
"""

HEADERS = """\
sample_rate: &rate 16000
labels: &labels [" ", "a", "b", "c"]

AudioToTextDataLayer_train:
  header: {full_spec: nemo.collections.asr.AudioToTextDataLayer}
  init_params: {sample_rate: *rate, labels: *labels, shuffle: true, max_duration: 5.0}

AudioToTextDataLayer_eval:
  header: {full_spec: nemo.collections.asr.AudioToTextDataLayer}
  init_params: {sample_rate: *rate, labels: *labels, shuffle: false}

AudioToMelSpectrogramPreprocessor:
  header: {full_spec: nemo.collections.asr.AudioToMelSpectrogramPreprocessor}
  init_params: {sample_rate: *rate, features: &features 16}

JasperEncoder:
  header: {full_spec: nemo.collections.asr.JasperEncoder, nemo_core_version: 0.11.0}
  init_params:
    feat_in: *features
    activation: relu
    jasper:
      - {filters: 8, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.1, residual: false}
      - {filters: &out 12, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}

JasperDecoderForCTC:
  header: {full_spec: nemo.collections.asr.JasperDecoderForCTC}
  init_params: {feat_in: *out, num_classes: 4}
"""

MODEL = """\
header: {full_spec: nemo.collections.asr.models.asrconvctcmodel.QuartzNet, nemo_core_version: 0.11.0}
init_params:
  preprocessor_params:
    header: {full_spec: nemo.collections.asr.AudioToMelSpectrogramPreprocessor}
    init_params: {features: 16}
  encoder_params:
    header: {full_spec: nemo.collections.asr.JasperEncoder}
    init_params:
      feat_in: 16
      activation: relu
      jasper:
        - {filters: 8, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: 0.1, residual: false}
        - {filters: 12, repeat: 1, kernel: [1], stride: [1], dilation: [1], dropout: 0.0, residual: false}
  decoder_params:
    header: {full_spec: nemo.collections.asr.JasperDecoderForCTC}
    init_params: {feat_in: 12, num_classes: 4, vocabulary: [" ", "a", "b", "c"]}
  spec_augment_params:
    header: {full_spec: nemo.collections.asr.SpectrogramAugmentation}
    init_params: {freq_masks: 1}
"""

FIRST = FLAT.replace("AudioToMelSpectrogramPreprocessor:", "AudioPreprocessing:\n  feat_type: logfbank")
SCHEMAS = {"flat": FLAT, "headers": HEADERS, "model": MODEL, "first generation": FIRST}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a.yaml into the current folder, so that messages begin with ``a.yaml``."""
    monkeypatch.chdir(tmp_path)

    def to_file(text: str) -> Path:
        Path("a.yaml").write_text(text, encoding="utf-8")
        return Path("a.yaml")

    return to_file


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    soundfile.write(tmp_path / "a.wav", np.zeros(16000, np.float32), 16000)
    line = {"audio_filepath": "a.wav", "duration": 1.0, "text": "abc"}
    (tmp_path / "m.json").write_text(json.dumps(line) + "\n")
    return str(tmp_path / "m.json")


def problems_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    return str(caught.value).splitlines()


def with_(old: str, new: str, text: str = FLAT) -> str:
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the file"
    return text.replace(old, new)


def line_of(needle: str, text: str = FLAT) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if needle in line)


# ---- what loads ----


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_gives_modules_that_run_on_each_other(write: Write, manifest: str, schema: str) -> None:
    recipe = load_recipe(write(SCHEMAS[schema]))
    assert (recipe.sample_rate, recipe.labels) == (16000, [" ", "a", "b", "c"])
    layer = recipe.data_layer(manifest, training=True, batch_size=1)
    assert len(layer) == 1
    audio, lengths = torch.randn(2, 16000), torch.tensor([16000, 8000])
    features, frames = recipe.preprocessor()(input_signal=audio, length=lengths)
    encoded, encoded_frames = recipe.encoder()(audio_signal=features, length=frames)
    log_probs = recipe.decoder()(encoder_output=encoded)
    assert log_probs.shape[2] == 5
    targets, target_lengths = torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])
    loss = recipe.loss()(
        log_probs=log_probs, targets=targets, input_length=encoded_frames, target_length=target_lengths
    )
    assert torch.isfinite(loss)
    assert recipe.search()(log_probs=log_probs, log_probs_length=encoded_frames).shape == log_probs.shape[:2]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_of_one_network_gives_the_same_parameters(write: Write, schema: str) -> None:
    def shapes(recipe: Recipe) -> dict[str, torch.Size]:
        modules = {"encoder": recipe.encoder(), "decoder": recipe.decoder()}
        return {
            f"{kind}.{key}": value.shape
            for kind, module in modules.items()
            for key, value in module.state_dict().items()
        }

    assert shapes(load_recipe(write(SCHEMAS[schema]))) == shapes(load_recipe(write(FLAT)))


def test_a_recipe_is_named_by_its_file_or_by_itself(write: Write) -> None:
    assert load_recipe(write(FLAT)).name == "Tiny"
    assert load_recipe(write(HEADERS)).name == "a"


def test_train_and_eval_arguments_lie_over_the_shared_ones(write: Write, manifest: str) -> None:
    recipe = load_recipe(write(FLAT))
    training = recipe.data_layer(manifest, training=True, batch_size=2).init_params
    assert (
        training.items()
        >= {
            "manifest_filepath": manifest,
            "labels": recipe.labels,
            "batch_size": 2,
            "sample_rate": 16000,
            "max_duration": 5.0,
            "normalize_transcripts": False,
            "shuffle": True,
        }.items()
    )
    evaluating = recipe.data_layer(manifest, training=False, batch_size=2).init_params
    assert (evaluating["shuffle"], evaluating["max_duration"]) == (False, None)


def test_the_default_shuffle_of_training_is_not_that_of_evaluation(write: Write, manifest: str) -> None:
    recipe = load_recipe(write(FLAT.replace("  eval: {shuffle: false, max_duration: null}\n", "")))
    shuffled = [
        recipe.data_layer(manifest, training, batch_size=2).init_params["shuffle"] for training in (True, False)
    ]
    assert shuffled == [True, False]


def test_overrides_win_over_the_file(write: Write, manifest: str) -> None:
    overrides = {"batch_size": 3, "max_duration": 9.0, "shuffle": False, "sample_rate": 8000}
    layer = load_recipe(write(FLAT)).data_layer(manifest, training=True, **overrides)
    assert layer.init_params.items() >= overrides.items()


def test_a_data_layer_without_a_batch_size_anywhere_is_refused(write: Write, manifest: str) -> None:
    with pytest.raises(ConfigError, match=r"AudioToTextDataLayer\.batch_size is missing"):
        load_recipe(write(FLAT)).data_layer(manifest, training=True)


def test_each_call_builds_a_new_module(write: Write) -> None:
    recipe = load_recipe(write(FLAT))
    assert recipe.encoder() is not recipe.encoder()


def test_loading_draws_no_random_numbers(write: Write) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    load_recipe(write(FLAT))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_optional_sections_may_be_absent_or_empty(write: Write) -> None:
    assert load_recipe(write(FLAT)).spec_augmentation() is not None
    assert load_recipe(write(FLAT)).multiply_batch() is None
    text = with_(
        "SpectrogramAugmentation:\n  freq_masks: 1", "SpectrogramAugmentation:\nMultiplyBatch: {mult_batch: 2}"
    )
    recipe = load_recipe(write(text))
    assert recipe.spec_augmentation() is None
    multiply = recipe.multiply_batch()
    assert multiply is not None
    assert multiply.init_params["mult_batch"] == 2


def test_the_loss_of_a_section_of_its_own(write: Write) -> None:
    loss = load_recipe(write(FLAT + "CTCLossNM: {zero_infinity: true}\n")).loss()
    assert (loss.init_params["num_classes"], loss.init_params["zero_infinity"]) == (4, True)


@pytest.mark.parametrize(("kind", "log"), [("logfbank", True), ("fbank", False)])
def test_the_first_generations_feat_type_says_whether_features_are_logarithms(
    write: Write, kind: str, log: bool
) -> None:
    preprocessor = load_recipe(write(FIRST.replace("logfbank", kind))).preprocessor()
    assert isinstance(preprocessor, AudioToMelSpectrogramPreprocessor)
    assert preprocessor.init_params["log"] is log


def test_the_features_of_another_preprocessor_reach_the_encoder(write: Write) -> None:
    text = with_("AudioToMelSpectrogramPreprocessor:\n  features: 16\n", "AudioToSpectrogramPreprocessor:\n")
    recipe = load_recipe(write(text))
    assert isinstance(recipe.preprocessor(), AudioToSpectrogramPreprocessor)
    assert recipe.encoder().init_params["feat_in"] == 257


def test_the_encoder_takes_over_the_frame_splicing(write: Write) -> None:
    recipe = load_recipe(write(with_("n_fft: 512", "frame_splicing: 2")))
    assert recipe.encoder().init_params["frame_splicing"] == 2


def test_anchored_values_of_the_file_are_no_sections(write: Write) -> None:
    load_recipe(write("blocks: &blocks {residual: false}\nn_mels: &n 16\n" + with_("features: 16", "features: *n")))


# ---- what is refused ----


def test_everything_wrong_is_told_at_once(write: Write) -> None:
    text = with_("max_duration: 5.0", "max_duratoin: 5.0")
    text = with_('"b", "c"]', '"b", "b"]', text)
    text = with_("freq_masks: 1", "freq_masks: one", text)
    text = with_("dropout: *drop, residual: false", "dropout: *drop, residul: false", text)
    assert problems_of(write(text + "MultiplyBach: {}\n")) == [
        "a.yaml:6:3: AudioToTextDataLayer.max_duratoin is not a key (did you mean max_duration?)",
        'a.yaml:16:3: SpectrogramAugmentation.freq_masks is "one", wanted int from 0 to 1000',
        "a.yaml:21:88: JasperEncoder.jasper[0].residul is not a key (did you mean residual?)",
        "a.yaml:24:25: label 'b' repeats the one at a.yaml:24:20",
        "a.yaml:25:1: MultiplyBach is not a key (did you mean MultiplyBatch?); one of your own needs --import FILE",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  activation: relu\n", "", "JasperEncoder.activation is missing"),
        ("relu", "rellu", 'activation "rellu" is not known'),
        ("filters: 8", "filters: 0", "JasperEncoder.jasper[0].filters is 0, wanted int from 1 to 65536"),
        ("n_fft: 512", "n_fft: 64", "AudioToMelSpectrogramPreprocessor: "),
        ("n_fft: 512", "n_ftt: 512", "AudioToMelSpectrogramPreprocessor.n_ftt is not a key (did you mean n_fft?)"),
        ("sample_rate: 16000", "sample_rate: 16k", 'a.yaml:2:1: sample_rate is "16k", wanted int'),
        ('labels: [" ", "a", "b", "c"]\n', "", "labels is missing"),
        ("labels: [", "labls: [", "labls is not a key (did you mean labels?)"),
        ('"c"]', "3]", 'label 3 is not text; put it in quotes: "3"'),
        ("dropout: &drop 0.1", "unused: 1\ndropout: &drop 0.1", "a.yaml:3:1: unused is not a key"),
        (
            "SpectrogramAugmentation:\n  freq_masks: 1",
            "JasperEncoder2:\n  x: 1",
            "JasperEncoder2 is not a key (did you mean JasperE",
        ),
        ("SpectrogramAugmentation:\n  freq_masks: 1", "SpectrogramAugmentation: 3", "holds no mapping of arguments"),
        (
            "SpectrogramAugmentation:",
            "AudioPreprocessing: {}\nSpectrogramAugmentation:",
            "AudioPreprocessing is a second preprocessor",
        ),
        (
            "train: {shuffle: true}",
            "train: {shufle: true}",
            "a.yaml:8:11: AudioToTextDataLayer.train.shufle is not a key",
        ),
        (
            "train: {shuffle: true}",
            "train: true",
            "a.yaml:8:3: AudioToTextDataLayer.train holds no mapping of arguments",
        ),
        ("shuffle: false", "shuffle: 0", "a.yaml:9:10: AudioToTextDataLayer.eval.shuffle is 0, wanted bool"),
    ],
)
def test_a_mistake_is_told_with_its_place(write: Write, old: str, new: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(write(with_(old, new))))


@pytest.mark.parametrize("section", ["AudioToMelSpectrogramPreprocessor", "JasperEncoder"])
def test_a_needed_section_that_is_missing_is_named(write: Write, section: str) -> None:
    start = FLAT.index(section)
    end = FLAT.index("\n\n", start)
    assert f"such as {section}" in "\n".join(problems_of(write(FLAT[:start] + FLAT[end:])))


def test_an_encoder_without_blocks_is_refused_with_its_place(write: Write) -> None:
    text = FLAT[: FLAT.index("    - {filters: 8")].replace("  jasper:", "  jasper: []") + "labels: [a]\n"
    assert problems_of(write(text)) == ["a.yaml:18:1: JasperEncoder: jasper has no blocks"]


def test_blocks_that_are_no_mappings_are_told_each(write: Write) -> None:
    text = FLAT[: FLAT.index("    - {filters: 8")] + "    - 3\n    - 4\nlabels: [a]\n"
    assert [problem.split(": ", 1)[1] for problem in problems_of(write(text))] == [
        "JasperEncoder.jasper[0] is 3, wanted a mapping",
        "JasperEncoder.jasper[1] is 4, wanted a mapping",
    ]


def test_features_and_feat_in_that_differ_name_both_lines(write: Write) -> None:
    text = with_("activation: relu", "activation: relu\n  feat_in: 80")
    features, feat_in = line_of("AudioToMelSpectrogramPreprocessor", text), line_of("feat_in: 80", text)
    assert problems_of(write(text)) == [
        f"a.yaml:{feat_in}:3: JasperEncoder.feat_in is 80, wanted 16: JasperEncoder.audio_signal cannot take "
        "AudioToMelSpectrogramPreprocessor.processed_signal "
        f"(AudioToMelSpectrogramPreprocessor: line {features}): got B D=16 T MelSpectrogram, "
        "wanted B D=80 T Spectrogram; D is 16, not 80. Give both modules the same size."
    ]


def test_features_by_default_and_feat_in_that_differ_name_the_section(write: Write) -> None:
    text = with_("features: 16\n  ", "", with_("activation: relu", "activation: relu\n  feat_in: 80"))
    (problem,) = problems_of(write(text))
    assert "JasperEncoder.feat_in is 80, wanted 64: JasperEncoder.audio_signal cannot take AudioToMelSp" in problem


def test_frame_splicing_that_differs_is_refused(write: Write) -> None:
    text = with_("activation: relu", "activation: relu\n  frame_splicing: 3")
    (problem,) = problems_of(write(text))
    assert "JasperEncoder.frame_splicing is 3, wanted 1: JasperEncoder.audio_signal cannot take" in problem
    assert "got B D=16 T MelSpectrogram, wanted B D=48 T Spectrogram" in problem


def test_sample_rates_that_differ_are_refused(write: Write) -> None:
    problems = problems_of(write(with_("n_fft: 512", "sample_rate: 8000")))
    assert (
        "a.yaml:13:3: AudioToMelSpectrogramPreprocessor.sample_rate is 8000, sample_rate is 16000 (line 2)" in problems
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("{num_classes: 5}", "JasperDecoderForCTC.num_classes is 5, wanted 4: vocabulary and num_classes differ"),
        (
            "{feat_in: 8}",
            "a.yaml:25:23: JasperDecoderForCTC.feat_in is 8, wanted 12: JasperDecoderForCTC.encoder_output cannot take "
            "JasperEncoder.outputs (JasperEncoder: line 18)",
        ),
        ("{vocabulary: [a, b, c, d]}", "JasperDecoderForCTC.vocabulary is not the same as labels (line"),
        ("{init_mod: x}", "JasperDecoderForCTC.init_mod is not a key (did you mean init_mode?)"),
    ],
)
def test_a_decoder_that_does_not_fit_is_refused(write: Write, params: str, message: str) -> None:
    (problem,) = problems_of(write(FLAT + f"JasperDecoderForCTC: {params}\n"))
    assert message in problem


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "asr.JasperEncoder,",
            "asr.JasperEncodr,",
            'JasperEncoder.header.full_spec "nemo.collections.asr.JasperEncodr" is not a',
        ),
        ("nemo.collections.asr.JasperEncoder,", "os.system,", '"os.system" is not a class for this'),
        ("nemo.collections.asr.JasperEncoder,", "mine.JasperEncoder,", '"mine.JasperEncoder" is not a class for this'),
        ("full_spec: nemo.collections.asr.JasperEncoder, ", "", "JasperEncoder.header has no full_spec"),
        (
            "feat_in: *features",
            "feat_n: *features",
            "JasperEncoder.init_params.feat_n is not a key (did you mean feat_in?)",
        ),
        (
            "  init_params: {feat_in: *out",
            "  init_parms: {feat_in: *out",
            "JasperDecoderForCTC.init_parms is not a key",
        ),
        (
            "num_classes: 4",
            "num_classes: 5",
            "JasperDecoderForCTC.init_params.num_classes is 5, wanted 4: vocabulary and num_classes differ",
        ),
    ],
)
def test_a_mistake_in_a_section_with_a_header_is_told(write: Write, old: str, new: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(write(with_(old, new, HEADERS))))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "asrconvctcmodel.QuartzNet",
            "x.Tacotron",
            "is not a class for this; known: ASRConvCTCModel, QuartzNet, JasperNet",
        ),
        ("decoder_params:", "decodr_params:", "init_params.decodr_params is not a key (did you mean decoder_params?)"),
        (
            "asr.SpectrogramAugmentation",
            "asr.JasperEncoder",
            "spec_augment_params names JasperEncoder, which is no augmentation",
        ),
        ("\ninit_params:", "\nextra: 1\ninit_params:", "extra is not a key"),
    ],
)
def test_a_mistake_in_a_models_file_is_told(write: Write, old: str, new: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(write(with_(old, new, MODEL))))


def test_nothing_that_a_file_names_is_imported(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nemo_evil.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for spec in ("nemo_evil.JasperEncoder", "nemo_asr.nemo_evil.Encoder"):
        text = with_("nemo.collections.asr.JasperEncoder,", f"{spec},", HEADERS)
        assert any("is not a class for this" in problem for problem in problems_of(write(text)))


def test_a_feat_type_is_taken_by_the_later_class_too_and_an_unknown_one_refused(write: Write) -> None:
    assert load_recipe(write(with_("n_fft: 512", "feat_type: logfbank"))).preprocessor().init_params["log"] is True
    (problem,) = problems_of(write(FIRST.replace("logfbank", "logfbnk")))
    assert problem.endswith(
        'AudioPreprocessing.feat_type is "logfbnk", wanted logfbank or fbank (did you mean logfbank?)'
    )


def test_keys_of_nemos_conformer_without_effect_are_taken_and_their_other_values_refused(write: Write) -> None:
    section = "ConformerEncoder: {d_model: 8, n_layers: 1, pos_emb_max_len: 5000, reduction: null, reduction_factor: 1}"
    before, _, after = FLAT.partition("JasperEncoder:")
    text = f"{before}{section}\n{after[after.index('labels:') :]}"
    assert "pos_emb_max_len" not in load_recipe(write(text)).encoder().init_params
    problems = problems_of(
        write(text.replace("reduction: null, reduction_factor: 1", "reduction: pooling, reduction_factor: 2"))
    )
    assert [problem.partition(": ")[2] for problem in problems] == [
        'ConformerEncoder.reduction is "pooling", wanted null',
        "ConformerEncoder.reduction_factor is 2, wanted 1",
    ]


def test_a_size_that_ports_do_not_say_has_to_be_written(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    anything = {"processed_signal": NeuralType("B D T", SpectrogramType()), "n": NeuralType("B", LengthsType())}
    monkeypatch.setattr(AudioToMelSpectrogramPreprocessor, "output_ports", anything)
    assert any("JasperEncoder.feat_in is missing" in problem for problem in problems_of(write(FLAT)))
    recipe = load_recipe(write(with_("activation: relu", "activation: relu\n  feat_in: 80")))
    assert recipe.encoder().init_params["feat_in"] == 80


def test_what_depends_on_a_wrong_part_is_checked_without_it(write: Write) -> None:
    text = with_("features: 16", "feature: 16", FLAT.replace("dropout: 0.0", "dropuot: 0.0"))
    assert problems_of(write(text + "JasperDecoderForCTC: {init_mode: x}\n")) == [
        "a.yaml:12:3: AudioToMelSpectrogramPreprocessor.feature is not a key (did you mean features?)",
        "a.yaml:22:73: JasperEncoder.jasper[1].dropuot is not a key (did you mean dropout?)",
    ]


def test_a_recipe_makes_all_modules_of_a_model(write: Write) -> None:
    model = load_recipe(write(FLAT)).model()
    assert type(model.encoder).__name__ == "JasperEncoder"
    assert model.augmentation is not None
    assert model.multiplier is None
    shown = load_recipe(write(FLAT)).model(with_weights=False)
    modules = [module for module in (shown.encoder, shown.decoder) if isinstance(module, torch.nn.Module)]
    assert {p.device.type for module in modules for p in module.parameters()} == {"meta"}


def test_a_model_that_nobody_holds_is_gone_before_python_looks_for_garbage(write: Write) -> None:
    recipe = load_recipe(write(FLAT))
    gc.disable()
    try:
        model = recipe.model()
        left = {role: weakref.ref(part) for role, part in vars(model).items() if isinstance(part, torch.nn.Module)}
        del model
        assert {role: part() for role, part in left.items()} == dict.fromkeys(left)
        assert {"preprocessor", "encoder", "decoder", "loss"} <= left.keys()
    finally:
        gc.enable()


@pytest.mark.slow
def test_intermediate_ctc_takes_the_middle_block_or_the_file_s_and_a_weight(write: Write) -> None:
    first = "    - {filters: 8, repeat: 1, kernel: [3], stride: [2], dilation: [1], dropout: *drop, residual: false}\n"
    deeper = FLAT.replace(first, first.replace("8,", "6,") + first.replace("[2]", "[1]"))
    with_block = deeper.replace("activation: relu", "activation: relu\n  intermediate_block: 1")
    assert load_recipe(write(deeper)).model().intermediate == {}
    for text, channels in ((deeper, 6), (with_block, 8)):
        made = load_recipe(write(text)).model(intermediate_ctc=0.3)
        assert made.intermediate["intermediate_decoder"].input_ports["encoder_output"].axes[1].size == channels
        assert vars(made.intermediate["intermediate_decoder"])["share"] == 0.3
    with pytest.raises(UsageError, match=r"intermediate_ctc is out of range: got 1.5, wanted a number from 0, below 1"):
        load_recipe(write(deeper)).model(intermediate_ctc=1.5)
