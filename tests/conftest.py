"""What all tests share: single-threaded torch, a limit of time, and which tests ``make check`` leaves out."""

import faulthandler
import gc
import itertools
import multiprocessing.util
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType, FunctionType

import pytest
import torch
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from nemo_lite import NeuralModuleFactory
from nemo_lite.core.app_state import AppState
from nemo_lite.utils import logging

# The same cases in every run; with NEMO_LITE_LONG_TESTS=1 new ones, to look for faults.
settings.register_profile("same cases", derandomize=True)
settings.load_profile("default" if "NEMO_LITE_LONG_TESTS" in os.environ else "same cases")

# Toys that start processes: a test that calls them, itself or through a function or fixture of its file, is slow.
STARTERS = ("toys.launched", "toys.machines", "toys.ranks", "toys.warm_python")

TEST_SECONDS = float(os.environ.get("NEMO_LITE_TEST_SECONDS", "900"))
"""For each of set-up, call and tear-down of a test, but for soak tests; far more than any takes on a busy machine."""
ENDED_TESTS = itertools.count(1)
_UNTIL_EXIT_SECONDS = min(60.0, TEST_SECONDS)  # for a test that does not end by an exception, as in a call of C


@contextmanager
def limited(item: pytest.Item) -> Iterator[None]:
    """Inside, a test that takes too long fails; one that does not end then ends the process, with its stacks."""
    if item.get_closest_marker("soak"):
        yield
        return

    stderr = item.config.stash[fault_handler_stderr_fd_key]

    def fail(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(stderr)  # of all threads; pytest shows the main one only
        pytest.fail(f"the test took more than {TEST_SECONDS:g} s")

    process, before = os.getpid(), signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, TEST_SECONDS)
    faulthandler.dump_traceback_later(TEST_SECONDS + _UNTIL_EXIT_SECONDS, file=stderr, exit=True)
    try:
        yield
    finally:
        if os.getpid() != process:  # a child that a test forked: it has no thread that could be cancelled
            os._exit(1)
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with limited(item):
        result = yield
    if next(ENDED_TESTS) % 40 == 0:
        keep_the_collector_off()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Names that are no UTF-8 may stand in what was logged; pytest-xdist sends no such text between processes."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True, scope="session")
def _children_start_with_default_signals() -> Iterator[None]:
    """Under ``nohup`` SIGHUP is ignored, and whatever tests start would inherit that. A handler ends with an exec."""
    ignored = [
        each for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is signal.SIG_IGN
    ]
    for number in ignored:
        # In the background of a shell SIGINT is ignored; tests press Ctrl-C here, too.
        interrupts = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if interrupts else lambda number, frame: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # Small tensors gain nothing from a second thread, and several test processes lose much.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _only_what_is_there_is_seeded() -> Iterator[None]:
    """Each call of ``torch.manual_seed`` keeps the stack for a GPU that may come: 7 ms for each kind of device."""
    absent = [each for each in (torch.cuda, torch.xpu, torch.mtia) if not each.is_available()]
    with pytest.MonkeyPatch.context() as patch:
        for each in absent:
            patch.setattr(each, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_width() -> Iterator[None]:
    """Pages of ``--help`` are as wide as the terminal; pytest-xdist has one of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "102")
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests, launchers and killed processes leave in the folder for temporary files goes with the session."""
    tmp_path_factory.getbasetemp()  # pytest's own folder stays where it is: it has what a failed test made
    multiprocessing.util.get_temp_dir()  # goes when this process ends, with its server for forks
    temporary = tempfile.TemporaryDirectory(prefix="nl-", ignore_cleanup_errors=True)
    with temporary as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _models_are_trained_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder that test processes share: pytest-xdist gives each a folder of its own in that of the session."""
    own = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_LITE_TESTS_SHARED", str(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own))
        yield


@pytest.fixture(autouse=True)
def _names_are_free():
    # What an earlier test made may be alive still, in its traceback or in the factory; its names are of no concern.
    AppState().modules.clear()
    AppState().graphs.clear()


@pytest.fixture(autouse=True)
def _no_factory_is_the_default():
    # What is computed without a factory takes the device and the precision of the one made last, in an earlier test.
    NeuralModuleFactory.reset_default_factory()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    level = logging.get_verbosity()
    yield
    logging.setLevel(level)


@pytest.hookimpl(tryfirst=True)  # before the names of failed tests are kept
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Without the group that pytest-xdist adds to a test's name: ``--last-failed`` would not find it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker's names are those of its items
        report.nodeid = re.sub(r"@[\w.]+$", "", report.nodeid)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in ("long", "soak"):
        if marker not in config.getoption("markexpr"):
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
    for item in items:
        if isinstance(item, pytest.Function):
            if any(makes_once(definition) for name in item.fixturenames for definition in fixtures_of(item, name)):
                # In one test process: two would each make what the tests of this file share.
                item.add_marker(pytest.mark.xdist_group(item.path.name))
            fixtures = [definition.func for name in item.fixturenames for definition in fixtures_of(item, name)]
            if any(starts_processes(function) for function in [item.function, *fixtures]):
                item.add_marker(pytest.mark.slow)
    put_long_ones_first(items)


def put_long_ones_first(items: list[pytest.Item]) -> None:
    """The groups with most slow tests, then slow tests, then the others, so that test processes end together."""
    slow_in_group = Counter(group_of(item) for item in items if item.get_closest_marker("slow"))
    del slow_in_group[""]
    items.sort(
        key=lambda item: (
            -slow_in_group[group_of(item)],
            group_of(item),
            not group_of(item) and item.get_closest_marker("slow") is None,
        )
    )


def group_of(item: pytest.Item) -> str:
    """The tests of a group run in one test process; "" where it may be any."""
    marker = item.get_closest_marker("xdist_group")
    return str(marker.args[0]) if marker else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """See that groups of tests are seen: else two test processes would make network namespaces of the same names."""
    keep_the_collector_off()
    in_groups = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and in_groups and "@" not in in_groups[0].nodeid:
        raise pytest.UsageError("pytest-xdist does not see the groups of tests: install with -c constraints.txt")


def keep_the_collector_off() -> None:
    """Thousands of small tests spent a third of their time on objects of torch and pytest that stay until the end."""
    gc.collect()
    gc.freeze()


def fixtures_of(item: pytest.Function, name: str) -> Iterator[pytest.FixtureDef[object]]:
    yield from item._fixtureinfo.name2fixturedefs.get(name, ())


def makes_once(definition: pytest.FixtureDef[object]) -> bool:
    """Whether tests of one file share what the fixture makes."""
    return definition.scope == "module"


@cache
def starts_processes(function: object) -> bool:
    """Whether a function of the tests calls one of ``STARTERS``."""
    return calls_starter(function, set())


def calls_starter(function: object, seen: set[object]) -> bool:
    """Whether a function does, or one that it calls and that is not among those seen."""
    if not isinstance(function, FunctionType) or function in seen:
        return False
    seen.add(function)
    called = [function.__globals__.get(name) for name in names_in(function.__code__)]
    return any(getattr(other, "__module__", None) in STARTERS or calls_starter(other, seen) for other in called)


def names_in(code: CodeType) -> Iterator[str]:
    """The global names that a function reads, also in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
