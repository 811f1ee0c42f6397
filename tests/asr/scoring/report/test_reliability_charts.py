"""Reliability plots from calibration.json."""

import msgspec
import numpy as np
import pytest
from toys.run_folder import make_run

from nemo_asr.run.calibration import Calibration, CalibrationRecord, MeasuredSet, reliability
from nemo_asr.scoring.report.charts import reliability_charts
from nemo_asr.scoring.report.page import write_report
from nemo_lite.base.errors import DataError


def write_calibration(folder):
    right = np.array([True, True, False, True])
    before, after = (reliability(np.array(c), right) for c in ([0.95, 0.95, 0.95, 0.55], [0.75, 0.75, 0.75, 0.65]))
    sets = [MeasuredSet(name="dev (held out)", before=before, after=after)]
    record = CalibrationRecord(calibration=Calibration(slope=1.0, offset=0.0), sets=sets)
    (folder / "calibration.json").write_bytes(msgspec.json.encode(record))


def test_a_plot_has_what_is_measured_before_and_after_beside_what_should_be(tmp_path):
    write_calibration(tmp_path)
    (drawn,) = reliability_charts(tmp_path)
    assert (drawn.title, drawn.x_name) == ("Share of right words, dev (held out)", "confidence")
    assert [line.name for line in drawn.lines] == ["equal", "before: 32.5% off", "calibrated: 15.0% off"]
    assert [text for _, _, text in drawn.lines[1].dots] == [
        "before: 32.5% off, confidence 0.55: 100 %",
        "before: 32.5% off, confidence 0.95: 66.67 %",
    ]


def test_the_report_of_a_run_shows_the_plot(tmp_path):
    run = make_run(tmp_path / "run", num_rows=2)
    assert "Share of right words" not in write_report(run).read_text(encoding="utf-8")
    write_calibration(run)
    page = write_report(run).read_text(encoding="utf-8")
    assert "Share of right words, dev (held out)" in page
    assert page.count('text-anchor="end">confidence</text>') == 1


def test_a_folder_without_a_calibration_has_no_plot_and_a_damaged_one_is_told(tmp_path):
    assert reliability_charts(tmp_path) == []
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(DataError, match=r"calibration\.json: the calibration is damaged: got Object missing"):
        reliability_charts(tmp_path)
