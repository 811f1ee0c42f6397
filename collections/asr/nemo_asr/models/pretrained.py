"""NeMo's whole models: `.nemo` files of 0.11 and 1.x, and downloads of published ones."""

from __future__ import annotations

import inspect
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from nemo_asr.features import generation_of
from nemo_asr.models.jasper import JasperBlockSpec
from nemo_asr.text.subwords import Subwords
from nemo_lite import NeuralModule, NmTensor, logging
from nemo_lite.backends.pytorch.checkpoint.storage import fill_module, fitted
from nemo_lite.backends.pytorch.checkpoint.tensors import read_torch_tensors
from nemo_lite.config import Config, parse_config, raise_if, shown
from nemo_lite.core import Ports
from nemo_lite.core.models import CONFIG_0, NemoArchive, NeMoModel
from nemo_lite.core.neural_module import classes_by_name, subclasses
from nemo_lite.core.ports import PretrainedModelInfo
from nemo_lite.errors import CheckpointError, DataError, ModelNotFoundError, did_you_mean
from nemo_lite.files import digest_of_file, make_writable_folder, write_atomically

# Where a model's ``.nemo`` file is: on this machine, or published by NVIDIA and downloaded when it is asked for.


CACHE = "~/.cache/torch/NeMo/NEMO_0.11.0"  # NeMo 0.11's own: what it has downloaded is found
_NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"
_TIMEOUT_SECONDS = 30.0


class Published(NamedTuple):
    """A published model: its class, what it is, and where it is."""

    class_name: str
    description: str
    location: str


PUBLISHED = {
    "QuartzNet15x5-En": Published(
        "QuartzNet",
        "QuartzNet 15x5 for English, trained on several data sets",
        f"{_NGC}/multidataset_quartznet15x5/versions/2/files/QuartzNet15x5-En-Base.nemo",
    ),
    "QuartzNet15x5-Zh": Published(
        "QuartzNet",
        "QuartzNet 15x5 for Mandarin, trained on AISHELL-2",
        f"{_NGC}/aishell2_quartznet15x5/versions/3/files/QuartzNet15x5-Zh-Base.nemo",
    ),
    "JasperNet10x5-En": Published(
        "JasperNet",
        "Jasper 10x5 DR for English, trained on several data sets",
        f"{_NGC}/multidataset_jasper10x5dr/versions/5/files/JasperNet10x5-En-Base.nemo",
    ),
}


def local_file(model_info: str, names: Iterable[str], refresh: bool = False) -> Path:
    """The file of a model; a published one is downloaded unless it has been before.

    Args:
        model_info: a path, or the name of a published model.
        names: that may be asked for.
        refresh: download a published one again.

    Raises:
        ModelNotFoundError: there is neither such a file nor such a name, or it cannot be downloaded.
        CheckpointError: what was downloaded is no model.
    """
    path = Path(model_info).expanduser()
    if path.is_file():
        return path
    if model_info not in names:
        got = f'"{model_info}"{did_you_mean(model_info, names)}'
        wanted = f"a .nemo file that is there, or one of {', '.join(names)}"
        raise ModelNotFoundError("there is no such model", place="from_pretrained", got=got, wanted=wanted)
    location = PUBLISHED[model_info].location
    cached = Path(CACHE, location.rpartition("/")[2]).expanduser()
    if refresh or not cached.is_file():
        make_writable_folder(cached.parent)
        logging.info("Downloading %s to %s", location, cached)
        write_atomically(cached, lambda temporary: _download(model_info, location, temporary))
        logging.info("Downloaded %s, SHA-256 %s", cached.name, digest_of_file(cached))
    return cached


def _download(name: str, location: str, target: Path) -> None:
    """Write a published file, and see that it is a whole archive of a model."""
    try:
        # The location is one of PUBLISHED.
        with urllib.request.urlopen(location, timeout=_TIMEOUT_SECONDS) as answer, target.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
            wanted = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        remedy = f"download {location} where there is a network, and give from_pretrained the file's path"
        raise ModelNotFoundError("there is no network to it", place=name, got=str(reason), remedy=remedy) from None
    if wanted is not None and target.stat().st_size != int(wanted):
        got = f"{target.stat().st_size} of {wanted} bytes"
        raise CheckpointError("the download is not complete", place=name, got=got, remedy="try again")
    NemoArchive(target)


# read_nemo: a ``.nemo`` file of NeMo 0.11 or 1.x as the configuration of 0.11 and the weights of each module.
# Of 1.x it takes CTC models with a convolutional encoder: Jasper, QuartzNet, Citrinet.


# Any: values of YAML.

_WEIGHTS_1 = "model_weights.ckpt"
_SPEC = "nemo.collections.asr.{}"
_MODEL_SPEC = _SPEC.format("models.asrconvctcmodel.ASRConvCTCModel")
# By section of 1.x: the classes that it may name.
_SECTIONS = {
    "preprocessor": ("AudioToMelSpectrogramPreprocessor", "AudioToMFCCPreprocessor"),
    "encoder": ("ConvASREncoder", "JasperEncoder"),
    "decoder": ("ConvASRDecoder", "JasperDecoderForCTC"),
    "spec_augment": ("SpectrogramAugmentation",),
}
_NAMES_HERE = {"ConvASREncoder": "JasperEncoder", "ConvASRDecoder": "JasperDecoderForCTC"}
# Keys of 1.x that say nothing about a trained model, and those that may only have the value that leaves it as it is.
_IGNORED = {
    *("_target_", "cls", "params", "rng", "nb_augmentation_prob", "nb_max_freq", "use_torchaudio", "name"),
}
_NEUTRAL: dict[str, Any] = {
    "quantize": False,
    "exact_pad": False,
    "stft_exact_pad": False,
    "future_context": -1,
    "add_blank": True,
    "use_grads": False,
    "mel_norm": "slaney",
}
# Classes of whole models since 1.x: those that are read, and by parts of the others' names why they are not.
_MODELS = ("EncDecCTCModel", "EncDecCTCModelBPE")
_OTHER_KINDS = {
    "Hybrid": "its encoder is a Conformer, which is not read yet",
    "RNNT": "a transducer has no CTC head",
    "MultiTask": "its decoder is a Transformer that reads text (Canary), not a CTC head",
    "speechlm": "a language model decodes it",
    "SALM": "a language model decodes it",
    ".nlp.": "a file of a language model, not of a model of speech",
    "language_modeling": "a file of a language model, not of a model of speech",
}
_FILTERS, _FILTER_TOLERANCE = "preprocessor.featurizer.fb", 1e-3
# Parts of the state of 1.x that are computed from the configuration.
_COMPUTED = ("preprocessor.", "spec_augmentation.", "spec_augment.", "loss.")


class NemoFile(NamedTuple):
    """The content of a ``.nemo`` file.

    Attributes:
        place: the file.
        config: ``header`` and ``init_params``, as 0.11 has them.
        weights: the tensors of each module by its class and their own name.
        tokenizer: the SentencePiece model whose pieces the labels are, where the file has one that is read here.
    """

    place: str
    config: Mapping[str, Any]
    weights: Mapping[str, Mapping[str, Tensor]]
    tokenizer: Subwords | None = None

    @property
    def class_name(self) -> str:
        """The class that the header names; "" where it names none."""
        header = self.config.get("header")
        return str(header.get("full_spec", "")).rpartition(".")[2] if isinstance(header, Mapping) else ""

    @property
    def params(self) -> Mapping[str, Any]:
        """The arguments of the class; none where the file has none."""
        params = self.config.get("init_params")
        return params if isinstance(params, Mapping) else {}

    def weights_of(self, module: str) -> Mapping[str, Tensor]:
        """The tensors of a module.

        Raises:
            CheckpointError: the file has none.
        """
        if module not in self.weights:
            got = ", ".join(self.weights) or "no weights"
            raise CheckpointError(f"there are no weights of {module}", place=self.place, got=got)
        return self.weights[module]


def read_nemo(path: str | Path) -> NemoFile:
    """Read a ``.nemo`` file of either generation, in memory. Its code is not run, and nothing is unpacked to the disk.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it is no archive, holds something that a model's file does not, or lacks its weights.
        ConfigError: its configuration cannot be read, or is of a model of another kind.
    """
    archive = NemoArchive(path)
    config = parse_config(archive.config, f"{archive.path}, {archive.config_name}")
    if archive.config_name == CONFIG_0:
        names = [name for name in archive.names if name.endswith(".pt")]
        weights = {name.removesuffix(".pt"): _tensors(archive, name) for name in names}
        return NemoFile(str(archive.path), _with_nemos_numbers(config.plain(), "0.11"), weights)
    model = _section(config, "model")
    config = config if model is None else model
    version = _version_of(config)
    translated, state = _with_nemos_numbers(_translated(config), version), _tensors(archive, _WEIGHTS_1)
    _compare_filters(translated["init_params"]["preprocessor_params"], state.get(_FILTERS), str(archive.path))
    weights = _split(state, str(archive.path))
    tokenizer = _tokenizer_of(archive, config)
    if tokenizer is not None:
        decoder = translated["init_params"]["decoder_params"]["init_params"]
        _check_pieces(tokenizer, decoder["vocabulary"], weights["JasperDecoderForCTC"], str(archive.path))
        translated["tokenizer"] = "tokenizer.model"
    return NemoFile(str(archive.path), translated, weights, tokenizer)


def _tokenizer_of(archive: NemoArchive, config: Config) -> Subwords | None:
    """The SentencePiece model in a file; None where it has none, or, with a warning, one that is not read here.

    Raises:
        CheckpointError: the configuration names one that is not in the archive.
    """
    section = _section(config, "tokenizer")
    path = str(section.get("model_path") or "") if section is not None and section.get("type", "bpe") == "bpe" else ""
    name = path.removeprefix("nemo:")
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        if name == path:  # of the machine that trained it
            name = PurePosixPath(name).name
        else:
            problem, wanted = "tokenizer.model_path leads out of the archive", "nemo:NAME of a file in it"
            raise CheckpointError(problem, place=str(archive.path), got=path, wanted=wanted)
    if not path or (name == path and name not in archive.names):
        return None
    member = archive.read(name)
    try:
        return Subwords(member.getvalue(), member.name)
    except DataError as error:
        logging.warning("%s. The model transcribes; to train or score it add --set tokenizer=FILE", error)
        return None


def _check_pieces(tokenizer: Subwords, labels: Sequence[str], head: Mapping[str, Tensor], place: str) -> None:
    """The pieces of a tokenizer must be the outputs of the head, in their order, and the blank behind them.

    Raises:
        CheckpointError: they are not.
    """
    outputs = [len(tensor) for name, tensor in head.items() if name.endswith("weight") and tensor.dim() == 3]
    if outputs and outputs[0] != len(tokenizer) + 1:
        got, wanted = f"{len(tokenizer)} pieces", f"{outputs[0] - 1}, one for each output of the decoder but the blank"
        raise CheckpointError("its tokenizer does not fit its decoder", place=place, got=got, wanted=wanted)
    if list(labels) == list(tokenizer):
        return
    outside = [label for label in labels if label not in tokenizer]
    if outside:
        got = f"{outside[0]!r}{f' and {len(outside) - 1} more' if outside[1:] else ''}"
        raise CheckpointError("a label is outside its tokenizer's vocabulary", place=place, got=got)
    problem, got = "its labels are not its tokenizer's pieces", f"{len(labels)} labels in another order"
    raise CheckpointError(problem, place=place, got=got, wanted=f"the {len(tokenizer)} pieces")


def _version_of(config: Config) -> str:
    """The version of NeMo that wrote a file of 1.x or later; the first ones do not say it.

    Raises:
        ConfigError: it is no version.
    """
    version = str(config.get("nemo_version") or "1.0")
    try:
        generation_of(version)
    except ValueError:
        raise_if([f"{config.place('nemo_version')}: nemo_version is {shown(version)}, wanted a version such as 2.5.0"])
    return version


def _with_nemos_numbers(config: Any, version: str) -> Any:
    """The configuration, with the frames of the NeMo that trained it, and its numbers in bands without signal."""
    try:
        preprocessor = config["init_params"]["preprocessor_params"]
        if preprocessor["header"]["full_spec"].endswith(".AudioToMelSpectrogramPreprocessor"):
            preprocessor["init_params"].setdefault("std_floor", 0.0)
            if preprocessor["header"]["full_spec"].startswith("nemo."):  # not of a file of ours
                preprocessor["init_params"].setdefault("generation", generation_of(version))
    except (KeyError, TypeError, AttributeError):
        pass  # whoever makes the modules says what is wrong
    return config


def _tensors(archive: NemoArchive, name: str) -> dict[str, Tensor]:
    member = archive.read(name)
    return read_torch_tensors(member, member.name)


def _compare_filters(params: Mapping[str, Any], theirs: Tensor | None, place: str) -> None:
    """Warn where the mel filters that the file holds are not those that its settings give here."""
    ours = getattr(NeuralModule.deserialize(params), "filters", None)  # (bins, bands)
    if theirs is None or ours is None:
        return
    theirs = theirs.float().squeeze(0).t()  # from (1, bands, bins)
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _FILTER_TOLERANCE * float(ours.max()):
        logging.warning("%s: its mel filters are not those that its settings give here; expect more errors", place)


def _split(state: Mapping[str, Tensor], place: str) -> dict[str, dict[str, Tensor]]:
    """The state of a whole model by module."""
    parts: dict[str, dict[str, Tensor]] = {"JasperEncoder": {}, "JasperDecoderForCTC": {}}
    for name, tensor in state.items():
        part, _, inner = name.partition(".")
        if part in ("encoder", "decoder"):
            parts["JasperEncoder" if part == "encoder" else "JasperDecoderForCTC"][inner] = tensor
        elif not name.startswith(_COMPUTED):
            wanted = "encoder.*, decoder.*, preprocessor.*"
            raise CheckpointError("its weights are of another kind of model", place=place, got=name, wanted=wanted)
    return parts


def _translated(config: Config) -> dict[str, Any]:
    """The configuration of a model of 1.x as one of 0.11.

    Raises:
        ConfigError: it is of another kind, or has settings that the modules here do not have: all at once.
    """
    _refuse_kind(config)
    problems: list[str] = []
    sections: dict[str, Any] = {}
    modules = classes_by_name(NeuralModule)
    for key, classes in _SECTIONS.items():
        section = _section(config, key)
        if section is None and key == "spec_augment":
            continue
        if section is None:
            problems.append(f"{config.place()}: {key} is missing")
            continue
        target = str(section.get("_target_", section.get("cls", key))).rpartition(".")[2]
        if target not in classes:
            wanted = " or ".join(classes)
            problems.append(
                f"{section.place()}: {key} is {target}, wanted {wanted}: only convolutional CTC models are read"
            )
            continue
        inner = _section(section, "params")
        values = section if inner is None else inner
        name = _NAMES_HERE.get(target, target)
        params = dict(_known_keys(config, values, modules[name].__init__, problems))
        sections[f"{key}_params"] = {"header": {"full_spec": _SPEC.format(name)}, "init_params": params}
    problems += _tokenizer_problems(config)
    if not problems:
        _complete(config, sections, problems)
    raise_if(problems)
    return {"header": {"full_spec": _MODEL_SPEC}, "init_params": sections}


def _refuse_kind(config: Config) -> None:
    """See that the class of a model is one whose CTC head is read here; a file need not name it.

    Raises:
        ConfigError: it is another one: one line with the reason.
    """
    target = str(config.get("target") or "")
    name = target.rpartition(".")[2]
    if not name or name in _MODELS:
        return
    reason = next((reason for part, reason in _OTHER_KINDS.items() if part in target), "its kind is not known here")
    raise_if([f"{config.place('target')}: the model is {name}: {reason}; read are {', '.join(_MODELS)}"])


def _section(config: Config, key: str) -> Config | None:
    section = config.get(key)
    return section if isinstance(section, Config) else None


def _known_keys(
    config: Config, section: Config, target: Callable[..., Any], problems: list[str]
) -> Iterator[tuple[str, Any]]:
    """The arguments of a section that its class here has; others must say nothing, or what is so anyway."""
    parameters = inspect.signature(target).parameters
    for key, value in section.items():
        value = _resolved(config, value)
        if key == "jasper" and isinstance(value, Sequence):
            yield key, [dict(_known_keys(config, block, JasperBlockSpec, problems)) for block in value]
        elif key in parameters and key not in _IGNORED:
            yield key, value.plain() if isinstance(value, Config) else value
        elif key not in _IGNORED and value is not None and value != _NEUTRAL.get(key):
            wanted = f", wanted {shown(_NEUTRAL[key])}" if key in _NEUTRAL else ""
            problems.append(
                f"{section.place(key)}: {section.path_of(key)} is {shown(value)}, which is not known here{wanted}"
            )


def _resolved(config: Config, value: Any) -> Any:
    """A value, where it stands for that of another key: ``${model_defaults.filters}``."""
    for _ in range(8):
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        target: Any = config
        for key in value[2:-1].split("."):
            target = target.get(key) if isinstance(target, Config) else None
        value = target
    return value


def _tokenizer_problems(config: Config) -> list[str]:
    tokenizer = _section(config, "tokenizer")
    kind = tokenizer.get("type", "bpe") if tokenizer is not None else "bpe"
    if tokenizer is None or kind in ("bpe", "wpe"):
        return []
    return [
        f"{tokenizer.place('type')}: tokenizer.type is {shown(kind)}, wanted bpe or wpe: its pieces are not known here"
    ]


def _complete(config: Config, sections: dict[str, Any], problems: list[str]) -> None:
    """Fill in what 1.x says elsewhere: labels, their number and the width of the encoder's output."""
    decoder = sections["decoder_params"]["init_params"]
    labels = decoder.get("vocabulary") or config.get("labels")
    if not isinstance(labels, list):
        problems.append(f"{config.place()}: decoder.vocabulary is missing, the list of the model's labels")
        return
    tokenizer = _section(config, "tokenizer")
    if tokenizer is not None and tokenizer.get("type", "bpe") == "wpe":
        labels = [_with_word_mark(str(label)) for label in labels]
    decoder["vocabulary"], decoder["num_classes"] = list(labels), len(labels)
    decoder["feat_in"] = decoder.get("feat_in") or sections["encoder_params"]["init_params"]["jasper"][-1]["filters"]


def _with_word_mark(piece: str) -> str:
    """A WordPiece (``the``, ``##ing``) as SentencePiece writes it: the mark is at the beginning of a word."""
    return piece.removeprefix("##") if piece.startswith("##") else f"\u2581{piece}"


# ASRConvCTCModel, QuartzNet and JasperNet: NeMo 0.11's classes of whole models, from files, by name, or from YAML.


# Any: configurations, as YAML has them.

M = TypeVar("M", bound="ASRConvCTCModel")


class ASRConvCTCModel(NeMoModel):
    """Preprocessor, encoder and CTC decoder with one call: ``model(input_signal=, length=)`` on wires.

    In training mode features go through ``spec_augmentation``.

    Args:
        preprocessor_params: ``header`` (``full_spec``: the class) and ``init_params`` of the preprocessor.
        encoder_params: the same of the encoder.
        decoder_params: the same of the decoder.
        spec_augment_params: the same of the augmentation; None for none.

    Attributes:
        preprocessor, encoder, decoder: the modules.
        spec_augmentation: the module, or None.

    Raises:
        ConfigError: a class that is not known, or arguments that do not fit it.
    """

    def __init__(
        self,
        preprocessor_params: Mapping[str, Any],
        encoder_params: Mapping[str, Any],
        decoder_params: Mapping[str, Any],
        spec_augment_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.preprocessor: Any = NeuralModule.deserialize(preprocessor_params)
        self.encoder: Any = NeuralModule.deserialize(encoder_params)
        self.decoder: Any = NeuralModule.deserialize(decoder_params)
        has_augmentation = spec_augment_params is not None
        self.spec_augmentation: Any = NeuralModule.deserialize(spec_augment_params or {}) if has_augmentation else None

    @property
    def modules(self) -> Sequence[NeuralModule]:
        """Preprocessor, augmentation where there is one, encoder, decoder."""
        parts = [self.preprocessor, self.spec_augmentation, self.encoder, self.decoder]
        return [part for part in parts if part is not None]

    @property
    def input_ports(self) -> Ports:
        ports: Ports = self.preprocessor.input_ports
        return ports

    @property
    def output_ports(self) -> Ports:
        return {**self.decoder.output_ports, "encoded_lengths": self.encoder.output_ports["encoded_lengths"]}

    @property
    def vocabulary(self) -> list[str] | None:
        """The decoder's labels; None, with a warning, where they are not known."""
        labels: list[str] | None = getattr(self.decoder, "vocabulary", None)
        if labels is None:
            logging.warning("%s: its decoder does not know its labels", type(self).__name__)
        return labels

    def train_call(self, **wires: NmTensor) -> tuple[NmTensor, NmTensor]:
        """The wires of log-probabilities and of their lengths, through the augmentation."""
        return self._connect(wires, self.spec_augmentation)

    def eval_call(self, **wires: NmTensor) -> tuple[NmTensor, NmTensor]:
        """The wires of log-probabilities and of their lengths."""
        return self._connect(wires, None)

    def _connect(self, wires: Mapping[str, NmTensor], augmentation: Any) -> tuple[NmTensor, NmTensor]:
        features, lengths = self.preprocessor(**wires)
        if augmentation is not None:
            features = augmentation(input_spec=features)
        encoded, encoded_lengths = self.encoder(audio_signal=features, length=lengths)
        return self.decoder(encoder_output=encoded), encoded_lengths

    @classmethod
    def list_pretrained_models(cls) -> list[PretrainedModelInfo]:
        """NVIDIA's published models of this class."""
        return [
            PretrainedModelInfo(name, model.description, "", model.location) for name, model in cls._published().items()
        ]

    @classmethod
    def _published(cls) -> dict[str, Any]:
        return {
            name: model for name, model in PUBLISHED.items() if cls.__name__ in ("ASRConvCTCModel", model.class_name)
        }

    @classmethod
    def from_pretrained(
        cls: type[M],
        model_info: str,
        local_rank: int = 0,
        refresh_cache: bool = False,
        new_vocab: Sequence[str] | None = None,
    ) -> M:
        """A model with its weights.

        Args:
            model_info: a ``.nemo`` file of NeMo 0.11 or 1.x, or the name of a listed model, which this call downloads
                unless it has been downloaded before.
            local_rank: kept for NeMo's scripts; weights go where the factory runs them.
            refresh_cache: download a listed model again.
            new_vocab: labels of a new, untrained decoder; the encoder's weights stay.

        Raises:
            ModelNotFoundError: there is no such file and no such model, or it cannot be downloaded.
            CheckpointError: it is no archive of a model, or its weights do not fit its configuration.
            ConfigError: its configuration is one of another kind of model.
        """
        stored = read_nemo(local_file(model_info, cls._published(), refresh_cache))
        params, new_decoder = dict(stored.params), new_vocab is not None
        if new_vocab is not None:
            decoder = dict(params.get("decoder_params") or {})
            labels = {"num_classes": len(new_vocab), "vocabulary": list(new_vocab)}
            params["decoder_params"] = {**decoder, "init_params": {**(decoder.get("init_params") or {}), **labels}}
        model_class = next((subclass for subclass in subclasses(cls) if subclass.__name__ == stored.class_name), cls)
        spec = f"{model_class.__module__}.{model_class.__qualname__}"
        model = cls.deserialize({"header": {"full_spec": spec}, "init_params": params})
        for name, module in model.modules_with_weights().items():
            if not (new_decoder and module is model.decoder):
                fill_module(module, fitted(module, stored.weights_of(name), f"{stored.place}, {name}"))
        return model


class QuartzNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are QuartzNets. Its arguments are those."""


class JasperNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are Jaspers. Its arguments are those."""
