"""The decoder of intermediate CTC. How its loss is added is in `nemo_asr/recipe/wiring.py`."""

from __future__ import annotations

from nemo_asr.models.jasper import JasperDecoderForCTC


class IntermediateDecoderForCTC(JasperDecoderForCTC):
    """From the intermediate output of an encoder to log-probabilities; used in training only.

    It is a `JasperDecoderForCTC` under another name: checkpoints name files by the class, and the model's own decoder
    keeps its name. Its input has the channels of a block in the middle, so it cannot share the weights of that decoder,
    as it does in the source.

    Source: Lee and Watanabe, "Intermediate Loss Regularization for CTC-based Speech Recognition", ICASSP 2021.
    """
