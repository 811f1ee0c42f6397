"""What all tests share: single-threaded torch, and which tests ``make check`` leaves out."""

from collections.abc import Iterator
from types import CodeType, FunctionType

import pytest
import torch

# Toys that start processes: a test that calls them, itself or through a function or fixture of its file, is slow.
STARTERS = ("toys.launched", "toys.machines", "toys.ranks", "toys.warm_python")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # Small tensors gain nothing from a second thread, and several test processes lose much.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = [definition.func for name in item.fixturenames for definition in fixtures_of(item, name)]
            if any(starts_processes(function, set()) for function in [item.function, *fixtures]):
                item.add_marker(pytest.mark.slow)


def fixtures_of(item: pytest.Function, name: str) -> Iterator[pytest.FixtureDef[object]]:
    yield from item._fixtureinfo.name2fixturedefs.get(name, ())


def starts_processes(function: object, seen: set[object]) -> bool:
    """Whether a function of the tests calls one of ``STARTERS``."""
    if not isinstance(function, FunctionType) or function in seen:
        return False
    seen.add(function)
    called = [function.__globals__.get(name) for name in names_in(function.__code__)]
    return any(getattr(other, "__module__", None) in STARTERS or starts_processes(other, seen) for other in called)


def names_in(code: CodeType) -> Iterator[str]:
    """The global names that a function reads, also in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
