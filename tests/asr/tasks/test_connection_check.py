"""Modules of a user's own in a file: whatever their constructors, ports and families raise is a line with its place."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor, nn

import nemo_asr
from nemo_asr.tasks.families import CTC
from nemo_asr.tasks.family import FAMILIES, Data, Modules, Wires
from nemo_asr.tasks.recipe import Recipe, recipe_from_text
from nemo_asr.tasks.registry import KNOWN
from nemo_lite import DataLayerNM, LossNM, TrainableNM
from nemo_lite.base.errors import ConfigError, UsageError
from nemo_lite.core import Reference
from nemo_lite.core.neural_types import (
    AcousticEncodedRepresentation,
    AudioSignal,
    LabelsType,
    LogprobsType,
    LossType,
    NeuralType,
    SpectrogramType,
)
from nemo_lite.core.ports import Ports

Raise = Callable[[], object]

CONFIG = """\
labels: [" ", a, b, c]
AudioToTextDataLayer: {num_workers: 0}
AudioToMelSpectrogramPreprocessor: {features: 8}
GruEncoder: {hidden: 12}
HeadsDecoder: {}
CTCLossNM: {}
"""


class GruEncoder(TrainableNM):
    """What a test puts into ``in_constructor`` runs while it is made, ``in_ports`` while its ports are asked."""

    in_constructor: Raise = staticmethod(lambda: None)
    in_ports: Raise = staticmethod(lambda: None)

    def __init__(self, feat_in: int, hidden: int = 12, name: str | None = None) -> None:
        super().__init__(name)
        type(self).in_constructor()
        self.gru = nn.GRU(feat_in, hidden, batch_first=True)

    @property
    def input_ports(self) -> Ports:
        return {"frames": NeuralType(f"B D={self.gru.input_size} T", SpectrogramType())}

    @property
    def output_ports(self) -> Ports:
        size = self.gru.hidden_size
        type(self).in_ports()
        return {"states": NeuralType(f"B D={size} T", AcousticEncodedRepresentation())}

    def forward(self, frames: Tensor) -> Tensor:
        states: Tensor = self.gru(frames.transpose(1, 2))[0]
        return states.transpose(1, 2)


class HeadsDecoder(TrainableNM):
    """Attention with 4 heads, which takes no other sizes than multiples of 4."""

    is_ctc = True

    def __init__(self, feat_in: int, num_classes: int, name: str | None = None) -> None:
        super().__init__(name)
        self.attention, self.head = nn.MultiheadAttention(feat_in, 4), nn.Linear(feat_in, num_classes + 1)

    @property
    def input_ports(self) -> Ports:
        size = self.head.in_features
        return {"encoded": NeuralType(f"B D={size} T", AcousticEncodedRepresentation())}

    @property
    def output_ports(self) -> Ports:
        return {"log_probs": NeuralType("B T D", LogprobsType())}

    def forward(self, encoded: Tensor) -> Tensor:
        frames = encoded.permute(2, 0, 1)
        mixed: Tensor = self.head(self.attention(frames, frames, frames)[0])
        return mixed.transpose(0, 1).log_softmax(-1)


class Unfinished(CTC):
    """Connects a module that no file has, or fails."""

    fails = False

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        if self.fails:
            raise KeyError("joint")
        modules("joint", data.audio)
        return super().connect(modules, data, training)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known, families = dict(KNOWN), dict(FAMILIES)
    nemo_asr.register(GruEncoder, role="encoder")
    nemo_asr.register(HeadsDecoder, role="decoder")
    nemo_asr.register_family("unfinished", Unfinished())
    yield
    for table, before in ((KNOWN, known), (FAMILIES, families)):
        table.clear()  # type: ignore[attr-defined]  # both are dictionaries
        table.update(before)  # type: ignore[attr-defined]


def recipe(text: str = CONFIG) -> Recipe:
    return recipe_from_text(text, "own.yaml")


def refusal(text: str = CONFIG) -> str:
    with pytest.raises(ConfigError) as caught:
        recipe(text)
    return str(caught.value)


def raising(error: BaseException) -> Raise:
    def raise_it() -> object:
        raise error

    return staticmethod(raise_it)


def test_modules_of_ones_own_are_connected() -> None:
    assert recipe().encoder().gru.hidden_size == 12


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AssertionError("hidden must divide by 7"), "AssertionError: hidden must divide by 7"),
        (KeyError("swish"), "KeyError: 'swish'"),
        (RuntimeError("the first line\nand others"), "RuntimeError: the first line"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (FileNotFoundError(2, "No such file", "w.bin"), "FileNotFoundError: [Errno 2] No such file: 'w.bin'"),
    ],
)
def test_whatever_a_constructor_raises_is_told_at_its_section_with_the_line_of_its_file(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GruEncoder, "in_constructor", raising(error))
    where = r" \(test_connection_check\.py:\d+\)"
    assert re.fullmatch(rf"own\.yaml:4:1: GruEncoder cannot be made: {re.escape(told)}{where}", refusal())


def test_the_whole_error_of_a_constructor_is_in_the_debug_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GruEncoder, "in_constructor", raising(KeyError("swish")))
    with caplog.at_level(logging.DEBUG, logger="nemo_lite"):
        refusal()
    assert "in raise_it" in caplog.text


def test_an_attribute_that_a_property_of_ports_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GruEncoder, "in_ports", raising(AttributeError("'GruEncoder' has no attribute 'sise'")))
    assert (
        "own.yaml:4:1: GruEncoder cannot be made: AttributeError: 'GruEncoder' has no attribute 'sise' (" in refusal()
    )


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("hidden: 12", "hiden: 12", r"own\.yaml:4:14: GruEncoder\.hiden is not a key \(did you mean hidden\?\)"),
        ("features: 8", 'features: "80"', r'own\.yaml:3:\d+: Audio\w+\.features is "80", wanted int from 1 to 1024'),
        ("b, c]", "b, b]", r"own\.yaml:1:21: label 'b' repeats the one at own\.yaml:1:18"),
        ("GruEncoder: {hidden: 12}\n", "", r"own\.yaml:1:1: the encoder's section is missing, such as \w+"),
    ],
)
def test_a_mistake_in_one_section_is_told_alone_where_another_ones_constructor_cannot_know_its_arguments(
    right: str, wrong: str, told: str
) -> None:
    assert re.fullmatch(told, refusal(CONFIG.replace(right, wrong)))


def test_a_constructor_that_refuses_a_known_size_is_told() -> None:
    told = r"own\.yaml:5:1: HeadsDecoder cannot be made: AssertionError: embed_dim must .* \(test_connection_check\.py"
    assert re.match(told, refusal(CONFIG.replace("hidden: 12", "hidden: 10")))


class PlainLoss(LossNM):
    """No constructor of its own: the one of the base takes the keywords of the first NeMo."""

    is_ctc = True
    input_ports = {"log_probs": NeuralType("B T D", LogprobsType()), "labels": NeuralType("B T", LabelsType())}
    output_ports = {"loss": NeuralType(None, LossType())}

    def _loss_function(self, log_probs: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return log_probs.mean()


class PassingLoss(PlainLoss):
    """Passes on what it does not know itself, as modules of the first NeMo do."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class TakingLoss(PlainLoss):
    """Has options of its own, whatever their names."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options


@pytest.mark.parametrize("loss", [PlainLoss, PassingLoss])
def test_an_option_that_a_loss_does_not_have_is_refused_and_not_left_out(loss: type[PlainLoss]) -> None:
    nemo_asr.register(loss)
    text = CONFIG.replace("CTCLossNM", loss.__name__)
    assert recipe(text).loss().left_out == ()
    told = rf"^--label_smoothing 0\.1: {loss.__name__}\.label_smoothing is not a key; known: \w+$"
    with pytest.raises(ConfigError, match=told):
        recipe_from_text(text, "own.yaml", ["loss.label_smoothing=0.1"])
    wrong = text.replace(f"{loss.__name__}: {{}}", f"{loss.__name__}: {{label_smoothing: 0.1}}")
    assert refusal(wrong).startswith(
        f"own.yaml:6:{len(loss.__name__) + 4}: {loss.__name__}.label_smoothing is not a key"
    )


def test_a_loss_with_options_of_its_own_takes_them() -> None:
    nemo_asr.register(TakingLoss)
    text = CONFIG.replace("CTCLossNM", "TakingLoss")
    assert recipe_from_text(text, "own.yaml", ["loss.label_smoothing=0.1"]).loss().options == {"label_smoothing": 0.1}


class Zeros(DataLayerNM):
    """Two seconds of silence, without workers."""

    output_ports = {"audio": NeuralType("B T", AudioSignal(16000)), "labels": NeuralType("B T", LabelsType())}

    def __init__(self, manifest: str, name: str | None = None) -> None:
        super().__init__(name)

    def __len__(self) -> int:
        return 2


def test_an_option_that_a_data_layer_does_not_have_is_refused_and_not_left_out() -> None:
    nemo_asr.register(Zeros)
    made = recipe(CONFIG.replace("AudioToTextDataLayer: {num_workers: 0}", "Zeros: {}"))
    with pytest.raises(UsageError, match=r"^own\.yaml:2:1: Zeros takes no num_workers; leave --num_workers out, or"):
        made.data_layer("train.json", training=True, num_workers=0)
    assert len(made.data_layer("train.json", training=True)) == 2


class Unsized(TrainableNM):
    """Says nothing of the size of its output, as ports that are class attributes may."""

    input_ports = {"frames": NeuralType("B D T", SpectrogramType())}
    output_ports = {"states": NeuralType("B D T", AcousticEncodedRepresentation())}

    def forward(self, frames: Tensor) -> Tensor:
        return frames


def test_a_size_that_is_missing_behind_a_port_without_one_is_told_with_the_port_and_how_it_is_written() -> None:
    nemo_asr.register(Unsized)
    text = CONFIG.replace("GruEncoder: {hidden: 12}", "Unsized: {}")
    assert refusal(text) == (
        'own.yaml:5:1: HeadsDecoder.feat_in is missing; Unsized.states is "B D T", which has no size of D: '
        'write it there, as in "B D=64 T", or feat_in here'
    )
    assert recipe(text.replace("HeadsDecoder: {}", "HeadsDecoder: {feat_in: 8}")).decoder().head.in_features == 8


def test_a_constructor_that_fails_only_with_weights_is_told_where_the_model_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = recipe()
    monkeypatch.setattr(GruEncoder, "in_constructor", raising(ValueError("no weights")))
    with pytest.raises(ConfigError, match=r"^own\.yaml:4:1: GruEncoder cannot be made: ValueError: no weights \("):
        made.model()


def test_a_family_that_gives_no_wires_or_cannot_judge_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unfinished, "connect", lambda self, modules, data, training: None)
    told = refusal(f"family: unfinished\n{CONFIG}")
    assert told == "own.yaml:1:1: Unfinished: connect gives NoneType, wanted Wires"
    monkeypatch.setattr(Unfinished, "problem", lambda self, classes, in_file: classes["joint"])
    told = refusal(f"family: unfinished\n{CONFIG}")
    assert re.fullmatch(r"own\.yaml:1:1: Unfinished: it cannot connect the modules: KeyError: 'joint' \(.*:\d+\)", told)


class Circle(TrainableNM):
    """An encoder that refers to the decoder, which may refer to it."""

    input_ports = {"frames": NeuralType("B D T", SpectrogramType())}
    output_ports = {"states": NeuralType("B D=8 T", AcousticEncodedRepresentation())}

    def __init__(self, decoder: Reference[Any], name: str | None = None) -> None:
        super().__init__(name)

    def forward(self, frames: Tensor) -> Tensor:
        return frames


class CircleDecoder(HeadsDecoder):
    def __init__(self, feat_in: int, num_classes: int, encoder: Reference[Any], name: str | None = None) -> None:
        super().__init__(feat_in, num_classes, name)


def test_modules_that_refer_to_each_other_are_refused() -> None:
    nemo_asr.register(Circle)
    nemo_asr.register(CircleDecoder, role="decoder")
    text = CONFIG.replace("GruEncoder: {hidden: 12}", "Circle: {}").replace("HeadsDecoder", "CircleDecoder")
    problem = "refers to itself, by references of its own or of other modules"
    assert refusal(text) == f"own.yaml:4:1: Circle {problem}\nown.yaml:5:1: CircleDecoder {problem}"


def test_a_module_that_only_the_family_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"family: unfinished\n{CONFIG}"
    assert refusal(text) == "own.yaml:1:1: Unfinished: it connects a joint, and there is no section for one"
    monkeypatch.setattr(Unfinished, "fails", True)
    assert re.fullmatch(
        r"own\.yaml:1:1: Unfinished: it cannot connect the modules: KeyError: 'joint' \(test_conn.*py:\d+\)",
        refusal(text),
    )
