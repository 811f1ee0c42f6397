"""What users may import: the names that the doors re-export, written out. A name goes or comes on purpose only."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

NEURAL_TYPES = """
    AcousticEncodedRepresentation AudioSignal AxisKind AxisKindAbstract AxisType CategoricalValuesType
    ChannelType ClassificationTarget ElementType EmbeddedTextType EncodedRepresentation ImageFeatureValue
    ImageValue Index IntType LabelsType Length LengthsType LogitsType LogprobsType LossType
    MFCCSpectrogramType MaskType MelSpectrogramType NeuralPortNameMismatchError
    NeuralPortNmTensorMismatchError NeuralType NeuralTypeComparisonResult NeuralTypeError NormalizedImageValue
    PredictionsType RegressionValuesType SpectrogramType StringLabel StringType Target TokenIndex VoidType
"""

PUBLIC = {
    "nemo_lite": """
        Backend CheckpointCallback Dag DataLayerNM DeviceType EvaluatorCallback LossNM NeMoCallback
        NemoLiteError NeuralModule NeuralModuleFactory NmTensor NonTrainableNM Optimization PtActions
        SimpleLogger SimpleLossLoggerCallback TensorboardLogger TrainableNM TrainableNeuralModuleWrapper
        WeightShareTransform backends core errors logging tutorials utils
    """,
    "nemo_lite.core": """
        ActionCallback Backend CheckpointCallback Dag DeviceType EvaluatorCallback ModuleSaverCallback
        NeMoCallback NeuralModule NeuralModuleFactory NmTensor Node Optimization Ports SimpleLogger
        SimpleLossLoggerCallback Slice Step TensorboardLogger UnfreezeCallback ValueSetterCallback WandBLogger
        WandbCallback WeightShareTransform callbacks neural_factory neural_modules neural_types on_action_end
        on_action_start on_batch_end on_batch_start on_epoch_end on_epoch_start on_step_end on_step_start
    """
    + NEURAL_TYPES,
    "nemo_lite.core.neural_types": NEURAL_TYPES + "Comparison",
    "nemo_lite.core.show": """
        as_mermaid as_svg as_text frames_of symbolic_shapes write_svg
    """,
    "nemo_lite.config": """
        Config MAX_BYTES MAX_DEPTH MAX_VALUES build check_call load_config raise_if shown unknown_key
    """,
    "nemo_lite.utils": """
        ExpManager LogMode NemoArgParser argparse decorators exp_logging helpers logging lr_policies misc
    """,
    "nemo_lite.backends.pytorch": """
        DataLayerNM LossNM NonTrainableNM PtActions PyTorchAdapter TrainableNM TrainableNeuralModuleWrapper
        WeightShareTransform tutorials
    """,
    "nemo_asr": """
        AudioAugmentor AudioFilesDataLayer AudioPreprocessor AudioToMFCCPreprocessor
        AudioToMelSpectrogramPreprocessor AudioToSpectrogramPreprocessor AudioToTextDataLayer CTCLossNM
        CropOrPadSpectrogramAugmentation CrossEntropyLossNM GreedyCTCDecoder JasperDecoderForCTC
        JasperDecoderForClassification JasperEncoder MultiplyBatch Recipe SpectrogramAugmentation
        leave_out_infeasible load_recipe show_plan warn_of_infeasible without_weights word_error_rate
    """,
}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_door_re_exports_the_names_written_here_and_no_others(package: str) -> None:
    assert re_exported(package) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in PUBLIC[package].split() if not hasattr(module, name)] == []


def re_exported(package: str) -> list[str]:
    """The names that a package's ``__init__`` imports as themselves."""
    file = importlib.import_module(package).__file__
    assert file is not None
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return sorted(alias.name for node in imports for alias in node.names if alias.asname == alias.name)


def test_doors_hold_re_exports_only() -> None:
    for package in PUBLIC:
        file = importlib.import_module(package).__file__
        assert file is not None
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            assert not isinstance(node, (ast.FunctionDef, ast.ClassDef)), f"{file}:{node.lineno}"


PLACES_OF_NEMO = """
    backends.pytorch.actions.PtActions backends.pytorch.nm.TrainableNM
    backends.pytorch.tutorials.RealFunctionDataLayer core.AxisType core.NeuralPortNmTensorMismatchError
    core.NeuralType core.callbacks.EvaluatorCallback core.callbacks.SimpleLossLoggerCallback
    core.neural_factory.DeviceType core.neural_modules.WeightShareTransform tutorials.TaylorNet
    utils.lr_policies.CosineAnnealing
"""


def test_one_import_reaches_the_names_at_the_places_where_nemo_has_them() -> None:
    # In a process of its own: other tests import submodules, which makes them attributes of their packages.
    lines = ["import nemo_lite as nemo", *(f"nemo.{place}" for place in PLACES_OF_NEMO.split())]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert run.stderr == ""
