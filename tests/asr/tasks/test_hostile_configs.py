"""Configurations that ask for too much, or are not what they seem: refused by us, soon and in little memory."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from toys.hostile_configs import CLASSES, HEADERS, TEXTS, cost_of, mutated

from nemo_asr.tasks.recipe import Recipe, load_recipe, recipe_from_text
from nemo_lite import logging
from nemo_lite.base.errors import ConfigError, NemoLiteError

BASES = (TEXTS, HEADERS, CLASSES)
MAX_SECONDS, MAX_MEGABYTES = 2.0, 300.0
LARGE = "1" + "0" * 27

# Each: what is put in place of what in TEXTS, and what is told behind the line and the column.
REFUSED = [
    ("n_fft: 512", "n_fft: 0", "AudioToMelSpectrogramPreprocessor.n_fft is 0, wanted int from 1 to 65536 or null"),
    ("n_fft: 512", "n_fft: 2147483648", ".n_fft is 2147483648, wanted int from 1 to 65536"),
    ("n_fft: 512", "n_fft: 1000000000", ".n_fft is 1000000000, wanted int from 1 to 65536"),
    ("features: 16", "features: 100000", ".features is 100000, wanted int from 1 to 1024"),
    ("features: 16, n_fft: 512", "features: 1024, n_fft: 65536", "the mel filters are too large"),
    ("repeat: 2", "repeat: 100000", "JasperEncoder.jasper[1].repeat is 100000, wanted int from 1 to 100"),
    ("filters: 8, repeat: 2", "filters: 1000000000, repeat: 2", ".filters is 1000000000, wanted int from 1 to 65536"),
    ("filters: 8, repeat: 2", "filters: 65536, repeat: 9", "[1]: the module is too large: got 85901181104"),
    ("kernel: [3]", "kernel: [10000000]", "JasperEncoder.jasper[0].kernel[0] is 10000000, wanted int from 1 to 10001"),
    ("dilation: [1]", "dilation: [100000]", ".dilation[0] is 100000, wanted int from 1 to 1024"),
    ("stride: [2]", "stride: [100000]", ".stride[0] is 100000, wanted int from 1 to 1024"),
    ("pad_to: 16", "pad_to: 1000000000", 'pad_to is 1000000000, wanted int from 0 to 4096 or "max"'),
    ("rect_masks: 2", "rect_masks: 1000000000", "rect_masks is 1000000000, wanted int from 0 to 1000"),
    ("num_workers: 0", "num_workers: 100000", "num_workers is 100000, wanted int from 0 to 1024 or null"),
    ("window_size: 0.02", "window_size: .nan", "window_size is NaN, wanted float above 0, up to 10 or null"),
    ("window_size: 0.02", "window_size: .inf", "window_size is Infinity, wanted float above 0, up to 10 or null"),
    ("window_size: 0.02", "window_size: 5", "the window is too long: got 80000 samples, wanted at most 65536"),
    ("n_fft: 512, window_size: 0.02, window_stride: 0.01", "n_fft: 8192, window_stride: 2e-4", "spectrum of a second"),
    ("dither: 0.00001", "dither: .inf", "dither is Infinity, wanted float from 0 to 1000"),
    ("max_corrupt: 0.1", "max_corrupt: .nan", "max_corrupt is NaN, wanted float from 0 to 1000000000 or null"),
    ("min_duration: 0.1", "min_duration: .nan", "min_duration is NaN, wanted float from 0 to 1000000 or null"),
    ("max_batch_seconds: 100", "max_batch_seconds: .inf", "max_batch_seconds is Infinity, wanted float above 0, up to"),
    ("sample_rate: 16000", f"sample_rate: {LARGE}", f"sample_rate is \"{LARGE}\", wanted a number of at most 64 bits"),
    ("sample_rate: 16000", "sample_rate: 1e27", "sample_rate is 1e+27, wanted int from 1 to 768000"),
    ("sample_rate: 16000", "sample_rate: 768001", "sample_rate is 768001, wanted int from 1 to 768000"),
    ("num_rates: 3", "num_rates: 1000000000", "augmentor.speed.num_rates is 1000000000, wanted int from -1000 to 1000"),
    ("prob: 0.5", "prob: .nan", "augmentor.speed.prob is NaN, wanted float that is finite"),
    ("prob: 0.5, ", "", "AudioToTextDataLayer.train.augmentor.speed.prob is missing"),
    ("gain: {", "gian: {", "AudioToTextDataLayer.train.augmentor.gian is not a key (did you mean gain?)"),
    ("mult_batch: 2", "mult_batch: 1000000", "mult_batch is 1000000, wanted int from 1 to 100"),
    ("groups: 2", "groups: 3", "groups must divide the channels in and out: got groups 3, 8 -> 8 channels"),
    ("[\" \", a, b, c]", "x" * 250_000, "labels is \"xxx"),
    ("num_workers: 0", "num_workers: " + "1" * 30_000, "which does not fit its tag !!int"),
    ("num_workers: 0", "num_workers: 0x" + "f" * 30_000, "wanted a number of at most 64 bits"),
    ("model: Texts", "model: !!python/object/apply:os.system [ls]", "has the tag !!python/object/apply:os.system"),
    ("sample_rate: 16000", "sample_rate: 16000\nsample_rate: 8000", "sample_rate is given twice (first on line 2)"),
    ("model: Texts", r'model: "\ud800"', "model holds 0xd800, which is no character of a text"),
    ("model: Texts", "model: " + "[" * 10_000, "nested deeper than 64 levels"),
    ("model: Texts", "model: &a [*a, *a]", "nested deeper than 64 levels once aliases are filled in"),
]  # fmt: skip
BOMBS = {
    "aliases": "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]\n" for i in range(9)),
    "anchors": "a:\n" + "".join(f"- &a{i} 1\n" for i in range(40_000)),
    "keys": "".join(f"k{i}: 1\n" for i in range(7_000)),
    "tags": "a:\n" + "- !x 1\n" * 60_000,
    "lines": "a: >\n" + " x\n" * 150_000,
    "mappings": "a: [" + "{}," * 170_000 + "]\n",
    "merges": "a: &a {x: 1}\nb:\n  <<: [" + "*a," * 100_000 + "]\n",
}
BLOCK = "{filters: 8, repeat: 1, kernel: 3, stride: 1, dilation: 1, dropout: 0, residual: true, residual_dense: true}"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """By task, the manifest of one second of noise."""
    folder = tmp_path_factory.mktemp("noise")
    soundfile.write(folder / "a.wav", np.random.default_rng(0).normal(size=16000) / 10, 16000)
    lines = [
        {"audio_filepath": "a.wav", "duration": 1.0, "text": "a", "label": name} for name in ("speech", "background")
    ]
    (folder / "a.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return folder / "a.json"


def use(recipe: Recipe, manifest: Path) -> None:
    """Make what a training makes of a recipe, without weights, and the features of a quarter of a second."""
    (recipe.model if recipe.task == "transcription" else recipe.classifier)(with_weights=False)
    recipe.data_layer(manifest, training=True, batch_size=2)
    num_samples = recipe.sample_rate // 4 + 1
    recipe.preprocessor()(input_signal=torch.randn(1, num_samples), length=torch.tensor([num_samples]))


@pytest.mark.parametrize("base", BASES, ids=["texts", "headers", "classes"])
def test_what_the_others_are_made_of_is_a_recipe(base, manifests, monkeypatch):
    monkeypatch.chdir(manifests.parent)
    Path("noise.json").write_bytes(manifests.read_bytes())
    use(recipe_from_text(base, "a.yaml"), manifests)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "told"), REFUSED, ids=[f"{new[:40]}" for _, new, _ in REFUSED])
def test_too_much_is_refused_with_file_line_and_column(old, new, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert old in TEXTS
    Path("a.yaml").write_text(TEXTS.replace(old, new, 1), encoding="utf-8")
    error, seconds, megabytes = cost_of(lambda: load_recipe("a.yaml"))
    assert isinstance(error, ConfigError)
    assert all(problem.startswith("a.yaml:") for problem in error.problems)
    assert told in str(error)
    assert (seconds < MAX_SECONDS, megabytes < MAX_MEGABYTES) == (True, True), (seconds, megabytes)


@pytest.mark.slow
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_before_it_costs_much(text):
    error, seconds, megabytes = cost_of(lambda: recipe_from_text(text, "a.yaml"))
    assert isinstance(error, ConfigError)
    assert len(str(error).splitlines()) <= 51
    assert (seconds < MAX_SECONDS, megabytes < MAX_MEGABYTES) == (True, True), (seconds, megabytes)


def test_many_dense_blocks_are_refused_before_they_are_made():
    blocks = "".join(f"    - {BLOCK}\n" for _ in range(70))
    text = TEXTS[: TEXTS.index("    - {filters")] + blocks + TEXTS[TEXTS.index("JasperDecoderForCTC") :]
    error, seconds, _ = cost_of(lambda: recipe_from_text(text, "a.yaml"))
    assert "JasperEncoder.jasper[61] brings the convolutions to 2015, wanted at most 2000" in str(error)
    assert seconds < MAX_SECONDS


def test_a_model_that_is_too_large_as_a_whole_names_its_largest_part():
    text = TEXTS.replace("filters: 8, repeat: 2", "filters: 46080, repeat: 1").replace(
        "groups: 2, se: true", "groups: 1"
    )
    large = text.replace("kernel: 5", "kernel: 1").replace("residual: true", "residual: false")
    block = "{filters: 46080, repeat: 1, kernel: 1, stride: 1, dilation: 1, dropout: 0, residual: false}"
    large = large.replace("JasperDecoderForCTC: {vocabulary: *labels}", f"    - {block}\nContextNetDecoderForCTC: {{}}")
    error, _, megabytes = cost_of(lambda: recipe_from_text(large, "a.yaml"))
    told = "JasperEncoder has 2123919552 of the model's 2243531077 weights, wanted at most 2147483648 in all"
    assert told in str(error)
    assert megabytes < MAX_MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [pytest.param(0, id="150 cases"), pytest.param(150, id="10000", marks=pytest.mark.soak)]
)
def test_a_mutated_configuration_is_used_or_refused_by_us(first, manifests, monkeypatch):
    monkeypatch.chdir(manifests.parent)
    count, refused = 10_000 if first else 150, 0
    with logging.temp_verbosity(logging.CRITICAL):
        for seed in range(first, first + count):
            text = mutated(BASES, random.Random(seed))
            try:
                outcome, seconds, megabytes = cost_of(
                    lambda text=text: use(recipe_from_text(text, "a.yaml"), manifests)
                )
            except Exception as error:
                pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{text}")
            assert (seconds < MAX_SECONDS, megabytes < MAX_MEGABYTES) == (True, True), (seed, seconds, megabytes)
            if isinstance(outcome, NemoLiteError):
                refused += 1
                assert len(str(outcome)) < 20_000, seed
    assert 0.5 < refused / count < 0.99
