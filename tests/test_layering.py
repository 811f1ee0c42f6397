"""Imports between packages and files: every file is read with ast, and an import that points up fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys.rooms import BORDERS, TABLES, package_of
from toys.sources import MODULES, PACKAGES, ROOT, Import, all_imports, files, imports_of, is_inside, only_re_exports

WITHOUT_TORCH = ["nemo_lite.base", "nemo_asr.run"]
# Within a package, rooms from the bottom to the top. Names between two "<" are on one level.
ORDERS = {
    "nemo_lite": "package_info, utils < core < backends < factory < cli < __main__",
    "nemo_lite.core": """
        app_state < neural_types < ports, shapes < neural_module < dag, run_options
        < callbacks.action_state < callbacks.base < trackers < callbacks, picture < show
    """,
    "nemo_lite.backends.pytorch": """
        tensor_codec, lowering, iterations < generators, streaming, placement, half_modules, data.order
        < precision < distributed < checkpoint, data, compiling, foreach_optimizers < optimizers < nm
        < common, engine < export, precision_check < actions
    """,
    "nemo_asr.run": """
        arguments, calibration < text, manifest_kinds < manifest < audio < options
        < search, engines < transcribe < onnx < serve < cli
    """,
    "nemo_asr": """
        rng, shipped, published < wenet_keys < options < argparse, text, augmentation, features
        < models < decoding < scoring < data < tasks < corpora < trained < export < commands
    """,
}
# Imports inside functions: packages that a user may do without, and those whose import is worth putting off.
LATE_IMPORTS = {
    "nemo_lite.backends.pytorch.compiling": "imports torch._dynamo, which is slow; only runs that compile pay for it",
    "av": "optional: audio in MP4, WebM, AMR and WMA files",
    "argcomplete": "optional: completion of the options by a shell",
    "wandb": "optional: logging to Weights & Biases",
    "matplotlib": "optional: the curves of the demo",
    "mlflow": "optional: logging to MLflow",
    "espeakng_loader": "optional: the speech synthesiser of the demo",
    "onnx": "optional: writes int8 models",
    "onnx_ir": "optional: writes ONNX files",
    "onnxruntime": "optional: runs exported models",
    "nemo_asr.commands.class_evaluation": "imports torch; --help is shown without",
    "nemo_asr.commands.evaluation": "imports torch; --help is shown without",
    "nemo_asr.commands.training": "imports torch; --help is shown without",
    "nemo_asr.trained.fine_tuning": "imports torch; --help is shown without",
    "sounddevice": "optional: a microphone",
    "nemo_asr.run.search.text_search": "a transcript by greedy decoding is there sooner without",
    "nemo_asr.run.search.transducer_beam": "likewise",
    "nemo_asr.run.transcribe.streaming": "whole recordings are transcribed without",
    "nemo_asr.run.text.parser": "only what aligns texts reads them",
    "nemo_asr.run.text.subwords": "likewise",
    "nemo_asr.run.transcribe.alignment": "likewise",
    "nemo_asr.run.transcribe.stream": "whole recordings are transcribed without",
    "multiprocessing": "slow to import; only what has workers pays for it",
    "nemo_lite.backends.pytorch.checkpoint.folder": "imports torch; --help is shown without",
    "nemo_asr.run.serve": "optional: starlette; only the server imports them",
    "uvicorn": "optional: the server",
    "tensorboard": "slow to import; only runs that write events pay for it",
    "torch.utils.tensorboard": "slow to import; only runs that write events pay for it",
    "sentencepiece": "optional: vocabularies of subwords",
    "kenlm": "optional: binaries of KenLM",
    "kaldialign": "optional: errors as the public leaderboard counts them",
    "num2words": "imports 57 languages; only texts with numbers pay for it",
    "nemo_asr.run.text.english": "compiles many rules; only commands that read texts pay for it",
    "rapidfuzz": "slow to import; what applies a calibration need not wait for it",
    "torch.distributed.tensor": "slow to import; only runs that shard pay for it",
    "nemo_lite.backends.pytorch.distributed.sharding": "imports FSDP2, which is slow; only runs that shard pay for it",
}


def crosses(found: Import) -> bool:
    """Whether an import crosses a border; imports in functions and for type checkers alone count too."""
    mine, theirs = package_of(found.source), package_of(found.target)
    if found.target.split(".")[0] == "torch":
        return mine in WITHOUT_TORCH
    if mine is None or theirs is None or mine == theirs or found.target in TABLES:
        return False
    return theirs not in BORDERS[mine]


def levels_of(order: str) -> dict[str, int]:
    """``"a < b, c"`` -> ``{"a": 0, "b": 1, "c": 1}``."""
    return {name.strip(): level for level, names in enumerate(order.split("<")) for name in names.split(",")}


LEVELS = {package: levels_of(order) for package, order in ORDERS.items()}


def part_of(module: str, package: str) -> str | None:
    """The name in a package's order that a module belongs to; None for the package itself and for re-export files."""
    inner = module.removeprefix(f"{package}.")
    names = [name for name in LEVELS[package] if is_inside(inner, name)]
    return max(names, key=len) if names else None


def climbs(found: Import) -> bool:
    """Whether an import goes to its own level or one above, or to a file that re-exports its own package."""
    for package in LEVELS:
        if found.typing_only or not (is_inside(found.source, package) and is_inside(found.target, package)):
            continue
        if not package_of(found.source) == package_of(found.target) == package_of(package):
            continue
        mine, theirs = part_of(found.source, package), part_of(found.target, package)
        if mine is None or mine == theirs:
            continue
        if found.target == "nemo_asr" and mine == "commands":  # public names, as an example takes them
            continue
        if theirs is None or LEVELS[package][theirs] >= LEVELS[package][mine]:
            return True
    return False


def told(found: list[Import]) -> str:
    return "\n".join(map(str, found))


# Which way imports point


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_each_package_imports_only_what_its_border_lets_in() -> None:
    assert not told([found for found in all_imports() if crosses(found)])


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_imports_point_downward_within_packages_too() -> None:
    assert not told([found for found in all_imports() if climbs(found)])


def test_every_room_has_a_level_in_the_order() -> None:
    """A new room must be given a level; one that is gone must be taken out."""
    for package, levels in LEVELS.items():
        inner = [
            module
            for module, path in MODULES.items()
            if is_inside(module, package) and module != package and package_of(module) == package_of(package)
            if not only_re_exports(path)
        ]
        missing = [module for module in inner if part_of(module, package) is None]
        assert not missing, f"{package}: name them in ORDERS: {missing}"
        gone = [name for name in levels if f"{package}.{name}" not in MODULES]
        assert not gone, f"{package}: no such files: {gone}"


def test_the_core_imports_torch_nowhere_at_all() -> None:
    core = [found for found in all_imports() if found.source.startswith("nemo_lite.core")]
    assert not told([found for found in core if found.target.split(".")[0] == "torch"])


def test_nothing_in_nemo_lite_mentions_the_collection() -> None:
    mentions = [str(path) for path in files("nemo_lite") if "nemo_asr" in path.read_text(encoding="utf-8")]
    assert mentions == []


def test_examples_use_public_names_only() -> None:
    hidden = [
        found
        for found in all_imports()
        if found.file.is_relative_to(ROOT / "examples")
        and any(part.startswith("_") for part in found.target.split("."))
        if not found.target.startswith("__future__")
    ]
    assert not told(hidden)


def test_there_are_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in all_imports():
        source = found.source
        if source in graph and found.target in graph and not found.typing_only and found.target != source:
            graph[source].add(found.target)
    assert cycles(graph) == []


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """What is left when modules that import nothing of what is left are taken away, again and again."""
    left = {module: set(targets) for module, targets in graph.items()}
    for backward in (False, True):
        while done := {module for module, targets in left.items() if not targets & left.keys()}:
            left = {module: targets for module, targets in left.items() if module not in done}
        if not backward:  # the same from the other side: what is imported by nothing that is left
            left = {m: {other for other, targets in left.items() if m in targets} for m in left}
    return sorted(left)


def test_there_are_no_star_imports() -> None:
    assert not told([found for found in all_imports() if found.star])


def test_imports_inside_functions_are_those_with_a_reason() -> None:
    late = [found for found in all_imports() if found.late]
    assert not told([found for found in late if not any(is_inside(found.target, name) for name in LATE_IMPORTS)])
    assert [name for name in LATE_IMPORTS if not any(is_inside(found.target, name) for found in late)] == []


def test_collections_never_becomes_a_package() -> None:
    # With the repository on sys.path it would stand in for the standard library's collections.
    assert not (ROOT / "collections" / "__init__.py").exists()
    assert not (ROOT / "collections" / "asr" / "__init__.py").exists()


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


# The guards themselves


def test_the_guard_of_cycles_sees_what_it_is_for() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert cycles({"a": {"a"}}) == ["a"]


@pytest.mark.parametrize(
    ("source", "target", "is_crossing"),
    [
        ("nemo_lite/base/errors.py", "nemo_lite.core.dag", True),
        ("nemo_lite/base/errors.py", "nemo_lite.base.files", False),
        ("nemo_lite/base/errors.py", "torch", True),
        ("nemo_lite/core/dag.py", "nemo_lite.base.errors", False),
        ("nemo_lite/core/dag.py", "nemo_lite.compat.neural_graph", True),
        ("nemo_lite/factory.py", "nemo_asr.models.jasper", True),
        ("nemo_lite/__init__.py", "nemo_lite.compat.paths", False),
        ("nemo_lite/compat/neural_graph.py", "nemo_lite.factory", False),
        ("nemo_lite/compat/neural_graph.py", "nemo_asr", True),
        ("collections/asr/nemo_asr/run/engines.py", "nemo_lite.base.errors", False),
        ("collections/asr/nemo_asr/run/engines.py", "nemo_lite", True),
        ("collections/asr/nemo_asr/run/engines.py", "nemo_asr.trained.model", True),
        ("collections/asr/nemo_asr/run/engines.py", "torch.nn", True),
        ("collections/asr/nemo_asr/trained/model.py", "nemo_asr.run.engines", False),
        ("collections/asr/nemo_asr/trained/model.py", "nemo_asr.compat.parts", True),
        ("collections/asr/nemo_asr/compat/parts.py", "nemo_asr.trained.model", False),
    ],
)
def test_the_guard_of_borders_sees_what_it_is_for(source: str, target: str, is_crossing: bool) -> None:
    for late, typing_only in ((False, False), (True, False), (False, True)):
        assert crosses(Import(ROOT / source, 1, target, late, typing_only, False)) is is_crossing


@pytest.mark.parametrize(
    ("source", "target", "up"),
    [
        ("nemo_lite/core/dag.py", "nemo_lite.core.show", True),
        ("nemo_lite/core/dag.py", "nemo_lite.core.ports", False),
        ("nemo_lite/core/dag.py", "nemo_lite.core.neural_types", False),
        ("nemo_lite/core/dag.py", "nemo_lite.core", True),
        ("nemo_lite/core/ports.py", "nemo_lite.core.show", True),
        ("nemo_lite/backends/pytorch/data/order.py", "nemo_lite.backends.pytorch.distributed", True),
        ("nemo_lite/backends/pytorch/distributed/group.py", "nemo_lite.backends.pytorch.data.order", False),
        ("nemo_lite/backends/pytorch/distributed/group.py", "nemo_lite.backends.pytorch.data.loaders", True),
        ("collections/asr/nemo_asr/run/text/parser.py", "nemo_asr.run.audio.reading", True),
        ("collections/asr/nemo_asr/models/jasper/encoder.py", "nemo_asr.data.tarred", True),
    ],
)
def test_the_guard_of_orders_sees_what_it_is_for(source: str, target: str, up: bool) -> None:
    assert climbs(Import(ROOT / source, 1, target, False, False, False)) is up
    assert not climbs(Import(ROOT / source, 1, target, False, True, False))  # only for type checkers


def test_the_guard_reads_imports_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os.path, torch\nfrom nemo_lite.core import dag\nfrom math import *\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import late_typing\n"
        "class A:\n    def f(self):\n        try:\n            import wandb\n        except ImportError: pass\n"
    )
    found = list(imports_of(path))
    assert [f.target for f in found] == [
        *("os.path", "torch", "nemo_lite.core.dag", "math", "typing", "late_typing", "wandb"),
    ]
    assert [f.target for f in found if f.late] == ["wandb"]
    assert [f.target for f in found if f.typing_only] == ["late_typing"]
    assert [f.target for f in found if f.star] == ["math"]
