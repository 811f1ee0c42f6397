"""ASRConvCTCModel, QuartzNet and JasperNet: NeMo 0.11's classes of whole models, from files, by name, or from YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from nemo_asr.models.pretrained.download import PUBLISHED, local_file
from nemo_asr.models.pretrained.layouts import read_nemo
from nemo_lite import NeuralModule, NmTensor, logging
from nemo_lite.backends.pytorch.checkpoint import fill_module, fitted
from nemo_lite.core import Ports
from nemo_lite.core.models import NeMoModel, PretrainedModelInfo
from nemo_lite.core.neural_module import subclasses

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
            PretrainedModelInfo(name, each.description, "", each.location) for name, each in cls._published().items()
        ]

    @classmethod
    def _published(cls) -> dict[str, Any]:
        return {name: each for name, each in PUBLISHED.items() if cls.__name__ in ("ASRConvCTCModel", each.class_name)}

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
        own = next((each for each in subclasses(cls) if each.__name__ == stored.class_name), cls)
        spec = f"{own.__module__}.{own.__qualname__}"
        model = cls.deserialize({"header": {"full_spec": spec}, "init_params": params})
        for name, module in model.modules_with_weights().items():
            if not (new_decoder and module is model.decoder):
                fill_module(module, fitted(module, stored.weights_of(name), f"{stored.place}, {name}"))
        return model


class QuartzNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are QuartzNets. Its arguments are those."""


class JasperNet(ASRConvCTCModel):
    """An :class:`ASRConvCTCModel` whose published models are Jaspers. Its arguments are those."""
