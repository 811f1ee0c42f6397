"""NeMo 0.11's classes of whole models, and downloads of published ones. Their files: `nemo_files.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nemo_asr.corpora.archives import download
from nemo_asr.trained.foreign import ForeignModel
from nemo_asr.trained.nemo_files import read_nemo
from nemo_lite import NeuralModule, NmTensor, logging
from nemo_lite.backends.pytorch.checkpoint.fitting import fill_fitted
from nemo_lite.base.errors import CheckpointError, DataError, ModelNotFoundError, did_you_mean
from nemo_lite.base.files import digest_of_file, make_writable_folder
from nemo_lite.base.nemo_archive import NemoArchive
from nemo_lite.compat.nemo_model import NeMoModel
from nemo_lite.core import Ports
from nemo_lite.core.neural_module import subclasses
from nemo_lite.core.ports import PretrainedModelInfo

CACHE = "~/.cache/torch/NeMo/NEMO_0.11.0"  # NeMo 0.11's own: what it has downloaded is found
_NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"


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
        problem, got = "there is no such model", f'"{model_info}"{did_you_mean(model_info, names)}'
        wanted = f"a .nemo file that is there, or one of {', '.join(names)}"
        remedy = "read folders with nemo_asr.load_model" if path.is_dir() else ""
        raise ModelNotFoundError(problem, place="from_pretrained", got=got, wanted=wanted, remedy=remedy)
    location = PUBLISHED[model_info].location
    cached = Path(CACHE, location.rpartition("/")[2]).expanduser()
    if refresh or not cached.is_file():
        make_writable_folder(cached.parent)
        remedy = f"download {location} where there is a network, and give from_pretrained the file's path"
        try:
            download(location, cached, check=NemoArchive, remedy=remedy)
        except DataError as error:
            details = {"got": error.got, "wanted": error.wanted, "remedy": error.remedy}
            raise ModelNotFoundError(error.problem, place=model_info, **details) from None
        logging.info("Downloaded %s, SHA-256 %s", cached.name, digest_of_file(cached))
    return cached


# Any: configurations, as YAML has them.

M = TypeVar("M", bound="ASRConvCTCModel")
# By how the names of modules end: the argument of ASRConvCTCModel that makes them.
_ARGUMENTS = {
    "Preprocessor": "preprocessor_params",
    "Augmentation": "spec_augment_params",
    "Encoder": "encoder_params",
    "DecoderForCTC": "decoder_params",
}


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
        class_name, params = _arguments_of(stored)
        new_decoder = new_vocab is not None
        if new_vocab is not None:
            decoder = dict(params.get("decoder_params") or {})
            labels = {"num_classes": len(new_vocab), "vocabulary": list(new_vocab)}
            params["decoder_params"] = {**decoder, "init_params": {**(decoder.get("init_params") or {}), **labels}}
        model_class = next((subclass for subclass in subclasses(cls) if subclass.__name__ == class_name), cls)
        spec = f"{model_class.__module__}.{model_class.__qualname__}"
        model = cls.deserialize({"header": {"full_spec": spec}, "init_params": params})
        for name, module in model.modules_with_weights().items():
            if not (new_decoder and module is model.decoder):
                if name not in stored.weights:
                    got = ", ".join(stored.weights) or "no weights"
                    raise CheckpointError(f"there are no weights of {name}", place=stored.place, got=got)
                fill_fitted(module, stored.weights[name], f"{stored.place}, {name}")
        return model


def _arguments_of(stored: ForeignModel) -> tuple[str, dict[str, Any]]:
    """The class that a file names, and the arguments of that class; "" and none where it has none."""
    made: dict[str, Any] = {}
    for name, section in stored.config.items():
        key = next((key for part, key in _ARGUMENTS.items() if name.endswith(part)), None)
        if key is not None:
            made[key] = {"header": {"full_spec": f"nemo_asr.{name}"}, "init_params": section}
    if "decoder_params" not in made:  # of NeMo 0.11
        header, params = stored.config.get("header"), stored.config.get("init_params")
        name = str(header.get("full_spec", "")).rpartition(".")[2] if isinstance(header, Mapping) else ""
        return name, dict(params) if isinstance(params, Mapping) else {}
    labels = stored.config.get("labels") or list(stored.tokenizer or ())
    (head,) = (tensor for tensor in stored.weights["JasperDecoderForCTC"].values() if tensor.dim() > 1)
    decoder = {"feat_in": head.shape[1], "num_classes": len(labels), "vocabulary": labels}
    made["decoder_params"]["init_params"] = {**made["decoder_params"]["init_params"], **decoder}
    return "ASRConvCTCModel", made


class QuartzNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are QuartzNets. Its arguments are those."""


class JasperNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are Jaspers. Its arguments are those."""
