"""Reliability plots: for confidences of about p, the share of right words; before calibration and after it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from nemo_asr.scoring.calibration import FILE_NAME, CalibrationRecord, MeasuredSet, Reliability
from nemo_asr.scoring.report.charts import Chart, Curve, chart
from nemo_lite.errors import DataError
from nemo_lite.untrusted import FileKind, parse_json, read_bytes

_KIND = FileKind("the calibration", 1 << 24)
_DECODER = msgspec.json.Decoder(CalibrationRecord)


def reliability_charts(folder: Path) -> list[Chart]:
    """A plot for each set in ``calibration.json`` of a folder; none where there is no such file.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / FILE_NAME
    if not os.path.lexists(path):
        return []
    content = read_bytes(path, _KIND)
    parse_json(content, path, _KIND)
    try:
        sets = _DECODER.decode(content).sets
    except msgspec.MsgspecError as error:
        raise DataError("the calibration is damaged", place=str(path), got=str(error)) from None
    return [drawn for each in sets if (drawn := _plot(each)) is not None]


def _plot(measured: MeasuredSet) -> Chart | None:
    curves = [
        Curve("equal", [(0.0, 0.0), (1.0, 1.0)]),
        Curve(f"before: {measured.before.error:.1%} off", _points(measured.before), 2),
        Curve(f"calibrated: {measured.after.error:.1%} off", _points(measured.after), 1),
    ]
    return chart(f"Share of right words, {measured.name}", curves, percent=True, x_name="confidence")


def _points(found: Reliability) -> list[tuple[float, float]]:
    return [(each.confidence, each.right) for each in found.bins]
