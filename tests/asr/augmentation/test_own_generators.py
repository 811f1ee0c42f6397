"""What a user's perturbation draws from a generator of its own follows from the seed, the epoch and the utterance."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from toys.tone_corpus import make_corpus

import nemo_asr
from nemo_asr.augmentation import AudioAugmentor, AudioSegment, GainPerturbation, Perturbation, WaveformFeaturizer
from nemo_asr.compat import parts
from nemo_lite.backends.pytorch.data.order import Shard, Stretch

OF_MODULE = np.random.default_rng(3)


class Drawing(Perturbation):
    """Adds a number that a subclass draws."""

    def perturb(self, data: AudioSegment) -> None:
        data._samples = data._samples + np.float32(self.drawn())

    def drawn(self) -> float:
        return float(self._rng.uniform(0, 1))


class NemosIdiom(Drawing):
    def __init__(self, rng: Any = None) -> None:
        self._rng = random.Random() if rng is None else rng


class ByTheBase(Drawing):
    def __init__(self, rng: Any = None) -> None:
        super().__init__(rng)


class WithoutTheBase(Drawing):
    def __init__(self) -> None:
        """The base makes nothing."""


class OtherNames(Drawing):
    """Generators under names of its own: Python's, NumPy's and torch's."""

    of_class = np.random.RandomState(5)

    def __init__(self) -> None:
        self.drawers: list[Any] = [random.Random(1), {"of torch": torch.Generator()}]
        self.generator = np.random.Generator(np.random.PCG64(1))

    def drawn(self) -> float:
        first, others = self.drawers
        of_torch = torch.rand(1, generator=others["of torch"]).item()
        return float(first.random() + self.generator.random() + self.of_class.rand() + of_torch)


class OfModule(Drawing):
    def drawn(self) -> float:
        return float(OF_MODULE.uniform())


class Helper:
    def __init__(self) -> None:
        self.rng = random.Random()


class Others(Drawing):
    """Draws by another perturbation and by an object of the user's."""

    def __init__(self) -> None:
        self.other, self.helper = NemosIdiom(), Helper()

    def perturb(self, data: AudioSegment) -> None:
        self.other.perturb(data)
        data._samples = data._samples + np.float32(self.helper.rng.random())


class InOurForm(Perturbation):
    """Does not draw from the generator that it is given."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def perturbed(self, samples: Any, sample_rate: int, rng: np.random.Generator) -> Any:
        return samples + np.float32(self.rng.random())


KINDS: list[Any] = [
    NemosIdiom,
    lambda: NemosIdiom(np.random.RandomState(7)),
    lambda: NemosIdiom(np.random.default_rng(7)),
    ByTheBase,
    lambda: ByTheBase(random.Random(7)),
    lambda: ByTheBase(np.random.RandomState(np.random.PCG64(7))),
    WithoutTheBase,
    OtherNames,
    OfModule,
    Others,
    InOurForm,
]


def drawn_by(made: Any, seeds: range) -> list[float]:
    augmentor = AudioAugmentor([(1.0, made)])
    zeros = np.zeros(1, np.float32)
    return [float(augmentor.perturbed(zeros, 16000, np.random.default_rng([1, seed]))[0]) for seed in seeds]


@pytest.mark.parametrize("make", KINDS)
def test_what_is_drawn_follows_from_the_generator_that_is_given(make: Any) -> None:
    draws = drawn_by(make(), range(20))
    assert len(set(draws)) == 20
    assert drawn_by(make(), range(10, 20)) == draws[10:]


def test_a_generator_goes_on_by_itself_where_it_was() -> None:
    made, alike = NemosIdiom(random.Random(4)), NemosIdiom(random.Random(4))
    assert made.drawn() == alike.drawn()
    drawn_by(made, range(3))
    assert made.drawn() == alike.drawn()


def test_what_a_perturbation_notes_of_itself_stays() -> None:
    class Counting(NemosIdiom):
        count = 0

        def perturb(self, data: AudioSegment) -> None:
            self.count += 1

    made = Counting()
    drawn_by(made, range(3))
    assert made.count == 3


@pytest.mark.parametrize("make", [NemosIdiom, ByTheBase, OtherNames])
def test_threads_that_share_a_perturbation_draw_what_each_alone_draws(make: Any) -> None:
    augmentor, zeros = AudioAugmentor([(1.0, make())]), np.zeros(1, np.float32)

    def drawn(seed: int) -> float:
        return float(augmentor.perturbed(zeros, 16000, np.random.default_rng(seed))[0])

    expected = [drawn(seed) for seed in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(drawn, range(200))) == expected


def test_systems_random_numbers_stay_as_they_are() -> None:
    assert len(set(drawn_by(NemosIdiom(random.SystemRandom()), range(3)))) == 3


@pytest.mark.slow
def test_any_number_of_workers_draws_the_same_and_so_does_a_resumed_epoch(tmp_path: Any) -> None:
    make_corpus(tmp_path)

    def batches(num_workers: int, epoch: int = 1, num_done: int = 0) -> list[list[float]]:
        layer = nemo_asr.AudioToTextDataLayer(
            manifest_filepath=str(tmp_path / "train.json"),
            labels=[" ", "a", "b", "c"],
            batch_size=3,
            sample_rate=16000,
            num_workers=num_workers,
            augmentor=AudioAugmentor([(1.0, NemosIdiom()), (1.0, OtherNames())]),
        )
        loader, done = layer.loader(training=True, shard=Shard()), [Stretch(1, num_done)] if num_done else []
        return [[float(row[:100].sum()) for row in batch.values[0]] for batch in loader.rest_of_epoch(epoch, done)]

    alone = batches(0)
    assert len({value for batch in alone for value in batch}) == 12
    assert batches(1) == batches(2) == alone
    assert batches(2, num_done=2) == alone[2:]
    assert batches(0, epoch=2) != alone


@pytest.mark.slow
def test_workers_of_torch_that_read_a_data_set_of_nemos_do_not_draw_the_same(tmp_path: Any) -> None:
    make_corpus(tmp_path)
    own = NemosIdiom(random.Random(1))
    featurizer = WaveformFeaturizer(16000, augmentor=AudioAugmentor([(1.0, own), (1.0, GainPerturbation(-6, 6))]))
    dataset = parts.AudioDataset(str(tmp_path / "train.json"), [" ", "a", "b", "c"], featurizer)

    def firsts(seed: int) -> list[float]:
        torch.manual_seed(seed)
        loader = DataLoader(dataset, batch_size=1, num_workers=2, collate_fn=lambda items: float(items[0][0].mean()))
        return list(loader)

    means = firsts(1)
    gains = [round(mean, 5) for mean in means]  # by three digits, two of twelve draws may be alike by chance
    assert len(set(gains)) == 12
    assert firsts(1) == means
    assert firsts(2) != means
