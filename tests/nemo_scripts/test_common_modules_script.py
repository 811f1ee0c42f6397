"""A script that uses NeMo's common losses, layers and modules runs unchanged."""

from toys.nemo_alias import run_script


def test_a_script_with_common_modules_trains():
    names = run_script("common_modules.py")
    assert max(names["after"]) < 0.2 < min(names["before"])
    assert names["shapes"] == [(2, 32, 8)] * 2
    assert names["pairs"] == 32 * 32
