"""Mean and spread of the rates of several seeds."""

import json
from statistics import stdev

import pytest
from toys.run_folder import make_run, records, write_lines

from nemo_asr.scoring.report.seed_table import SeedResult, read_result, seed_table, spreads, write_seeds
from nemo_lite.base.errors import UsageError


def result(seed, **rates):
    return SeedResult(
        seed, f"runs/seed_{seed}", 10, {name: {"wer": wer, "cer": wer / 2} for name, wer in rates.items()}
    )


THREE = [result(0, dev=0.10, test=0.2), result(1, dev=0.13, test=0.3), result(2, dev=0.16)]


def test_the_rates_of_a_run_are_those_of_its_model(tmp_path):
    lines = records()
    lines.append({"kind": "evaluation", "step": 150, "set": "dev", "wer": 0.9, "cer": None})
    write_lines(tmp_path / "metrics.jsonl", lines)
    found = read_result(7, tmp_path)
    assert (found.seed, found.folder, found.step) == (7, str(tmp_path), 100)
    assert found.rates == {"dev": {"wer": 0.25, "cer": 0.1}, "other": {"wer": 0.35, "cer": 0.14}}


def test_a_run_without_a_model_gives_its_last_rates_and_one_without_records_is_refused(tmp_path):
    lines = [line for line in records() if line["kind"] != "model"]
    write_lines(
        tmp_path / "a" / "metrics.jsonl", [*lines, {"kind": "evaluation", "step": 150, "set": "dev", "wer": 0.9}]
    )
    assert (read_result(0, tmp_path / "a").step, read_result(0, tmp_path / "a").rates) == (150, {"dev": {"wer": 0.9}})
    with pytest.raises(UsageError, match="the file of metrics cannot be opened"):
        read_result(0, tmp_path / "none")


def test_mean_and_spread_are_over_the_seeds_that_have_the_rate():
    found = spreads(THREE)
    assert found["dev"]["wer"].mean == pytest.approx(0.13)
    assert found["dev"]["wer"].spread == pytest.approx(stdev([0.10, 0.13, 0.16])) == pytest.approx(0.03)
    assert (found["dev"]["wer"].lowest, found["dev"]["wer"].highest) == (0.10, 0.16)
    assert found["test"]["wer"].number == 2
    assert spreads(THREE[:1])["dev"]["wer"].spread is None
    assert list(spreads(THREE, "cer")["dev"]) == ["cer", "wer"]


def test_the_table_has_a_column_for_each_seed():
    lines = seed_table(THREE).splitlines()
    assert lines[0].split() == ["set", "rate", "seed", "0", "seed", "1", "seed", "2", "mean", "spread"]
    assert lines[2].split() == ["dev", "WER", "10.00", "13.00", "16.00", "13.00", "3.00"]
    assert lines[3].split() == ["CER", "5.00", "6.50", "8.00", "6.50", "1.50"]
    assert lines[4].split() == ["test", "WER", "20.00", "30.00", "25.00", "7.07"]
    assert len({line.rstrip()[-1] for line in lines[2:6]}) > 1
    assert lines[-1] == "In percent, of each run's model. Spread: standard deviation over the seeds."


def test_the_json_has_the_same_and_names_seeds_that_failed(tmp_path):
    write_seeds(tmp_path / "seeds.json", THREE, {3: 2})
    read = json.loads((tmp_path / "seeds.json").read_text())
    assert read["failed"] == [{"seed": 3, "exit_code": 2}]
    assert read["seeds"][1] == {
        **{"seed": 1, "folder": "runs/seed_1", "step": 10},
        **{"rates": {"dev": {"wer": 0.13, "cer": 0.065}, "test": {"wer": 0.3, "cer": 0.15}}},
    }
    assert read["sets"]["dev"]["wer"]["mean"] == pytest.approx(0.13)


def test_a_run_of_the_report_s_tests_can_be_read(tmp_path):
    assert read_result(0, make_run(tmp_path / "run", num_rows=2)).rates["dev"]["wer"] == 0.25
