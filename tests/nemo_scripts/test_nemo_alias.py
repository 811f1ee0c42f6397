"""Scripts of NeMo find our modules under NeMo's names, and nothing of that is left afterwards."""

import importlib
import sys

import nemo_asr.jasper
import pytest
from toys.nemo_alias import nemo_alias

import nemo_asr
import nemo_lite
from nemo_lite.backends.pytorch.nm import TrainableNM


def test_nemos_names_give_the_same_module_objects():
    with nemo_alias():
        assert importlib.import_module("nemo") is nemo_lite
        assert importlib.import_module("nemo.core") is nemo_lite.core
        assert importlib.import_module("nemo.backends.pytorch.nm").TrainableNM is TrainableNM
        assert importlib.import_module("nemo.collections.asr") is nemo_asr
        assert importlib.import_module("nemo.collections.asr.jasper") is nemo_asr.jasper
        names: dict[str, object] = {}
        exec("import nemo\nimport nemo.collections.asr as asr\nfrom nemo.core.neural_types import *", names)
        assert names["asr"] is nemo_asr
        assert names["NeuralType"] is nemo_lite.core.NeuralType


def test_modules_keep_their_own_names():
    with nemo_alias():
        importlib.import_module("nemo.core.neural_types")
        spec = nemo_lite.core.neural_types.__spec__
        assert spec is not None
        assert spec.name == nemo_lite.core.neural_types.__name__ == "nemo_lite.core.neural_types"


def test_a_module_that_is_not_there_is_said_so():
    with nemo_alias(), pytest.raises(ModuleNotFoundError, match="nothing_of_ours"):
        importlib.import_module("nemo.core.nothing_of_ours")


def test_nothing_is_left_afterwards():
    with nemo_alias():
        importlib.import_module("nemo.collections.asr.jasper")
    assert [name for name in sys.modules if name == "nemo" or name.startswith("nemo.")] == []
    with pytest.raises(ImportError):
        importlib.import_module("nemo")
