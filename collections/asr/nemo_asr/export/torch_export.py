"""A trained model as a program of ``torch.export``, which torch runs without this package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_asr.export.onnx_export import OutputComparison, compare, compared_batches, metadata_of
from nemo_asr.export.runner_export import RunnerParts
from nemo_asr.run.audio.files import Samples
from nemo_asr.trained.model import TrainedModel
from nemo_lite.backends.pytorch.export import reason_of
from nemo_lite.base.errors import UsageError
from nemo_lite.base.files import check_replaceable, refuse_existing, write_atomically
from nemo_lite.utils import logging

METADATA = "metadata.json"


class _Padded(nn.Module):
    """The whole model with zeros behind the samples: torch's programs refuse audio that is shorter than a window."""

    def __init__(self, whole: nn.Module, num_samples: int) -> None:
        super().__init__()
        self.whole, self.num_samples = whole, num_samples

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """Frames behind a recording have no meaning."""
        outputs: tuple[Tensor, ...] = self.whole(F.pad(audio_signal, (0, self.num_samples)), length)
        return outputs


def export_torch(model: TrainedModel, path: str | Path, recordings: Sequence[Samples] = ()) -> OutputComparison:
    """Write a program of ``torch.export`` (.pt2): from waveforms (B, T) and lengths to log-probabilities and lengths.

    ``torch.export.load(path).module()`` runs it on the CPU, with nothing of this package; the file ``metadata.json`` in
    it says what an ONNX file of ours says.

    Args:
        model: it is left as it was.
        path: the file; there must be none yet.
        recordings: samples at the model's rate, on which the program is compared as well.

    Raises:
        FileInTheWayError: there is such a file.
        UsageError: torch cannot export a module, or the program gives something else than the modules.
    """
    path = Path(path).expanduser()
    refuse_existing(path)
    check_replaceable(path)
    parts = RunnerParts.of(model, "torch")
    metadata = json.dumps(metadata_of(model, parts.wires, parts.file), ensure_ascii=False)
    batches = compared_batches(model.card.sample_rate, recordings)
    compared: list[OutputComparison] = []
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in ((0, 1), (0,)))

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            torch.export.save(program, file, extra_files={METADATA: metadata})
        with open(temporary, "rb") as file:
            loaded = torch.export.load(file).module()
        compared.append(compare(whole, loaded, batches, model.card, str(path)))

    logging.info("%s: tracing the model, which may take minutes", path.name)
    with parts.whole() as whole:
        try:
            padded = _Padded(whole, model.card.sample_rate // 10).eval()
            program = torch.export.export(padded, batches[4], dynamic_shapes=shapes, strict=False)
        except Exception as error:  # many classes
            problem, remedy = "torch cannot export the model", "write forward without branches on values of tensors"
            raise UsageError(problem, place=str(path), got=reason_of(error), remedy=remedy) from error
        write_atomically(path, write)
    return compared[0]
