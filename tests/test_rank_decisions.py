"""Decisions by rank, and collectives, live in ``distributed``: no other package asks which rank it runs on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from toys.sources import PACKAGES, ROOT, all_imports, files, parsed

DISTRIBUTED = "nemo_lite/backends/pytorch/distributed/"
# Other files that may look at ranks, and how often at most, with the reason.
ALLOWED = {
    "nemo_lite/utils/exp_logging.py": (10, "each rank writes a log file of its own, rank 0 the shared files"),
    "nemo_lite/base/launch.py": (1, "says what `is_first` means"),
    "nemo_lite/factory.py": (1, "a launcher's processes take all GPUs unless told otherwise"),
    "nemo_lite/backends/pytorch/data/order.py": (2, "the order of one rank is that of the items, which it keeps"),
    "nemo_lite/backends/pytorch/nm.py": (1, "refuses a loader that cannot deal its data to several ranks"),
    "nemo_lite/backends/pytorch/engine/arguments.py": (1, "refuses sharded weights on one rank"),
    "nemo_lite/backends/pytorch/engine/evaluation.py": (1, "a single process exchanges no results"),
    "nemo_lite/backends/pytorch/engine/state.py": (1, "a single process stops without an exchange"),
    "nemo_lite/backends/pytorch/engine/training.py": (1, "a launcher's command is not known to its processes"),
    "nemo_lite/backends/pytorch/engine/batches.py": (2, "a single process exchanges nothing at a step"),
    "collections/asr/nemo_asr/trained/engine.py": (1, "a single process computes one batch without a loader"),
    "collections/asr/nemo_asr/commands/evaluation.py": (1, "refuses --stream and --certify on several ranks"),
    "nemo_lite/core/callbacks/evaluator.py": (1, "NeMo's wording of a distributed evaluation"),
    "nemo_lite/base/options.py": (1, "only rank 0 needs the checkpoints, and what records a run, on its machine"),
}


def name_of(node: ast.AST) -> str:
    """``rank`` of ``rank``, ``self.comm.rank`` and ``rank()``."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def rank_decisions(tree: ast.AST) -> Iterator[int]:
    """Lines that ask which rank this is or whether there are several, or use torch.distributed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            numbers = [side for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, int)]
            if numbers and any(name_of(side).endswith(("rank", "world_size")) for side in sides):
                yield node.lineno
        elif isinstance(node, (ast.Attribute, ast.Name)) and name_of(node).endswith("is_first"):
            yield node.lineno
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("torch.distributed.", "dist.")):
            yield node.lineno


@pytest.mark.xdist_group("sources")
@pytest.mark.slow
def test_ranks_are_asked_for_in_one_place() -> None:
    too_many = []
    for path in [*PACKAGES, *files("examples")]:
        name = str(path.relative_to(ROOT))
        lines = sorted(set(rank_decisions(parsed(path))))
        allowed, _ = ALLOWED.get(name, (0, ""))
        if len(lines) > allowed and not name.startswith(DISTRIBUTED):
            too_many.append(f"{name}: lines {lines}, allowed {allowed}")
    assert not too_many, "\n".join(too_many)


@pytest.mark.parametrize("name", ALLOWED)
def test_an_exception_is_no_wider_than_needed(name: str) -> None:
    assert len(set(rank_decisions(parsed(ROOT / name)))) == ALLOWED[name][0]


def test_torch_distributed_is_imported_in_one_place() -> None:
    speaking = [found for found in all_imports() if found.target.startswith("torch.distributed")]
    assert speaking
    assert [str(found) for found in speaking if not str(found).startswith(DISTRIBUTED)] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("if rank == 0: pass", [1]),
        ("if self.comm.global_rank != 0: pass", [1]),
        ("if 0 < local_rank: pass", [1]),
        ("if comm.world_size == 1: pass", [1]),
        ("several = world_size > 1", [1]),
        ("if get_rank() == 0: pass", [1]),
        ("if comm.is_first: pass", [1]),
        ("if self._is_first: pass", [1]),
        ("import torch\ntorch.distributed.barrier()", [2]),
        ("import torch.distributed as dist\ndist.all_reduce(x)", [2]),
        ("if rank is None: pass", []),
        ("if rank == other_rank: pass", []),
        ("if world_size == expected: pass", []),
        ("if self.is_first_epoch: pass", []),
        ("frank = rank + 1", []),
    ],
)
def test_the_guard_of_ranks_sees_what_it_is_for(source: str, lines: list[int]) -> None:
    assert sorted(set(rank_decisions(ast.parse(source)))) == lines
