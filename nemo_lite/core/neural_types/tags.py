"""The axis tags of NeMo 0.8 and 0.9: classes, of which a derived one is a special case of its base. No types here."""

from __future__ import annotations


class BaseTag:
    """Root of the tags."""


class BatchTag(BaseTag):
    """Items of a batch."""


class CategoricalTag(BatchTag):
    """Categories, one for each item of a batch."""


class RegressionTag(BatchTag):
    """Real numbers, one for each item of a batch."""


class TimeTag(BaseTag):
    """Time."""


class ProcessedTimeTag(TimeTag):
    """Time after a change of its rate: frames."""


class ChannelTag(BaseTag):
    """Channels: features of any sort."""


class EmbeddedTextTag(ChannelTag):
    """Vectors that stand for text."""


class SpectrogramSignalTag(ChannelTag):
    """Bins of a spectrogram."""


class MelSpectrogramSignalTag(SpectrogramSignalTag):
    """Bins on the mel scale."""


class MFCCSignalTag(SpectrogramSignalTag):
    """Mel-frequency cepstral coefficients."""


class EncodedRepresentationTag(ChannelTag):
    """What an encoder gives."""


class ClassTag(BaseTag):
    """Classes."""


class WidthTag(BaseTag):
    """Width of a picture."""


class HeightTag(BaseTag):
    """Height of a picture."""
