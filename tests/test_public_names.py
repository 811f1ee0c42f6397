"""What users may import: the re-exported names, written out. A name goes or comes on purpose only."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_lite
from nemo_asr.compat import paths as nemo_asr_paths
from nemo_lite.compat import paths as nemo_lite_paths

NEURAL_TYPES = """
    AcousticEncodedRepresentation AudioSignal AxisKind AxisKindAbstract AxisType CategoricalValuesType
    ChannelType ClassificationTarget ElementType EmbeddedTextType EncodedRepresentation ImageFeatureValue
    ImageValue Index IntType LabelsType Length LengthsType LogitsType LogprobsType LossType
    MFCCSpectrogramType MaskType MelSpectrogramType NeuralPortNameMismatchError
    NeuralPortNmTensorMismatchError NeuralType NeuralTypeComparisonResult NeuralTypeError NormalizedImageValue
    PredictionsType RegressionValuesType SpectrogramType StringLabel StringType Target TokenIndex VoidType
"""

OLDER_TYPES = """
    BaseTag BatchTag CanNotInferResultNeuralType CategoricalTag ChannelTag ClassTag EmbeddedTextTag
    EncodedRepresentationTag HeightTag MFCCSignalTag MelSpectrogramSignalTag ProcessedTimeTag RegressionTag
    SpectrogramSignalTag TimeTag WidthTag
"""

PUBLIC = {
    "nemo_lite": """
        constants package_info
        Backend CheckpointCallback Dag DataLayerNM DeviceType EvaluatorCallback LossNM NeMoCallback
        NemoLiteError NeuralModule NeuralModuleFactory NmTensor NonTrainableNM Objective Optimization PtActions
        SimpleLogger SimpleLossLoggerCallback TensorboardLogger TrainableNM TrainableNeuralModuleWrapper
        WeightShareTransform __version__ backends core errors logging tutorials utils
    """,
    "nemo_lite.core": """
        ModelMode ModuleType NeuralInterface PretrainedModelInfo Reference module_decorators
        run_only_on_device skip_in_data_parallel
        Accuracy ActionCallback Backend CheckpointCallback Collected Dag DeploymentFormat DeviceType
        EarlyStoppingCallback EvaluatorCallback
        Mean Metric
        ModuleSaverCallback NeMoCallback NeMoModel NeuralGraph NeuralModule NeuralModuleFactory NmTensor Node
        Objective OperationMode Optimization Ports RunOptions SimpleLogger SimpleLossLoggerCallback Slice Step
        TensorboardLogger UnfreezeCallback ValueSetterCallback WandBLogger WandbCallback WeightShareTransform
        callbacks neural_factory neural_modules neural_types on_action_end on_action_start on_batch_end
        on_batch_start on_epoch_end on_epoch_start on_evaluation_end on_step_end on_step_start show
    """
    + NEURAL_TYPES,
    "nemo_lite.core.neural_types": NEURAL_TYPES + "Comparison NmTensor" + OLDER_TYPES,
    "nemo_lite.core.trackers": """
        FINISHED
        MetricsFile MlflowTracker Record TensorboardTracker TerminalLines Tracker Trackers WandbTracker
        duration_text read_metrics register_tracker
    """,
    "nemo_lite.core.show": """
        NodePrecision PrecisionReport as_mermaid as_svg as_text frames_of show_plan show_precision symbolic_shapes
        write_svg
    """,
    "nemo_lite.config": """
        Config MAX_BYTES MAX_DEPTH MAX_VALUES build check_call load_config override parse_config raise_if
        shown unknown_key
    """,
    "nemo_lite.utils": """
        app_state get_checkpoint_from_dir get_logger logging_mode rgetattr rsetattr
        ExpManager LogMode NemoArgParser argparse decorators exp_logging helpers logging lr_policies misc
    """,
    "nemo_lite.backends.pytorch.common": """
        BCEWithLogitsLossNM CrossEntropyLossNM DataCombination LossAggregatorNM MSELoss MultiDataLayer MultiDataset
        MultiLayerPerceptron SequenceEmbedding SequenceLoss ZerosDataLayer ZerosLikeNM char_lm_metrics
        neuralType2TensorShape
    """,
    "nemo_lite.backends.pytorch": """
        BCEWithLogitsLossNM CrossEntropyLoss CrossEntropyLossNM DataCombination DataLayerNM L1Loss
        LossAggregatorNM LossNM MSELoss MultiDataLayer MultiDataset MultiLayerPerceptron NonTrainableNM
        PtActions RealFunctionDataLayer SequenceEmbedding SequenceLoss TaylorNet TrainableNM
        TrainableNeuralModuleWrapper WeightShareTransform ZerosDataLayer ZerosLikeNM char_lm_metrics common
        neuralType2TensorShape tutorials
    """,
    # What a module that streams, and a family of models, are made of.
    "nemo_lite.backends.pytorch.streaming": "Delay SlidingWindow State StreamedDag Streams lower_to_stream",
    "nemo_asr.tasks.families": "CTC ClassWires Classification connect_classifier",
    "nemo_asr.tasks.family": """
        Data Exported Family Model Modules Role SPEECH_ROLES Signal Weighted Wires augmented_features connect
        connect_by_type family_of register_family signals_of
    """,
    "nemo_asr": """
        contextnet
        AudioPreprocessing BeamSearchCTCDecoder BeamSearchDecoderWithLM __version__ audio_preprocessing
        beam_search_decoder data_layer greedy_ctc_decoder helpers jasper
        losses metrics
        Family HypothesesType Role register_family
        Classifier ClassWires connect_classifier load_class_recipe load_classifier
        TimeStretchAugmentation parts
        AudioAugmentor AudioFilesDataLayer AudioPreprocessor AudioToMFCCPreprocessor AudioToSpeechLabelDataLayer
        AveragedModelCallback BestModelCallback ModelCard
        AudioToKaldiFbankPreprocessor
        AudioToMelSpectrogramPreprocessor AudioToSpectrogramPreprocessor AudioToTextDataLayer CTCLossNM
        ConformerEncoder
        ContextNetDecoderForCTC ContextNetEncoder CropOrPadSpectrogramAugmentation CrossEntropyLossNM GreedyCTCDecoder
        JasperDecoderForCTC JasperDecoderForSpkrClass KaldiFeatureDataLayer TarredAudioToTextDataLayer
        JasperDecoderForClassification JasperEncoder Model MultiplyBatch Recipe ScoredSet SpectrogramAugmentation Wires
        EndpointRules TrainedModel TrainingRun WordErrorRate
        about_checkpoint check_goes_on clusters_in_data connect describe hypotheses_in_data init_from
        leave_out_infeasible load_model load_recipe read_model recipe_from_text recipe_of references_in_data
        register set_batch_norm_momentum show_plan start_record trackers_of train_seeds warn_of_infeasible
        warn_of_leaks without_weights
        word_error_rate write_transcripts
    """,
}


# The others are files with code of their own.
PACKAGES = [name for name in PUBLIC if str(vars(importlib.import_module(name)).get("__file__")).endswith("__init__.py")]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_re_exports_the_names_written_here_and_no_others(package: str) -> None:
    assert re_exported(package) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in PUBLIC[package].split() if not hasattr(module, name)] == []


def re_exported(package: str) -> list[str]:
    """The names that a package's ``__init__`` imports as themselves, and the modules of NeMo that it declares.

    Where the names are imported when they are asked for, they stand in a stub.
    """
    file = Path(str(importlib.import_module(package).__file__))
    stub = file.with_suffix(".pyi")
    body = ast.parse((stub if stub.exists() else file).read_text(encoding="utf-8")).body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    declared = [
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return sorted(declared + [a.name for node in imports for a in node.names if a.asname == a.name])


def test_packages_define_nothing_themselves() -> None:
    for package in PACKAGES:
        file = importlib.import_module(package).__file__
        assert file is not None
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            assert not isinstance(node, (ast.FunctionDef, ast.ClassDef)), f"{file}:{node.lineno}"


# Further modules from which scripts and collections import, most of them at NeMo's places, with their names.
IMPORT_PATHS = {
    "nemo_lite.backends.pytorch.actions": "PtActions",
    "nemo_lite.backends.pytorch.checkpoint": "CheckpointFolder CheckpointSet Contents StoredCheckpoint read_checkpoint",
    "nemo_lite.backends.pytorch.data": """
        Batch BatchLoader DatasetLoader IteratorLoader Leftover Plan Rows Shard Uneven as_values evaluation_plan
    """,
    "nemo_lite.backends.pytorch.distributed": "Comm Patience ProcessGroup Replica SingleProcess needs_all_ranks",
    "nemo_lite.backends.pytorch.module_wrapper": "TrainableNeuralModuleWrapper",
    "nemo_lite.backends.pytorch.nm": "DataLayerNM LossNM NonTrainableNM TrainableNM WeightShareTransform",
    "nemo_lite.backends.pytorch.optimizers": "create_optimizer",
    "nemo_lite.backends.pytorch.tutorials": "L1Loss MSELoss RealFunctionDataLayer TaylorNet",
    "nemo_lite.core.callbacks": """
        ActionCallback CallbackList CheckpointCallback Collected EarlyStoppingCallback EvaluatorCallback
        ModuleSaverCallback NeMoCallback SimpleLogger SimpleLossLoggerCallback TensorboardLogger TrackingCallback
        UnfreezeCallback ValueSetterCallback
        WandBLogger WandbCallback on_action_end on_action_start on_batch_end on_batch_start on_epoch_end on_epoch_start
        on_evaluation_end on_step_end on_step_start
    """,
    "nemo_lite.core.deprecated_callbacks": """
        ActionCallback EvaluatorCallback ModuleSaverCallback SimpleLossLoggerCallback UnfreezeCallback
        ValueSetterCallback WandbCallback
    """,
    "nemo_lite.core.neural_factory": "Backend DeploymentFormat DeviceType NeuralModuleFactory Optimization",
    "nemo_lite.core.neural_module": "NeuralModule subclasses",
    "nemo_lite.core.neural_modules": "NeuralModule WeightShareTransform",
    "nemo_lite.core.ports": "Ports",
    "nemo_lite.core.shapes": "Expr Shape Size ceil_div floor_div frames_of named shape_of symbol",
    "nemo_lite.errors": """
        CheckpointError ConfigError DagError DataError DataWorkerError DeviceError DistributedError NemoLiteError
        NeuralPortNameMismatchError NeuralPortNmTensorMismatchError NeuralTypeError NonFiniteLossError
        UnknownNameError UsageError did_you_mean reported_to_user
    """,
    "nemo_lite.utils.argparse": "NemoArgParser",
    "nemo_lite.utils.decorators": "add_port_docs deprecated",
    "nemo_lite.utils.exp_logging": "ExpManager",
    "nemo_lite.utils.helpers": """
        CheckpointName find_checkpoint_files get_checkpoint_from_dir parse_checkpoint_name rgetattr rsetattr
    """,
    "nemo_lite.utils.optimizers": "OPTIMIZERS register_optimizer",
    "nemo_lite.utils.lr_policies": """
        CosineAnnealing InverseSquareRootAnnealing LRPolicy NoamAnnealing PolynomialDecayAnnealing
        PolynomialHoldDecayAnnealing SquareAnnealing SquareRootAnnealing WarmupAnnealing WarmupHoldPolicy
        WarmupLR WarmupPolicy
        get_all_lr_classes get_lr_policy register_lr_policy
    """,
    "nemo_lite.utils.misc": "pad_to",
    "nemo_lite.utils.nemo_logging": "LogMode Logger logging",
    "nemo_asr.argparse": "AsrArgParser EvalArgParser add_metric_option unique_tags",
    "nemo_asr.audio": "Audio read_audio trimmed",
    "nemo_asr.audio_preprocessing": """
        AudioPreprocessor AudioToMFCCPreprocessor AudioToMelSpectrogramPreprocessor AudioToSpectrogramPreprocessor
        CropOrPadSpectrogramAugmentation MultiplyBatch SpectrogramAugmentation
    """,
    "nemo_asr.beam_search_decoder": "BeamSearchDecoderWithLM",
    "nemo_asr.corpora.aishell": "main make",
    "nemo_asr.corpora.an4": "main make",
    "nemo_asr.corpora.librispeech": "main make",
    "nemo_asr.corpora.synth": "main make",
    "nemo_asr.data_layer": """
        AudioToSpeechLabelDataLayer AudioToTextDataLayer KaldiFeatureDataLayer TarredAudioToTextDataLayer
    """,
    "nemo_asr.greedy_ctc_decoder": "GreedyCTCDecoder",
    "nemo_asr.helpers": """
        monitor_asr_train_progress monitor_classification_training_progress post_process_predictions
        post_process_transcripts process_classification_evaluation_batch process_classification_evaluation_epoch
        process_evaluation_batch process_evaluation_epoch score_evaluation
    """,
    "nemo_asr.jasper": """
        ContextNetDecoderForCTC ContextNetEncoder JasperDecoderForCTC JasperDecoderForClassification
        JasperDecoderForSpkrClass JasperEncoder
    """,
    "nemo_asr.losses": "CTCLossNM CrossEntropyLossNM",
    "nemo_asr.metrics": """
        ErrorCounts all_pairs classification_accuracy classification_confusion_matrix count_errors equal_error_rate
        word_error_rate
    """,
    "nemo_asr.text": "CharParser ENCharParser Subwords load_subwords main_metric make_parser vocabulary",
}


@pytest.mark.parametrize("module", IMPORT_PATHS)
def test_an_import_path_has_its_names(module: str) -> None:
    imported = importlib.import_module(module)
    assert [name for name in IMPORT_PATHS[module].split() if not hasattr(imported, name)] == []


def test_a_name_means_the_same_under_all_import_paths() -> None:
    """A re-export file that holds a class of its own would break ``isinstance`` between two imports."""
    found: dict[str, set[int]] = {}
    for module in ("nemo_lite", "nemo_lite.core", "nemo_asr", *IMPORT_PATHS):
        for name in (IMPORT_PATHS.get(module) or PUBLIC[module]).split():
            thing = getattr(importlib.import_module(module), name)
            if isinstance(thing, type):
                found.setdefault(name, set()).add(id(thing))
    assert [name for name, classes in found.items() if len(classes) > 1] == []


PATHS_OF_NEMO = """
    backends.pytorch.actions.PtActions backends.pytorch.nm.TrainableNM
    backends.pytorch.tutorials.RealFunctionDataLayer core.AxisType core.NeuralPortNmTensorMismatchError
    core.NeuralType core.callbacks.EvaluatorCallback core.callbacks.SimpleLossLoggerCallback
    core.neural_factory.DeviceType core.neural_modules.WeightShareTransform tutorials.TaylorNet
    utils.lr_policies.CosineAnnealing
"""


@pytest.mark.slow
def test_one_import_reaches_the_names_under_nemo_s_paths() -> None:
    # In a process of its own: other tests import submodules, which makes them attributes of their packages.
    lines = ["import nemo_lite as nemo", *(f"nemo.{path}" for path in PATHS_OF_NEMO.split())]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert run.stderr == ""


PATHS = [
    f"{package}.{path}"
    for package, table in {"nemo_lite": nemo_lite_paths.PATHS, "nemo_asr": nemo_asr_paths.PATHS}.items()
    for paths in table.values()
    for path in paths.split()
]


@pytest.mark.slow
def test_every_further_path_and_the_packages_above_it_can_be_imported() -> None:
    parts = [path.split(".") for path in PATHS]
    names = sorted({".".join(path[: length + 1]) for path in parts for length in range(len(path))})
    code = "import importlib, sys, nemo_lite, nemo_asr\nfor name in sys.argv[1:]: importlib.import_module(name)"
    run = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert run.stderr == ""


@pytest.mark.slow
def test_every_further_path_is_an_attribute_of_what_is_above_it_also_where_that_is_imported_late() -> None:
    code = "import sys, nemo_lite, nemo_asr\nfor line in sys.argv[1:]: exec(line)"
    for above in ("", "import {above}; "):  # importing the path imports what is above it
        lines = [above.format(above=path.rpartition(".")[0]) + f"import {path}; {path}" for path in PATHS]
        run = subprocess.run([sys.executable, "-c", code, *lines], capture_output=True, text=True, check=False)
        assert run.stderr == ""


def test_a_name_of_a_further_path_is_that_of_its_module() -> None:
    old = importlib.import_module("nemo_lite.core.nemo_model")
    assert old.NeMoModel is nemo_lite.core.NeMoModel
    message = r"has no attribute 'NeMoModl'; it is nemo_lite.compat.nemo_model and nemo_lite.core.ports today"
    with pytest.raises(AttributeError, match=message):
        _ = old.NeMoModl
