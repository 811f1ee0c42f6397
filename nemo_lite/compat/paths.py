"""NeMo's import paths, public ones of ours, and what takes the place of names of NeMo that are not here. Data only."""

from __future__ import annotations

# Module of today -> other paths of its names, all below nemo_lite: NeMo's, and the two short ones that users write.
PATHS = {
    "backends.pytorch.checkpoint.storage": "backends.torch_backend",
    "backends.pytorch.common": """
        backends.pytorch.common.losses backends.pytorch.common.metrics backends.pytorch.common.multi_data
        backends.pytorch.common.other backends.pytorch.common.parts backends.pytorch.common.zero_data
    """,
    "backends.pytorch.nm": "backends.pytorch.module_wrapper",
    "base.config": "config",
    "base.errors": "errors core.neural_modules utils.configuration_error",
    "base.helpers": "utils.misc utils.helpers",
    "base.nemo_logging": "constants utils.nemo_logging",
    "compat.deprecated": "utils.decorators",
    "compat.loggers": "core.deprecated_callbacks",
    "compat.nemo_model": "core.nemo_model",
    "compat.neural_graph": """
        core.neural_graph utils.neural_graph utils.neural_graph.graph_inputs utils.neural_graph.graph_outputs
    """,
    "compat.tutorials": "backends.pytorch.tutorials.toys backends.pytorch.tutorials",
    "core.app_state": """
        utils.neural_graph utils.app_state utils.metaclasses utils.neural_graph.connection
        utils.neural_graph.neural_graph_manager utils.neural_graph.object_registry utils.nmtensor_registry
    """,
    "core.callbacks.base": "core.deprecated_callbacks",
    "core.callbacks.checkpoint": "core.deprecated_callbacks",
    "core.callbacks.evaluator": "core.deprecated_callbacks",
    "core.callbacks.schedules": "core.deprecated_callbacks",
    "core.neural_module": "core.neural_modules",
    "core.neural_types": """
        core.neural_modules core.neural_types.axes core.neural_types.elements core.neural_types.neural_type
    """,
    "core.ports": "core.nemo_model core.neural_factory core.neural_interface core.neural_modules",
    "core.run_options": "core.module_decorators core.neural_factory core.neural_modules",
    "factory": "core.neural_factory core.neural_modules",
}

# What of NeMo 0.x is not here, and what takes its place: for errors, ``nemo-lite migrate`` and a table in the docs.

_ATTENTION = "CTC (JasperDecoderForCTC, CTCLossNM); attention models are not here"
_LOOP = "factory.train, infer and callbacks; state['tensors'].get_tensor(name) in a callback"
_TORCHVISION = "torchvision's own data sets behind a DataLayerNM of yours"
_DEVICE = "factory.device"
_OTHER_COLLECTION = "modules of your own; only speech recognition is here"

# By NeMo's place: name -> substitute.
SUBSTITUTES: dict[str, dict[str, str]] = {
    "nemo.core": {
        "InferenceCallback": "factory.infer(tensors)",
        "Actions": "nemo_lite.backends.pytorch.PtActions",
        "TrainingState": _LOOP,
        "topological_sort_from_leaves": "nemo_lite.Dag(tensors).nodes",
        "actions": _LOOP,
    },
    "nemo.backends.pytorch": {
        "torchvision": _TORCHVISION,
        "DecoderRNN": _ATTENTION,
        "EncoderRNN": _ATTENTION,
        "GreedySearch": _ATTENTION,
        "BeamSearch": _ATTENTION,
        "Attention": _ATTENTION,
    },
    "nemo.backends.pytorch.tutorials": {"chatbot": _ATTENTION},
    "nemo.utils": {
        "get_device": _DEVICE,
        "get_cuda_device": _DEVICE,
        "maybe_download_from_cloud": "nemo-lite models convert, or ASRConvCTCModel.from_pretrained",
        "env_var_parsing": "os.environ",
        "configuration_parsing": "nemo_lite.config.load_config",
    },
    "nemo.collections": dict.fromkeys(("nlp", "tts", "cv", "simple_gan"), _OTHER_COLLECTION),
    "nemo.collections.asr": {
        "JasperRNNConnector": _ATTENTION,
        "TranscriptDataLayer": _ATTENTION,
        "las": _ATTENTION,
    },
}
