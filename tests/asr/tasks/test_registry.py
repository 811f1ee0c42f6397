"""What makes a class known to YAML files: one line; its role is that of its base or its ports, or is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys.tone_corpus import CONFIG

import nemo_asr
from nemo_asr.tasks import connection_check, registry
from nemo_asr.tasks.families import CTC
from nemo_asr.tasks.family import FAMILIES, register_family
from nemo_asr.tasks.recipe import recipe_from_text
from nemo_asr.tasks.registry import KNOWN, register, role_of
from nemo_lite import DataLayerNM, LossNM, NonTrainableNM
from nemo_lite.base.errors import ConfigError, UnknownNameError, UsageError
from nemo_lite.core import (
    AcousticEncodedRepresentation,
    AxisKind,
    AxisType,
    LabelsType,
    LengthsType,
    LogitsType,
    LogprobsType,
    LossType,
    NeuralType,
    Ports,
    SpectrogramType,
)
from nemo_lite.core.neural_module import NeuralModule

ROLES = {
    "data layer": ["AudioToTextDataLayer"],
    "preprocessor": [
        "AudioPreprocessing",
        "AudioToMFCCPreprocessor",
        "AudioToMelSpectrogramPreprocessor",
        "AudioToSpectrogramPreprocessor",
    ],
    "multiplier": ["MultiplyBatch"],
    "augmentation": ["SpectrogramAugmentation"],
    "encoder": ["JasperEncoder"],
    "decoder": ["JasperDecoderForCTC"],
    "loss": ["CTCLossNM"],
    "search": ["GreedyCTCDecoder"],
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    known, defaults = dict(registry.KNOWN), {task: dict(of_task) for task, of_task in registry.DEFAULTS.items()}
    yield
    for now, before in ((registry.KNOWN, known), (registry.DEFAULTS, defaults)):
        now.clear()
        now.update(before)  # type: ignore[arg-type]


class Pooling(NonTrainableNM):
    """Takes a spectrogram and gives encoded frames; its ports are known to the class."""

    input_ports: Ports = {"spectrogram": NeuralType("B D T", SpectrogramType())}
    output_ports: Ports = {"pooled": NeuralType("B D T", AcousticEncodedRepresentation())}

    def forward(self, spectrogram: object) -> object:
        return spectrogram


class Logits(Pooling):
    """Gives what no role of a recipe gives."""

    output_ports: Ports = {"logits": NeuralType("B T D", LogitsType()), "length": NeuralType("B", LengthsType())}


class Listed(Pooling):
    """Its input ports are a property."""

    @property
    def input_ports(self) -> Ports:  # type: ignore[override]  # a class attribute in Pooling
        return {name: NeuralType("B D T", SpectrogramType()) for name in self._names}  # type: ignore[union-attr]


def test_the_collections_modules_have_their_roles() -> None:
    wanted = {name: role for role, names in ROLES.items() for name in names}
    assert {name: KNOWN[name].role for name in wanted} == wanted


@pytest.mark.parametrize("role", ["data layer", "multiplier", "augmentation", "loss", "search"])
def test_a_base_or_ports_of_the_class_say_its_role(role: str) -> None:
    for name in ROLES[role]:
        assert role_of(KNOWN[name].module_class) == role, name


def test_one_line_makes_a_class_known_under_its_name() -> None:
    register(Pooling)
    assert (KNOWN["Pooling"].module_class, KNOWN["Pooling"].role) == (Pooling, "encoder")


def test_a_class_that_takes_the_place_of_another_one_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class JasperEncoder(Pooling):
        """Has the name of one of ours."""

    monkeypatch.setitem(KNOWN, "JasperEncoder", KNOWN["JasperEncoder"])
    register(JasperEncoder)
    told = (
        r"In YAML files JasperEncoder is \S+<locals>\.JasperEncoder from now on, no longer nemo_asr\.\S+\.JasperEncoder"
    )
    assert [bool(re.fullmatch(told, record.getMessage())) for record in caplog.records] == [True]
    register(JasperEncoder)  # as a cell of a notebook that runs once more
    assert len(caplog.records) == 1
    monkeypatch.setitem(FAMILIES, "ctc", FAMILIES["ctc"])
    register_family("ctc", type("Mine", (CTC,), {})())
    assert re.fullmatch(
        r"In YAML files ctc is \S+\.Mine from now on, no longer \S+\.CTC", caplog.records[1].getMessage()
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("OutsideConformer: {layers: 2}", r"m:1:1: OutsideConformer is not a key; one of your own needs"),
        ("OutsideConformer:", r"m:1:1: OutsideConformer is not a key; one of your own needs --import FILE$"),
        ("MyJasperEncoder: {a: 1}", r"is not a key \(did you mean JasperEncoder\?\); one of your own needs --import"),
        (
            "Outside: {header: {full_spec: mine.Outside}}",
            r'm:1:20: .*"mine\.Outside" is not a class for this; one of your own needs --import FILE$',
        ),
        ("family: rnnt", r"m:1:1: family is \"rnnt\", wanted one of .*ctc.*; one of your own needs --import FILE$"),
    ],
)
def test_what_a_file_of_ones_own_would_register_is_answered_with_import(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_text(text, "m")
    assert any(re.search(told, problem) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("update_cycle: 4", "m:1:1: update_cycle is no key of a model; the command line has it: --iter_per_step"),
        ("num_epochs: 50", "m:1:1: num_epochs is no key of a model; the command line has it: --num_epochs"),
        ("log_freq: 100", "m:1:1: log_freq is no key of a model; the command line has it: --log_freq"),
    ],
)
def test_a_key_that_is_an_option_of_the_command_line_is_answered_with_it(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_text(text, "m")
    assert told in caught.value.problems


def test_a_key_that_is_no_class_is_not() -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_text("sample_rat: 16000", "m")
    assert "--import" not in str(caught.value)


def test_the_documented_roles_and_arguments_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "en" / "modules.md").read_text(encoding="utf-8")
    section = text.split("## Modules in a recipe")[1].split("\n## ")[0]
    roles, arguments = section.split("| argument | filled with |")
    assert re.findall(r"^\| ([a-z ]+?)(?: \(.*?\))? \|", roles, re.MULTILINE) == ["role", *FAMILIES["ctc"].roles]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in arguments.splitlines() if line[:3] == "| `"))
    assert set(named) == {"sample_rate", "batch_size", "language", *connection_check._STAND_INS}


def test_ports_of_no_role_are_refused_with_all_roles() -> None:
    with pytest.raises(UsageError, match=r"Logits: its ports are of no role .*gives LogitsType, wanted data layer: "):
        register(Logits)


def test_a_role_can_be_said_where_ports_need_an_object() -> None:
    with pytest.raises(UsageError, match=r"Listed: its ports cannot be read before .*; give register the role as well"):
        register(Listed)
    register(Listed, role="encoder")
    assert KNOWN["Listed"].role == "encoder"
    with pytest.raises(UnknownNameError, match=r'role "encodr" is not known.*did you mean encoder\?'):
        register(Listed, role="encodr")


def test_a_data_layer_whose_first_argument_is_not_its_source_is_refused() -> None:
    class Reordered(DataLayerNM):
        """Takes the vocabulary before its archive."""

        def __init__(self, vocabulary: list[str], archive: str) -> None:
            super().__init__()

    with pytest.raises(UsageError, match=r"Reordered: its first argument must be the source .*: got vocabulary"):
        register(Reordered)


def test_a_default_fills_its_role() -> None:
    assert {role: cls.__name__ for role, cls in registry.DEFAULTS["ctc"].items()} == {
        "data layer": "AudioToTextDataLayer",
        "decoder": "JasperDecoderForCTC",
        "loss": "CTCLossNM",
        "search": "GreedyCTCDecoder",
    }


def test_classes_that_nobody_registered_are_unknown() -> None:
    classes: list[type[NeuralModule]] = [nemo_asr.CropOrPadSpectrogramAugmentation, Pooling]
    assert [cls.__name__ for cls in classes if cls.__name__ in KNOWN] == []


def test_nothing_in_recipe_names_one_model() -> None:
    folder = Path(registry.__file__).parent
    # Other tests register theirs, and layers and losses, which are no models.
    own = [
        name
        for name, known in KNOWN.items()
        if known.module_class.__module__.startswith("nemo_asr.")
        and not issubclass(known.module_class, (DataLayerNM, LossNM))
    ]
    names = {name.lower() for name in (*own, *registry.MODEL_NAMES)} | {"jasper", "quartznet"}
    files = [
        path
        for path in folder.glob("*.py")
        if path.stem not in ("known_modules", "families", "transducer", "attention")
    ]
    found = [f"{path.name}: {n}" for path in files for n in names if n in path.read_text().lower()]
    assert found == []


class Joint(NonTrainableNM):
    """A decoder that looks like a CTC head, and is none."""

    input_ports: Ports = {"encoded": NeuralType("B D T", AcousticEncodedRepresentation())}
    output_ports: Ports = {"log_probs": NeuralType("B T D", LogprobsType())}


class JointOfThree(Joint):
    """It has three classes."""

    output_ports: Ports = {
        "log_probs": NeuralType(
            (AxisType(AxisKind.Batch), AxisType(AxisKind.Time), AxisType(AxisKind.Dimension, 3)), LogprobsType()
        )
    }


class TransducerLoss(LossNM):
    """A loss that is no CTC."""

    input_ports: Ports = {
        "log_probs": NeuralType("B T D", LogprobsType()),
        "targets": NeuralType("B T", LabelsType()),
    }
    output_ports: Ports = {"loss": NeuralType(None, LossType())}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            "Joint: {}\nTransducerLoss: {}\n",
            "there is no section of a search for Joint, which TransducerLoss trains; ",
        ),
        ("JasperDecoderForCTC: {}\nTransducerLoss: {}\n", ""),
        ("Joint: {}\nTransducerLoss: {}\nGreedyCTCDecoder: {}\n", ""),
        ("Joint: {}\n", ""),  # the CTC loss says that it is a head
        (
            "JointOfThree: {}\nTransducerLoss: {}\nGreedyCTCDecoder: {}\n",
            "GreedyCTCDecoder.log_probs cannot take JointOfThree.log_probs .*got B T D=3 .*wanted B T D=5",
        ),
    ],
)
def test_greedy_decoding_is_no_default_behind_a_decoder_that_is_no_ctc_head(
    sections: str, told: str, tmp_path: Path
) -> None:
    register(Joint)
    register(JointOfThree)
    register(TransducerLoss)
    (tmp_path / "m.yaml").write_text(CONFIG + sections)
    if not told:
        nemo_asr.load_recipe(tmp_path / "m.yaml")
        return
    with pytest.raises(ConfigError) as caught:
        nemo_asr.load_recipe(tmp_path / "m.yaml")
    (problem,) = caught.value.problems
    assert re.match(rf".*m\.yaml:\d+:\d+: {told}", problem)
    if "GreedyCTCDecoder" not in sections:
        assert problem.endswith("or the family of the model; of a CTC head, GreedyCTCDecoder: {}")
