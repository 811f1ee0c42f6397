"""The families ``attention``, and ``ctc_attention``: an attention decoder and a head of CTC on one encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from nemo_asr.decoding.attention import AttentionRescoring, AttentionSearch
from nemo_asr.decoding.greedy import HypothesesType
from nemo_asr.models.attention.decoder import AttentionDecoder
from nemo_asr.run.options import SearchOptions
from nemo_asr.tasks.families import CTC, BesideCTC
from nemo_asr.tasks.family import (
    FAMILIES,
    SPEECH_ROLES,
    Data,
    Exported,
    Family,
    Model,
    Modules,
    Role,
    Signal,
    Weighted,
    Wires,
    augmented_features,
)
from nemo_asr.tasks.registry import defaults_of
from nemo_lite import NeuralModule
from nemo_lite.base.errors import UsageError
from nemo_lite.core import AcousticEncodedRepresentation, LabelsType, LogprobsType, LossType, Reference


class Attention(Family):
    """The decoder says one label after the other, and looks at all frames for each. The search calls it by reference.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        **SPEECH_ROLES,
        "attention": Role((AcousticEncodedRepresentation, LabelsType), (LogprobsType,), needed=True),
        "loss": Role((LabelsType, LogprobsType), (LossType,)),
        "search": Role((AcousticEncodedRepresentation,), (HypothesesType,)),
    }
    heads: ClassVar[Mapping[str, str]] = {"attention": "attention"}
    label_roles: ClassVar[Sequence[str]] = ("attention",)

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """From audio to hypotheses and, where there are texts, the loss."""
        features, labels = augmented_features(modules, data, training)
        encoded, *_ = modules("encoder", features)
        losses = self.losses_of(modules, encoded, labels) if labels else {}  # first: the search refers to the decoder
        predictions, *_ = modules("search", encoded)
        return Wires.of(predictions, encoded, features, labels, losses)

    def losses_of(self, modules: Modules, encoded: Signal, labels: Signal) -> dict[str, Weighted]:
        """The losses of the decoder: one, or one for each direction of reading."""
        from_left, *others = modules("attention", encoded, labels)
        decoder = from_left.values.producer
        assert isinstance(decoder, AttentionDecoder)
        losses = {"attention": from_left}
        share = decoder.reverse_weight
        if others and share:
            losses["reversed_attention"] = others[0]
        shares = {"attention": 1 - share, "reversed_attention": share}
        return {
            name: Weighted(modules("loss", labels, log_probs)[0].values, shares[name])
            for name, log_probs in losses.items()
        }

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """None of our own; `nemo_asr.export.attention_networks` has those of other programs."""
        heads = " or ".join(head for head, family in self.heads.items() if family == "ctc")
        other = f"give --head {heads}" if heads else "write --format onnx-asr or sherpa-onnx"
        remedy = f"{other}, or use the model folder"
        raise UsageError("attention decoders are not exported", got=f"family {self.name}", remedy=remedy)

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """A search with another beam, where one is asked for."""
        own = modules["search"]
        if options is None:
            return own
        if not isinstance(own, AttentionSearch):
            return Family.search(self, labels, options, modules)
        return own.with_options(options)


class CTCAttention(Attention, BesideCTC):
    """An attention decoder and a head of CTC on one encoder; its search reads one of them, or both: rescoring.

    Source: Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", IEEE JSTSP 2017.
    """

    roles: ClassVar[Mapping[str, Role]] = {**Attention.roles, **BesideCTC.ctc_roles}
    heads: ClassVar[Mapping[str, str]] = {
        "attention_rescoring": "ctc_attention",
        "attention": "ctc_attention",
        "ctc": "ctc",
    }
    label_roles: ClassVar[Sequence[str]] = ("attention", "decoder")

    def with_head(self, head: str, model: Model, labels: Sequence[str]) -> Model:
        """With the search of the model, if that is one of the head; else with the default of the head."""
        family, modules = self.heads[head], model.modules
        if head == "ctc":
            modules = {role: module for role, module in modules.items() if role in FAMILIES[family].roles}
            modules["loss"] = model.others["ctc_loss"]
        if head != self._head_of(modules["search"]):
            attention: Any = Reference(model.others["attention"])
            searches: dict[str, Callable[[], NeuralModule]] = {
                "attention_rescoring": lambda: AttentionRescoring(attention, labels),
                "attention": lambda: AttentionSearch(attention, has_ctc=True),
                "ctc": defaults_of(family)["search"],
            }
            modules["search"] = searches[head]()
        return Model.of(modules, family, {})

    def connect(self, modules: Modules, data: Data, training: bool) -> Wires:
        """As of an attention decoder, with log-probabilities, and with the weighted losses of both heads."""
        features, labels = augmented_features(modules, data, training)
        encoded, *_ = modules("encoder", features)
        log_probs, *_ = modules("decoder", encoded)
        losses: dict[str, Weighted] = {}
        if labels:
            of_attention = self.losses_of(modules, encoded, labels)
            ctc = self.ctc_loss(modules, log_probs, labels)
            rest = 1 - ctc.weight
            losses = {name: Weighted(loss, rest * share) for name, (loss, share) in of_attention.items()}
            losses["ctc"] = ctc
        predictions, *_ = modules("search", encoded, log_probs)
        return Wires.of(predictions, log_probs, features, labels, losses, log_probs)

    def search(
        self, labels: Sequence[str], options: SearchOptions | None, modules: Mapping[str, NeuralModule]
    ) -> NeuralModule:
        """Of the head that the model's own search reads, with what is asked for."""
        own = modules["search"]
        if options is not None and isinstance(own, AttentionRescoring):
            return own.with_options(labels, options)
        return (CTC if self._head_of(own) == "ctc" else Attention).search(self, labels, options, modules)

    def exported(self, wires: Wires, modules: Mapping[str, NeuralModule]) -> dict[str, Exported]:
        """Of the head of CTC, if the search reads that alone."""
        is_ctc = self._head_of(wires.predictions.call.module) == "ctc"
        return (CTC if is_ctc else Attention).exported(self, wires, modules)

    @staticmethod
    def _head_of(search: NeuralModule) -> str:
        """The head that a search is of."""
        elements = [type(port.elements_type) for port in search.input_ports.values()]
        if AcousticEncodedRepresentation not in elements:
            return "ctc"
        return "attention" if isinstance(search, AttentionSearch) else "attention_rescoring"
