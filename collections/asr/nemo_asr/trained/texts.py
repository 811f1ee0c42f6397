"""What the texts of manifests teach: n-gram language models in a model's spelling, and calibrated confidences."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from nemo_asr.data.speech_data_layer import SpeechDataLayer
from nemo_asr.run.arguments import parameters_of, paths_in
from nemo_asr.run.calibration import (
    Calibration,
    Floats,
    Mask,
    MeasuredSet,
    fit_calibration,
    held_out,
    reliability,
    right_words,
)
from nemo_asr.run.manifest import Manifest, Utterances
from nemo_asr.run.options import unique_tags
from nemo_asr.run.search.ngram import UNKNOWN, Estimated, LanguageModel, NgramCounter, estimate
from nemo_asr.run.text.labels import APOSTROPHES, has_words, plain_letters, spelled
from nemo_asr.run.text.parser import CharParser, make_parser
from nemo_asr.run.transcribe.inputs import recording_of_utterance
from nemo_asr.tasks.recipe import Recipe, load_recipe
from nemo_asr.trained.engine import transcripts_or_error
from nemo_asr.trained.model import (
    CARD,
    TrainedModel,
    find_model,
    foreign_format,
    read_card,
    read_with_recipe,
    write_card,
)
from nemo_lite import NeuralModuleFactory
from nemo_lite.base.errors import DataError, UsageError

MOST_ORDER = 6  # KenLM reads no longer n-grams unless it is built for them
_LINES_AT_ONCE = 1 << 14


class Speller:
    """Texts to words, as a model of some labels writes them.

    Args:
        parser: rewrites texts, and turns them into ids of labels.
        labels: what the ids stand for.
    """

    def __init__(self, parser: CharParser, labels: Sequence[str]) -> None:
        self.parser = parser
        self._written = [spelled(label) for label in labels]
        self._has_spaces = has_words(labels)

    def words(self, text: str) -> list[str]:
        """The words; each label is one where the labels have no space. None where the parser refuses the text."""
        symbols = [self._written[i] for i in self.parser(text) or ()]
        return "".join(symbols).split() if self._has_spaces else symbols

    def sentences(self, utterances: Utterances[Any]) -> Iterator[list[str]]:
        """The words of each text that has some."""
        return filter(None, map(self.words, texts_of(utterances)))


class Trained(NamedTuple):
    """A language model, and what it was made of.

    Attributes:
        estimated: the model and how it was smoothed.
        num_texts, num_words: what was counted.
        lost: what the labels could not write, in one line; "" for nothing.
        spelling: how texts were rewritten.
    """

    estimated: Estimated
    num_texts: int
    num_words: int
    lost: str
    spelling: str


class Perplexity(NamedTuple):
    """How well a language model predicts texts.

    Attributes:
        value: 10 to the power of minus the mean of log10 P over words and ends of texts, unknown words left out.
        num_words: of the texts.
        num_unknown: words of the texts that the model does not know.
    """

    value: float
    num_words: int
    num_unknown: int


def train_language_model(utterances: Utterances[Any], speller: Speller, order: int) -> Trained:
    """The n-gram model of the texts of utterances.

    Raises:
        UsageError: the order is out of range.
        DataError: the texts have no words, or a file of a text cannot be read.
    """
    check_order(order)
    counter = NgramCounter(order)
    for sentence in speller.sentences(utterances):
        counter.add(sentence)
    parser = speller.parser
    return Trained(
        estimate(counter, utterances.name), counter.num_sentences, counter.num_words, parser.report(), parser.describe()
    )


def check_order(order: int) -> None:
    """Raise UsageError for an order out of range."""
    if not 1 <= order <= MOST_ORDER:
        raise UsageError("the order of a language model is out of range", got=str(order), wanted=f"1 to {MOST_ORDER}")


def perplexity(model: LanguageModel, sentences: Iterator[list[str]]) -> Perplexity:
    """How well a model predicts sentences, each a list of words."""
    positions = {word: number for number, word in enumerate(model.words)}
    total, num_scored, num_words, num_unknown = 0.0, 0, 0, 0
    for sentence in sentences:
        state = np.array([model.start()])
        for word in sentence:
            position = positions.get(word, UNKNOWN)
            score, state = model.score_batch(state, np.array([position]))
            num_unknown += position == UNKNOWN
            total += 0.0 if position == UNKNOWN else float(score[0])
        total += float(model.end_batch(state)[0])
        num_words += len(sentence)
        num_scored += 1
    return Perplexity(10 ** (-total / max(num_scored + num_words - num_unknown, 1)), num_words, num_unknown)


def speller_of(model: str | None, utterances: Utterances[Any]) -> Speller:
    """The spelling of a model, or of no particular one.

    Args:
        model: a trained model's folder, or a configuration or its name. None: the letters that the texts have.
        utterances: of manifests.

    Raises:
        CheckpointError, ConfigError: there is no such model or configuration.
        UsageError: the model is no model of texts.
    """
    if model is None:
        return _speller_of_letters(utterances)
    path = Path(model).expanduser()
    is_trained = path.is_dir() or foreign_format(path) is not None
    recipe = read_with_recipe(path)[1] if is_trained else load_recipe(path)
    return Speller(text_layer(recipe, list(utterances.paths)).new_parser(), recipe.labels)


def text_layer(recipe: Recipe, manifest: str | Sequence[str]) -> SpeechDataLayer:
    """The data layer with which a model is evaluated, for work on the texts: it reads no audio.

    Raises:
        UsageError: the data layer is no one of manifests and texts.
        DataError: the manifest cannot be read.
    """
    layer_class = recipe.data_layer_class(training=False)
    if not issubclass(layer_class, SpeechDataLayer) or "load_audio" not in parameters_of(layer_class):
        problem, place = "the data layer for evaluation reads no manifests of texts", recipe.config.place()
        remedy = "give a configuration that is evaluated on loose files"
        raise UsageError(problem, place=place, got=layer_class.__name__, wanted="AudioToTextDataLayer", remedy=remedy)
    layer = recipe.data_layer(manifest, training=False, batch_size=1, load_audio=False)
    assert isinstance(layer, SpeechDataLayer)
    return layer


def open_texts(paths: Sequence[str]) -> Manifest:
    """The utterances of manifests, with or without audio.

    Raises:
        DataError: a manifest is missing, empty or has lines that are not valid.
    """
    return Manifest.open([part for path in paths for part in paths_in(path)], lenient=True)


def texts_of(utterances: Utterances[Any]) -> Iterator[str]:
    """All texts, as they are written, without what they belong to."""
    for first in range(0, len(utterances), _LINES_AT_ONCE):
        rows = np.arange(first, min(first + _LINES_AT_ONCE, len(utterances)))
        for ref in utterances.refs(rows):
            yield utterances.reader.utterance(ref).text


def _speller_of_letters(utterances: Utterances[Any]) -> Speller:
    """Lower case, in the letters that the texts have; digits and punctuation are no letters, an apostrophe is one."""
    characters: set[str] = set()
    for text in texts_of(utterances):
        characters.update(unicodedata.normalize("NFC", plain_letters(text).lower()))
    letters = sorted(c for c in characters - {*APOSTROPHES} if c.isalpha() or unicodedata.category(c).startswith("M"))
    labels = [" ", "'", *letters]
    return Speller(make_parser(labels, "auto", do_lowercase=None), labels)


# How sure a model is of words of a set that it was made for; who transcribes is told where it is much less sure.


_MOST_UTTERANCES = 50


def mean_confidence(model: TrainedModel, layer: SpeechDataLayer, factory: NeuralModuleFactory) -> float | None:
    """The mean confidence of the words that a model hears in the first utterances of a set, not calibrated.

    All ranks call it; rank 0 gets the number, the others None. None where it hears no word.

    Raises:
        DataError: a recording cannot be read.
    """
    utterances = [layer.utterance_of(row) for row in range(min(len(layer), _MOST_UTTERANCES))]
    recordings = [recording_of_utterance(utterance, layer.utterances.reader) for utterance in utterances]
    heard = transcripts_or_error(model.transcribed(recordings, factory=factory, calibration=None))
    confidences = [word.confidence for transcript in heard for word in transcript.words]
    return float(np.mean(confidences)) if confidences else None


def store_confidence(card: Path, name: str, confidence: float) -> None:
    """Write how sure a model is of words of a set into its card.

    Raises:
        CheckpointError: the card is damaged.
        UsageError: it cannot be written.
    """
    held = read_card(card)
    rates = [
        msgspec.structs.replace(rate, confidence=round(confidence, 3)) if rate.set == name else rate
        for rate in held.rates
    ]
    write_card(card, msgspec.structs.replace(held, rates=rates))


# Calibrates a model's confidences on utterances whose texts are known, and stores that in its folder.


LEAST_WORDS = 50


class HeardWords(NamedTuple):
    """The words that a model heard in a set.

    Attributes:
        confidences: (N,) of each word, as the model gives them.
        right: (N,) whether it is right.
        utterances: (N,) the position of its utterance.
    """

    confidences: Floats
    right: Mask
    utterances: npt.NDArray[np.int64]


class Calibrated(NamedTuple):
    """A calibration, and how reliable confidences are before and after it, on each set."""

    calibration: Calibration
    sets: list[MeasuredSet]


def calibrate(model: TrainedModel, manifest: str, tests: Sequence[str] = (), batch_size: int = 16) -> Calibrated:
    """Learn a calibration on one set; measure it there, on held-out fifths of the utterances, and on other sets.

    Args:
        model: the model; it is not changed.
        manifest: the utterances to learn from: none that the model was trained on.
        tests: manifests of other sets.
        batch_size: most recordings in a batch.

    Raises:
        DataError: a manifest or a recording cannot be read, or the model heard too few words.
    """
    name, *test_names = unique_tags([manifest, *tests])
    heard = heard_words(model, manifest, batch_size)
    if len(heard.right) < LEAST_WORDS:
        problem, remedy = "the model heard too few words to calibrate on", "give a larger set"
        got = f"{len(heard.right)} words"
        raise DataError(problem, place=manifest, got=got, wanted=f"{LEAST_WORDS} or more", remedy=remedy)
    calibration = fit_calibration(heard.confidences, heard.right, name)
    sets = [_measured(f"{name} (held out)", heard, held_out(*heard))]
    for test_name, test in zip(test_names, tests, strict=True):
        other = heard_words(model, test, batch_size)
        sets.append(_measured(test_name, other, calibration.of(other.confidences)))
    return Calibrated(calibration, sets)


def heard_words(model: TrainedModel, manifest: str, batch_size: int = 16) -> HeardWords:
    """Transcribe the utterances of a manifest, and see which words are right. Confidences are not calibrated.

    Raises:
        DataError: the manifest or a recording cannot be read.
    """
    layer = text_layer(model.recipe, manifest)
    speller = Speller(layer.new_parser(), model.card.labels)
    utterances = [layer.utterance_of(row) for row in range(len(layer))]
    recordings = [recording_of_utterance(utterance, layer.utterances.reader) for utterance in utterances]
    transcripts = transcripts_or_error(model.transcribed(recordings, batch_size=batch_size, calibration=None))
    rows = []
    for number, (utterance, transcript) in enumerate(zip(utterances, transcripts, strict=True)):
        right = right_words(speller.words(utterance.text), [word.text for word in transcript.words])
        rows += [(word.confidence, good, number) for word, good in zip(transcript.words, right, strict=True)]
    confidences, good, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    return HeardWords(np.array(confidences, np.float64), np.array(good, bool), np.array(numbers, np.int64))


def card_file(path: str | Path) -> Path:
    """The card in a model's folder.

    Raises:
        CheckpointError: there is no model.
        UsageError: it is no model folder.
    """
    folder = find_model(path)
    if not (folder / CARD).is_file():
        problem, remedy = "a calibration is stored in a model folder", "make one: nemo-lite models import, or convert"
        raise UsageError(problem, place=str(folder), got="checkpoints, or another toolkit's model", remedy=remedy)
    return folder / CARD


def store_calibration(card: Path, calibration: Calibration) -> None:
    """Write a calibration into a model's card.

    Raises:
        CheckpointError: the card is damaged.
        UsageError: it cannot be written.
    """
    write_card(card, msgspec.structs.replace(read_card(card), calibration=calibration))


def _measured(name: str, heard: HeardWords, calibrated: Floats) -> MeasuredSet:
    before, after = reliability(heard.confidences, heard.right), reliability(calibrated, heard.right)
    return MeasuredSet(name=name, before=before, after=after)
