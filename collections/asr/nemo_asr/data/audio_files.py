"""AudioFilesDataLayer: recordings without transcripts, straight from their files. Manifests are read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from nemo_asr.data.copied import CopiedFiles
from nemo_asr.features.audio_preprocessor import audio_ports
from nemo_asr.run.arguments import BatchSize, SampleRate
from nemo_asr.run.audio.kinds import KINDS
from nemo_asr.run.audio.reading import read_audio
from nemo_lite import DataLayerNM
from nemo_lite.backends.pytorch.nm import Copied
from nemo_lite.base.errors import DataError
from nemo_lite.core.ports import Ports
from nemo_lite.core.shapes import Shape, symbol


class AudioFilesDataLayer(DataLayerNM):
    """Audio files, to be recognised: audio (B, T) at ``sample_rate`` and its lengths (B,), in the order given.

    Over several ranks each file comes once.

    Args:
        paths: audio files of any kind, rate and number of channels.
        batch_size: files in a batch.
        sample_rate: samples a second; files of another rate are resampled.
        trim_silence: leave out what is more than 60 dB below the loudest part at both ends: ``Recipe.reading`` says
            whether the model was evaluated so.
        int_values: read through 32-bit integers: floats beyond full scale are clipped.
        name: the module's name.

    Raises:
        DataError: no file is given, or one is not there; while reading, also one that is damaged.
    """

    def __init__(
        self,
        paths: Sequence[str],
        batch_size: BatchSize = 1,
        sample_rate: SampleRate = 16000,
        trim_silence: bool = False,
        int_values: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if not paths:
            raise DataError("no audio file is given")
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            remedy = f"give {KINDS} files"
            raise DataError("there is no such audio file", place=", ".join(missing), remedy=remedy)
        self.batch_size, self._sample_rate = batch_size, sample_rate
        self._files = _Files(paths, sample_rate, trim_silence, int_values)
        self.collate_fn = _padded

    @property
    def output_ports(self) -> Ports:
        """Audio and its lengths."""
        return audio_ports(self._sample_rate)

    def output_shapes(self, shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Samples are the only free size."""
        return {"audio_signal": (symbol("B"), symbol("samples")), "a_sig_length": (symbol("B"),)}

    def __len__(self) -> int:
        return len(self._files)

    def place_of(self, item: int) -> str:
        """The file's path."""
        return self._files.paths[item]

    def copied(self) -> Copied:
        """The files."""
        return CopiedFiles(self._files.paths)

    @property
    def dataset(self) -> Dataset[Tensor]:
        """The recordings."""
        return self._files


class _Files(Dataset[Tensor]):
    def __init__(self, paths: Sequence[str], sample_rate: int, trim_silence: bool, int_values: bool) -> None:
        self.paths = list(paths)
        self._read = partial(read_audio, sample_rate=sample_rate, trim_silence=trim_silence, int_values=int_values)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, item: int) -> Tensor:
        return torch.from_numpy(self._read(self.paths[item]).samples)


def _padded(recordings: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(recording) for recording in recordings])
    return pad_sequence(list(recordings), batch_first=True), lengths
