"""A script that uses NeMo's graphs runs unchanged."""

import pytest
from toys.nemo_alias import run_script


@pytest.mark.long
def test_a_script_with_graphs_trains_validates_writes_and_reads_them(tmp_path):
    names = run_script("neural_graphs.py", [str(tmp_path)])
    assert len(names["seen"]) > 2
    assert names["seen"][-1] < 0.05 < names["seen"][0]
    assert names["restored"]
    assert names["is_frozen"]
    assert len(names["own_losses"]) == 8
    assert max(names["own_losses"]) < 0.05
    assert names["again"].summary().replace("training_again", "training") == names["training_graph"].summary()
    assert len(names["training_graph"].steps) == len(names["validation_graph"].steps) == 3
    assert abs(names["predicted"].item()) < 0.1
