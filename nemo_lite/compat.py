"""Old import paths, what takes the place of names of NeMo that are not here, and names imported when asked for.

A table gives for each module of today the paths under which its names could be imported before: NeMo's, and those of
earlier versions. Each path is an entry of ``sys.modules``; nothing is imported until somebody asks it for a name.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class OldPath(ModuleType):
    """A module under an old path: each name comes from the first of its modules of today that has it."""

    _modules: list[str]  # the modules of today

    def __init__(self, path: str) -> None:
        super().__init__(path, "An old import path, see nemo_lite/compat.py.")
        self.__spec__ = ModuleSpec(path, None)
        self.__path__: list[str] = []  # so that paths below it can be imported, also where nemo_lite has another name
        self._modules = []

    def __getattr__(self, name: str) -> object:
        if name == "__all__":  # for `from path import *`
            modules = [import_module(module) for module in self._modules]
            return sorted({key for module in modules for key in vars(module) if not key.startswith("_")})
        if name.startswith("__"):  # asked of all modules by inspect and others; nothing is imported for that
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for module in map(import_module, self._modules):
            if hasattr(module, name):
                return getattr(module, name)
        today = " and ".join(self._modules)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}; it is {today} today", name=name)


def add_old_paths(package: str, table: Mapping[str, str]) -> None:
    """Make old paths importable.

    Args:
        package: the package in which all paths of the table are.
        table: module of today -> old paths, separated by blanks; both below the package. A path may stand at
            several modules: then names are looked for in all of them.
    """
    for module, paths in table.items():
        for path in paths.split():
            _entry(f"{package}.{path}")._modules.append(f"{package}.{module}" if module else package)


def _entry(path: str) -> OldPath:
    entry = sys.modules.get(path)
    if not isinstance(entry, OldPath):
        entry = sys.modules[path] = OldPath(path)
        parent, _, name = path.rpartition(".")
        if parent in sys.modules:  # for `import path` and then its full name
            vars(sys.modules[parent]).setdefault(name, entry)
            vars(sys.modules[parent]).setdefault("__path__", [])
    return entry


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


def substitute_of(dotted: str) -> str:
    """What takes the place of ``nemo.core.TrainingState``, or of what is in it; an empty text where it is here."""
    for place, names in SUBSTITUTES.items():
        name = dotted.removeprefix(f"{place}.").partition(".")[0] if dotted.startswith(f"{place}.") else ""
        if name in names:
            return names[name]
    return ""


def text_of_missing(path: str) -> str:
    """The error for a path such as ``nemo_lite.core.TrainingState``; an empty text for names that NeMo did not have."""
    module, _, name = path.rpartition(".")
    package, *inner = module.split(".")
    root = "nemo" if package == "nemo_lite" else f"nemo.collections.{package.removeprefix('nemo_')}"
    place = ".".join([root, *inner])
    substitute = SUBSTITUTES.get(place, {}).get(name)
    return f"{place}.{name} is not in {module}; instead: {substitute}" if substitute else ""


def tell_of_missing(module: str) -> Callable[[str], object]:
    """A ``__getattr__`` for a module: the error for a missing name of NeMo says what takes its place."""

    def missing(name: str) -> object:
        text = text_of_missing(f"{module}.{name}") or f"module {module!r} has no attribute {name!r}"
        raise AttributeError(text, name=name)

    return missing


class MissingNames(MetaPathFinder):
    """Says the same for ``from nemo.core import TrainingState``, for which Python also looks for a module."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        text = text_of_missing(fullname)
        if text:
            raise ImportError(text, name=fullname)


# Module of today -> old paths, all below nemo_lite.
OLD_PATHS = {
    "backends.pytorch.actions": "backends.pytorch.lowerings",
    "backends.pytorch.checkpoint.folder": "backends.pytorch.checkpoint.averaging backends.pytorch.checkpoint.contents",
    "backends.pytorch.checkpoint.storage": """
        backends.pytorch.checkpoint.background backends.pytorch.checkpoint.fitting
        backends.pytorch.checkpoint.nemo_files backends.pytorch.checkpoint.nemo_state backends.pytorch.checkpoint.state
        backends.pytorch.checkpoint.state_check backends.torch_backend
    """,
    "backends.pytorch.checkpoint.store": """
        backends.pytorch.checkpoint.store.best backends.pytorch.checkpoint.store.commit
        backends.pytorch.checkpoint.store.flat_sets backends.pytorch.checkpoint.store.listing
        backends.pytorch.checkpoint.store.lock backends.pytorch.checkpoint.store.record
        backends.pytorch.checkpoint.store.reports
    """,
    "backends.pytorch.checkpoint.tensors": """
        backends.pytorch.checkpoint.finite backends.pytorch.checkpoint.tensors.divided
        backends.pytorch.checkpoint.tensors.safetensors_file backends.pytorch.checkpoint.tensors.stored
        backends.pytorch.checkpoint.torch_files
    """,
    "backends.pytorch.common": """
        backends.pytorch.common.losses backends.pytorch.common.metrics backends.pytorch.common.multi_data
        backends.pytorch.common.other backends.pytorch.common.parts backends.pytorch.common.zero_data
    """,
    "backends.pytorch.create_optimizer": """
        backends.pytorch.optim backends.pytorch.optim.create backends.pytorch.optim.from_apex
        backends.pytorch.optim.from_torch backends.pytorch.optim.groups backends.pytorch.optim.larc
        backends.pytorch.optim.loading backends.pytorch.optimizers
    """,
    "backends.pytorch.data.loaders": """
        backends.pytorch.data.sequential backends.pytorch.data.unusable backends.pytorch.data.workers
    """,
    "backends.pytorch.data.order": "backends.pytorch.data.items backends.pytorch.data.seeds",
    "backends.pytorch.distributed.activity": "backends.pytorch.distributed.health.activity",
    "backends.pytorch.distributed.comm": "backends.pytorch.distributed.exchange backends.pytorch.distributed.pieces",
    "backends.pytorch.distributed.contract": """
        backends.pytorch.distributed.contract_terms backends.pytorch.distributed.copies
        backends.pytorch.distributed.drift backends.pytorch.distributed.rank_table
    """,
    "backends.pytorch.distributed.failures": """
        backends.pytorch.distributed.data_workers backends.pytorch.distributed.health.endings
        backends.pytorch.distributed.health.origin
    """,
    "backends.pytorch.distributed.group": "backends.pytorch.distributed.replica",
    "backends.pytorch.distributed.health": """
        backends.pytorch.distributed.health.diagnosis backends.pytorch.distributed.health.heartbeat
        backends.pytorch.distributed.health.launcher backends.pytorch.distributed.health.monitor
    """,
    "backends.pytorch.distributed.rendezvous": """
        backends.pytorch.distributed.network_interface
        backends.pytorch.distributed.rendezvous.attempts backends.pytorch.distributed.rendezvous.failures
        backends.pytorch.distributed.rendezvous.meeting backends.pytorch.distributed.rendezvous.members
        backends.pytorch.distributed.rendezvous.notes backends.pytorch.distributed.rendezvous.run_identity
        backends.pytorch.distributed.rendezvous.stores
    """,
    "backends.pytorch.engine.averages": """
        backends.pytorch.engine.averaging backends.pytorch.engine.averaging.averages
        backends.pytorch.engine.averaging.statistics
    """,
    "backends.pytorch.engine.batches": "backends.pytorch.engine.step_batches backends.pytorch.engine.step_values",
    "backends.pytorch.engine.evaluation": """
        backends.pytorch.engine.evaluation.cache backends.pytorch.engine.evaluation.evaluation
        backends.pytorch.engine.evaluation.rounds
    """,
    "backends.pytorch.engine.module_state": "backends.pytorch.engine.generators",
    "backends.pytorch.engine.objectives": "backends.pytorch.engine.arguments",
    "backends.pytorch.engine.resuming": """
        backends.pytorch.engine.resuming.buffers backends.pytorch.engine.resuming.position
        backends.pytorch.engine.resuming.restoring backends.pytorch.engine.resuming.stacking
        backends.pytorch.engine.resuming.world_size
    """,
    "backends.pytorch.engine.state": "backends.pytorch.engine.run_state backends.pytorch.engine.step_clock",
    "backends.pytorch.engine.training": """
        backends.pytorch.engine.counters backends.pytorch.engine.learning_rates backends.pytorch.engine.stopping
    """,
    "backends.pytorch.engine.verdict": """
        backends.pytorch.engine.verdict.item_losses backends.pytorch.engine.verdict.skipped_steps
        backends.pytorch.engine.verdict.step_guard backends.pytorch.engine.verdict.verdict
    """,
    "backends.pytorch.export": """
        backends.pytorch.export.deployment backends.pytorch.export.onnx_files backends.pytorch.export.wires
    """,
    "backends.pytorch.foreach_optimizers": """
        backends.pytorch.optim backends.pytorch.optim.adam_w backends.pytorch.optim.foreach backends.pytorch.optim.lamb
        backends.pytorch.optim.novograd backends.pytorch.optimizers
    """,
    "backends.pytorch.neural_graph": """
        backends.pytorch.neural_graph.graph_weights backends.pytorch.neural_graph.runner core.neural_graph
        core.neural_graph.configuration core.neural_graph.graph_inputs core.neural_graph.graph_outputs
        core.neural_graph.neural_graph core.neural_graph.recorded_graph core.neural_graph.runner
        core.neural_graph.summary utils.neural_graph utils.neural_graph.graph_inputs utils.neural_graph.graph_outputs
    """,
    "backends.pytorch.nm": """
        backends.pytorch.module_wrapper backends.pytorch.torch_module backends.pytorch.weight_tying
    """,
    "backends.pytorch.placement": "backends.pytorch.snapshot",
    "backends.pytorch.precision": """
        backends.pytorch.precision.apex_amp backends.pytorch.precision.apex_package backends.pytorch.precision.dtypes
        backends.pytorch.precision.gradients backends.pytorch.precision.half_modules
        backends.pytorch.precision.loss_scale backends.pytorch.precision.master_weights
        backends.pytorch.precision.policy backends.pytorch.precision.saved_weights
    """,
    "backends.pytorch.precision_check": "backends.pytorch.precision.check",
    "backends.pytorch.tutorials": "backends.pytorch.tutorials.toys",
    "cli.verify_resume": "cli.interrupted_runs",
    "compat": "lazy",
    "config": "config.checking config.loading config.overriding config.ranges config.values",
    "core.app_state": """
        utils.neural_graph core.graph.nm_tensor utils.alive utils.alive.app_state utils.alive.connection
        utils.alive.registries utils.app_state utils.metaclasses utils.neural_graph.connection
        utils.neural_graph.neural_graph_manager utils.neural_graph.object_registry utils.nmtensor_registry
    """,
    "core.callbacks.base": "core.action_state core.callbacks.action_callback core.deprecated_callbacks",
    "core.callbacks.checkpoint": "core.deprecated_callbacks",
    "core.callbacks.evaluator": "core.deprecated_callbacks core.metrics",
    "core.callbacks.loggers": """
        core.callbacks.progress core.callbacks.wandb_loggers core.deprecated_callbacks core.tracking
        core.tracking.callback
    """,
    "core.callbacks.schedules": "core.deprecated_callbacks",
    "core.dag": "core.graph core.graph.dag",
    "core.models": "core.models.archive core.models.nemo_model core.nemo_model",
    "core.neural_module": """
        core.graph core.graph.module_class core.graph.module_config core.graph.neural_module core.graph.recording
        core.module_config core.neural_modules
    """,
    "core.neural_types": """
        core.graph.nm_tensor core.neural_modules core.neural_types.axes core.neural_types.elements
        core.neural_types.neural_type core.neural_types.nm_tensor core.neural_types.tags
    """,
    "core.ports": """
        core.graph core.graph.kinds core.graph.neural_interface core.graph.ports core.nemo_model core.neural_factory
        core.neural_interface core.neural_modules
    """,
    "core.run_options": """
        core.backend core.compile_options core.module_decorators core.neural_factory core.neural_modules
    """,
    "core.shapes": "core.graph core.graph.shapes",
    "core.show": """
        core.show.layout core.show.mermaid core.show.plan core.show.precision core.show.svg core.show.text
        core.show.view core.svg core.view
    """,
    "core.trackers": """
        core.tracking core.tracking.metrics_file core.tracking.mlflow_tracker core.tracking.records
        core.tracking.tensorboard_tracker core.tracking.terminal core.tracking.wandb_tracker
    """,
    "errors": "core.neural_modules utils.configuration_error",
    "factory": "core.environment core.factory core.neural_factory core.neural_modules",
    "files": """
        untrusted untrusted.json_values untrusted.opening untrusted.tar_and_zip utils.digests utils.files
        utils.run_files utils.run_files.appended_file
    """,
    "options": "utils.argparse utils.help_pages utils.precision_options",
    "utils.deprecated": "utils.decorators",
    "utils.exp_logging": "utils.curves utils.run_files.curves",
    "utils.helpers": "utils.misc",
    "utils.launch": "utils.launch.addresses utils.launch.identity utils.launch.launchers",
    "utils.nemo_logging": "constants",
    "utils.optimizers": "backends.pytorch.optim.options",
}


# Names of a package that are imported when somebody asks for them: ``import nemo_lite`` alone imports no torch.


GetAttribute = Callable[[str], object]


def lazy_names(package: str) -> tuple[GetAttribute, Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names stand in its stub file.

    The stub, ``__init__.pyi``, has a line ``from module import name as name`` for each; type checkers read it as well.
    Modules in the package need no line: they are imported when they are asked for.

    Args:
        package: its full name.
    """
    missing = tell_of_missing(package)

    @cache
    def homes() -> dict[str, tuple[str, str]]:
        """Name -> module, and its name there."""
        stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
        lines = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in lines for alias in node.names}

    def get(name: str) -> object:
        if name == "__all__":  # for `from package import *`
            return public_names()
        home, original = homes().get(name, (package, name))
        path = f"{package}.{name}"
        if home != package:
            value: object = getattr(import_module(home), original)
        elif not name.startswith("__") and not text_of_missing(path) and find_spec(path):
            value = import_module(path)
        else:
            return missing(name)
        setattr(sys.modules[package], name, value)
        return value

    def public_names() -> list[str]:
        return sorted({*homes(), *(name for name in vars(sys.modules[package]) if not name.startswith("_"))})

    return get, public_names
