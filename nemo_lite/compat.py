"""Old import paths, what takes the place of names of NeMo that are not here, and names imported when asked for.

A table gives for each module of today the paths under which its names could be imported before: NeMo's, and those of
earlier versions. Each path becomes an entry of ``sys.modules`` once the module above it is there; nothing is imported
until somebody asks it for a name.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
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
            modules = [import_module(module.partition(":")[0]) for module in self._modules]
            return sorted({key for module in modules for key in vars(module) if not key.startswith("_")})
        if name.startswith("__"):  # asked of all modules by inspect and others; nothing is imported for that
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for path, _, function in (module.partition(":") for module in self._modules):
            module, today = import_module(path), function if name == "main" and function else name
            if hasattr(module, today):
                return getattr(module, today)
        today = " and ".join(self._modules)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}; it is {today} today", name=name)


def add_old_paths(package: str, table: Mapping[str, str]) -> None:
    """Make old paths importable.

    Args:
        package: the package in which all paths of the table are.
        table: module of today -> old paths, separated by blanks; both below the package. A path may stand at
            several modules: then names are looked for in all of them. ``module:function`` is the ``main`` of its paths.
    """
    for module, paths in table.items():
        for path in paths.split():
            _entry(f"{package}.{path}")._modules.append(f"{package}.{module}" if module else package)


_old_paths: dict[str, OldPath] = {}
# By module that is not imported yet: the old paths below it.
_below_what_is_not_imported: dict[str, list[OldPath]] = {}


def _entry(path: str) -> OldPath:
    if path not in _old_paths:
        entry = _old_paths[path] = OldPath(path)
        parent = path.rpartition(".")[0]
        if parent in sys.modules:
            _add_below(sys.modules[parent], entry)
        else:
            _below_what_is_not_imported.setdefault(parent, []).append(entry)
    return _old_paths[path]


def _add_below(module: ModuleType, entry: OldPath) -> None:
    """Make an old path importable, and an attribute of the module above it: for `import path` and then its name."""
    path = entry.__name__
    sys.modules[path] = entry
    vars(module).setdefault(path.rpartition(".")[2], entry)
    vars(module).setdefault("__path__", [])
    for below in _below_what_is_not_imported.pop(path, []):
        _add_below(entry, below)


class ModulesAboveOldPaths:
    """Imports a module as usual, and then makes the old paths below it importable. It goes before the usual finders."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if isinstance(sys.modules.get(fullname), OldPath):
            return sys.modules[fullname].__spec__
        spec = PathFinder.find_spec(fullname, path) if fullname in _below_what_is_not_imported else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            for entry in _below_what_is_not_imported.pop(fullname, []):
                _add_below(module, entry)

        spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]  # of this one loader of this one module
        return spec


# What a file of configuration names: classes of our own packages, which are imported when they are asked for.

_COLLECTIONS = ("asr",)
# By NeMo's name, the longer ones first.
_OUR_PACKAGES = {f"nemo.collections.{name}": f"nemo_{name}" for name in _COLLECTIONS} | {"nemo": "nemo_lite"}


def value_of_ours(dotted: str) -> object:
    """The value of a dotted name in our packages, also under NeMo's names of these; it is imported if it has to be.

    It is looked for in the module that the name says, then in the packages around it. None where there is none, and for
    names of other packages: nothing of those is imported.
    """
    theirs = next((name for name in _OUR_PACKAGES if dotted.startswith(f"{name}.")), None)
    if theirs:
        dotted = _OUR_PACKAGES[theirs] + dotted.removeprefix(theirs)
    *modules, name = dotted.split(".")
    is_ours = bool(modules) and modules[0] in _OUR_PACKAGES.values()
    if not is_ours or not all(part.isidentifier() and not part.startswith("_") for part in (*modules, name)):
        return None
    while modules:
        with suppress(ImportError):  # no such module, or a package that is not installed
            value: object = getattr(import_module(".".join(modules)), name, None)
            if value is not None:
                return value
        modules.pop()
    return None


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
    """The substitute of ``nemo.core.TrainingState``, or of what is in it; an empty text where it is here."""
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


class MissingNames:
    """Says the same for ``from nemo.core import TrainingState``, for which Python also looks for a module."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        text = text_of_missing(fullname)
        if text:
            raise ImportError(text, name=fullname)


# By package: module of today -> old paths, both below the package.
OLD_PATHS = {
    "nemo_lite": {
        "backends.pytorch.checkpoint.storage": "backends.torch_backend",
        "backends.pytorch.neural_graph": """
            core.neural_graph core.neural_graph.configuration core.neural_graph.graph_inputs
            core.neural_graph.graph_outputs core.neural_graph.neural_graph core.neural_graph.recorded_graph
            core.neural_graph.runner core.neural_graph.summary utils.neural_graph utils.neural_graph.graph_inputs
            utils.neural_graph.graph_outputs
        """,
        "cli.verify_resume": "cli.interrupted_runs",
        "compat": "lazy",
        "config": "config.checking config.loading config.overriding config.ranges config.values",
        "core.app_state": """
            utils.neural_graph utils.alive utils.alive.app_state utils.alive.connection utils.alive.registries
            utils.app_state utils.metaclasses utils.neural_graph.connection utils.neural_graph.neural_graph_manager
            utils.neural_graph.object_registry utils.nmtensor_registry
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
    },
    "nemo_lite.core": {
        "app_state": "graph.nm_tensor",
        "callbacks.base": "action_state callbacks.action_callback deprecated_callbacks",
        "callbacks.checkpoint": "deprecated_callbacks",
        "callbacks.evaluator": "deprecated_callbacks metrics",
        "callbacks.loggers": """
            callbacks.progress callbacks.wandb_loggers deprecated_callbacks tracking tracking.callback
        """,
        "callbacks.schedules": "deprecated_callbacks",
        "dag": "graph graph.dag",
        "models": "models.archive models.nemo_model nemo_model",
        "neural_module": """
            graph graph.module_class graph.module_config graph.neural_module graph.recording module_config
            neural_modules
        """,
        "neural_types": """
            graph.nm_tensor neural_modules neural_types.axes neural_types.elements neural_types.neural_type
            neural_types.nm_tensor neural_types.tags
        """,
        "ports": """
            graph graph.kinds graph.neural_interface graph.ports nemo_model neural_factory neural_interface
            neural_modules
        """,
        "run_options": "backend compile_options module_decorators neural_factory neural_modules",
        "shapes": "graph graph.shapes",
        "show": "show.layout show.mermaid show.plan show.precision show.svg show.text show.view svg view",
        "trackers": """
            tracking tracking.metrics_file tracking.mlflow_tracker tracking.records tracking.tensorboard_tracker
            tracking.terminal tracking.wandb_tracker
        """,
    },
    "nemo_lite.backends.pytorch": {
        "actions": "lowerings",
        "common": "common.losses common.metrics common.multi_data common.other common.parts common.zero_data",
        "data.loaders": "data.items data.seeds data.unusable data.workers",
        "data.order": "data.cost_sampling data.sequential",
        "export": "export.deployment export.onnx_files export.wires",
        "neural_graph": "neural_graph.graph_weights neural_graph.runner",
        "nm": "module_wrapper torch_module weight_tying",
        "optimizers": """
            create_optimizer foreach_optimizers optim optim.adam_w optim.create optim.foreach optim.from_apex
            optim.from_torch optim.groups optim.lamb optim.larc optim.loading optim.novograd
        """,
        "placement": "snapshot",
        "precision": """
            precision.apex_amp precision.apex_package precision.dtypes precision.gradients precision.half_modules
            precision.loss_scale precision.master_weights precision.policy precision.saved_weights
        """,
        "precision_check": "precision.check",
        "tutorials": "tutorials.toys",
    },
    "nemo_lite.backends.pytorch.engine": {
        "averages": "averaging averaging.averages averaging.statistics",
        "batches": "step_batches step_values",
        "evaluation": "evaluation.cache evaluation.evaluation evaluation.rounds",
        "module_state": "generators",
        "objectives": "arguments",
        "resuming": "resuming.buffers resuming.position resuming.restoring resuming.stacking resuming.world_size",
        "state": "run_state step_clock",
        "training": "counters learning_rates stopping",
        "verdict": "verdict.item_losses verdict.skipped_steps verdict.step_guard verdict.verdict",
    },
    "nemo_lite.backends.pytorch.distributed": {
        "comm": "exchange pieces",
        "contract": "contract_terms copies drift rank_table",
        "group": "replica",
        "health": "health.diagnosis health.heartbeat health.launcher health.monitor",
        "process": "activity data_workers failures health.activity health.endings health.origin",
        "rendezvous": """
            network_interface rendezvous.attempts rendezvous.failures rendezvous.meeting rendezvous.members
            rendezvous.notes rendezvous.run_identity rendezvous.stores
        """,
    },
    "nemo_lite.backends.pytorch.checkpoint": {
        "folder": "averaging contents",
        "saving": "background",
        "storage": "fitting nemo_files nemo_state state state_check",
        "store": "store.best store.commit store.flat_sets store.listing store.lock store.record store.reports",
        "tensors": "finite tensors.divided tensors.safetensors_file tensors.stored torch_files",
    },
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
