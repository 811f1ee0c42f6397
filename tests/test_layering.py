"""The arrows between the packages: every file is read with ast, and an import that points up fails."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the bottom to the top; a file may import from its own layer and from those below. A longer name wins.
LAYERS = {
    "nemo_lite.errors": 0,
    "nemo_lite.config": 1,
    "nemo_lite.utils": 2,
    "nemo_lite.core": 3,
    "nemo_lite.backends": 4,
    "nemo_lite": 5,
    "nemo_asr": 6,
    "examples": 7,
}
# Imports inside functions: packages that a user may do without, and those whose import is worth putting off.
LATE_IMPORTS = {
    "wandb": "optional: logging to Weights & Biases",
    "apex": "optional: fused optimizers",
    "espeakng_loader": "optional: the speech synthesiser of the demo",
    "matplotlib": "optional: curves.png of the demo",
    "torch.utils.tensorboard": "slow to import; only runs that write events pay for it",
    "inflect": "slow to import; only texts with numbers pay for it",
    "nemo_lite.backends.pytorch.distributed.sharding": "imports FSDP2, which is slow; only runs that shard pay for it",
}
# Where a collection enters nemo_lite: what it derives from and what it hands over, never the engine's rooms.
DOORS = (
    "nemo_lite",
    "nemo_lite.backends.pytorch.data",
    "nemo_lite.backends.pytorch.nm",
    "nemo_lite.config",
    "nemo_lite.config.values",
    "nemo_lite.core",
    "nemo_lite.core.graph.neural_module",
    "nemo_lite.core.neural_types",
    "nemo_lite.core.graph.ports",
    "nemo_lite.core.graph.shapes",
    "nemo_lite.core.show",
    "nemo_lite.errors",
    "nemo_lite.utils",
)
# The package that may decide what one rank does alone, and speak to torch.distributed.
DISTRIBUTED = tuple(
    str(path.relative_to(ROOT)) for path in (ROOT / "nemo_lite/backends/pytorch/distributed").rglob("*.py")
)
# Others that look at ranks: each writes its own log file and the first the shared ones; the launcher's variables.
RANKS = (*DISTRIBUTED, "nemo_lite/utils/exp_logging.py", "nemo_lite/utils/launch/identity.py")


class Import(NamedTuple):
    """One imported module or name: ``target`` is as long as the statement makes it."""

    file: Path
    line: int
    target: str
    late: bool
    typing_only: bool
    star: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.target}"


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """``nemo_lite/core/dag.py`` -> ``nemo_lite.core.graph.dag``; a package is named after its folder."""
    relative = path.relative_to(ROOT).with_suffix("")
    parts = [part for part in relative.parts if part != "__init__"]
    return ".".join(parts[2:] if parts[0] == "collections" else parts)


PACKAGES = [*files("nemo_lite"), *files("collections/asr/nemo_asr")]
MODULES = {module_of(path): path for path in PACKAGES}


def imports_of(path: Path) -> Iterator[Import]:
    """All imports of a file, ``from package import submodule`` resolved to the submodule."""
    yield from _imports(path, ast.parse(path.read_text(encoding="utf-8")), late=False, typing_only=False)


def _imports(path: Path, node: ast.AST, late: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, late, typing_only, False)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{path}:{child.lineno}: relative import"
            for alias in child.names:
                target = f"{child.module}.{alias.name}"
                target = target if target in (*MODULES, "torch.distributed") else str(child.module)
                yield Import(path, child.lineno, target, late, typing_only, alias.name == "*")
        else:
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = typing_only or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            yield from _imports(path, child, inside, typing)


def layer_of(module: str) -> int | None:
    """The layer of a module of ours; None for others."""
    names = [name for name in LAYERS if module == name or module.startswith(f"{name}.")]
    return LAYERS[max(names, key=len)] if names else None


def upward(found: Import) -> bool:
    mine, theirs = layer_of(module_of(found.file)), layer_of(found.target)
    return mine is not None and theirs is not None and theirs > mine


ALL_IMPORTS = [found for path in [*PACKAGES, *files("examples")] for found in imports_of(path)]


def told(found: list[Import]) -> str:
    return "\n".join(map(str, found))


# The arrows


def test_imports_point_downward_only() -> None:
    assert not told([found for found in ALL_IMPORTS if upward(found)])


def test_the_core_and_what_is_below_do_not_know_torch() -> None:
    below = [found for found in ALL_IMPORTS if (layer_of(module_of(found.file)) or 0) <= LAYERS["nemo_lite.core"]]
    assert len({found.file for found in below}) > 20
    torch = [f for f in below if f.target.split(".")[0] == "torch" and not f.late and not f.typing_only]
    assert not told(torch)


def test_the_core_imports_torch_nowhere_at_all() -> None:
    core = [found for found in ALL_IMPORTS if module_of(found.file).startswith(("nemo_lite.core", "nemo_lite.config"))]
    assert not told([found for found in core if found.target.split(".")[0] == "torch"])


def test_nothing_in_nemo_lite_mentions_the_collection() -> None:
    mentions = [str(path) for path in files("nemo_lite") if "nemo_asr" in path.read_text(encoding="utf-8")]
    assert mentions == []


def test_the_collection_enters_through_the_doors() -> None:
    entering = [
        found
        for found in ALL_IMPORTS
        if module_of(found.file).startswith("nemo_asr") and found.target.split(".")[0] == "nemo_lite"
    ]
    assert entering
    inside = [f for f in entering if f.target not in DOORS and not f.target.startswith("nemo_lite.utils.")]
    assert not told(inside)


def test_examples_use_public_names_only() -> None:
    hidden = [
        found
        for found in ALL_IMPORTS
        if found.file.is_relative_to(ROOT / "examples")
        and any(part.startswith("_") for part in found.target.split("."))
        if not found.target.startswith("__future__")
    ]
    assert not told(hidden)


def test_there_are_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in ALL_IMPORTS:
        source = module_of(found.file)
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
    assert not told([found for found in ALL_IMPORTS if found.star])


def test_imports_inside_functions_are_those_with_a_reason() -> None:
    late = [found for found in ALL_IMPORTS if found.late]
    assert not told([f for f in late if not any(f.target == n or f.target.startswith(f"{n}.") for n in LATE_IMPORTS)])


def test_collections_never_becomes_a_package() -> None:
    # With the repository on sys.path it would stand in for the standard library's collections.
    assert not (ROOT / "collections" / "__init__.py").exists()
    assert not (ROOT / "collections" / "asr" / "__init__.py").exists()


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


# Ranks


def rank_decisions(tree: ast.AST) -> Iterator[int]:
    """Lines that compare something called rank with a number, or use torch.distributed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = {side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "") for side in sides}
            if any(name.endswith("rank") for name in names) and any(isinstance(side, ast.Constant) for side in sides):
                constants = [side.value for side in sides if isinstance(side, ast.Constant)]
                if any(isinstance(value, int) for value in constants):
                    yield node.lineno
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.distributed.", "dist.")):
            yield node.lineno


def test_ranks_and_collectives_live_in_one_place() -> None:
    sources = {str(path.relative_to(ROOT)): path for path in [*PACKAGES, *files("examples")]}
    decisions = [
        f"{name}:{line}"
        for name, path in sources.items()
        if name not in RANKS
        for line in rank_decisions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert decisions == []
    speaking = [f for f in ALL_IMPORTS if f.target.startswith("torch.distributed")]
    assert not told([f for f in speaking if str(f.file.relative_to(ROOT)) not in DISTRIBUTED])


# The guards themselves


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("if rank == 0: pass", [1]),
        ("if self.comm.global_rank != 0: pass", [1]),
        ("if 0 < local_rank: pass", [1]),
        ("import torch\ntorch.distributed.barrier()", [2]),
        ("import torch.distributed as dist\ndist.all_reduce(x)", [2]),
        ("if rank is None: pass", []),
        ("if rank == other_rank: pass", []),
        ("frank = rank + 1", []),
    ],
)
def test_the_guard_of_ranks_sees_what_it_is_for(source: str, lines: list[int]) -> None:
    assert sorted(set(rank_decisions(ast.parse(source)))) == lines


def test_the_guard_of_cycles_sees_what_it_is_for() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert cycles({"a": {"a"}}) == ["a"]


@pytest.mark.parametrize(
    ("source", "target", "up"),
    [
        ("nemo_lite/core/dag.py", "nemo_lite.backends.pytorch.nm", True),
        ("nemo_lite/core/dag.py", "nemo_lite", True),
        ("nemo_lite/core/dag.py", "nemo_lite.errors", False),
        ("nemo_lite/core/dag.py", "nemo_lite.core.graph.nm_tensor", False),
        ("nemo_lite/core/dag.py", "torch", False),
        ("nemo_lite/errors.py", "nemo_lite.config", True),
        ("nemo_lite/utils/misc.py", "nemo_lite.core", True),
        ("nemo_lite/backends/pytorch/nm.py", "nemo_asr.models.jasper", True),
        ("nemo_lite/__init__.py", "nemo_lite.backends.pytorch", False),
        ("collections/asr/nemo_asr/jasper.py", "nemo_lite", False),
        ("collections/asr/nemo_asr/jasper.py", "examples.asr", True),
    ],
)
def test_the_guard_of_arrows_sees_what_it_is_for(source: str, target: str, up: bool) -> None:
    assert upward(Import(ROOT / source, 1, target, False, False, False)) is up


def test_the_guard_reads_imports_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os.path, torch\nfrom nemo_lite.core import dag\nfrom math import *\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import late_typing\n"
        "class A:\n    def f(self):\n        try:\n            import wandb\n        except ImportError: pass\n"
    )
    found = list(imports_of(path))
    assert [f.target for f in found] == [
        *("os.path", "torch", "nemo_lite.core.graph.dag", "math", "typing", "late_typing", "wandb"),
    ]
    assert [f.target for f in found if f.late] == ["wandb"]
    assert [f.target for f in found if f.typing_only] == ["late_typing"]
    assert [f.target for f in found if f.star] == ["math"]
