"""How a rank fails: where an error comes from, printed once and whole; the end of the process, our report last."""

import errno
import re
import resource
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from toys.ranks import free_port

from nemo_lite import TrainableNM
from nemo_lite.backends.pytorch.distributed.comm import SingleProcess
from nemo_lite.backends.pytorch.distributed.failures import (
    Origin,
    is_told,
    one_line,
    origin_of,
    raise_descriptor_limit,
    remedy_of,
    tell_now,
    torch_errors_named,
)
from nemo_lite.base.errors import DataError, DistributedError, NeuralTypeError, UsageError
from nemo_lite.core.neural_types import ChannelType, NeuralType

SCRIPT = """
import ctypes, os, sys, threading, time
from nemo_lite.backends.pytorch.distributed import failures, process
terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
def abort():
    threading.Thread(target=terminate, daemon=True).start()
"""


def script(text):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + textwrap.dedent(text)], capture_output=True, text=True, timeout=60, check=False
    )


@contextmanager
def guard():
    try:
        yield
    except Exception as error:
        tell_now(error)
        tell_now(error)
        raise


def outer():
    with guard():
        divide()


def divide():
    return 1 / 0


class Wide(TrainableNM):
    """Takes 4 features of each item."""

    input_ports = {"x": NeuralType("B D=4", ChannelType())}
    output_ports = {"y": NeuralType("B D=2", ChannelType())}

    def __init__(self, name=None):
        super().__init__(name)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x) if x.dtype == torch.float32 else {}["dtype"]


def test_a_port_whose_module_gives_other_sizes_is_named_where_the_next_module_fails():
    told = (
        r"^wide\.x: the values are not of the port's type: got \(3, 5\), wanted B D=4 Channel; "
        "the output port in front says other sizes than its module gives$"
    )
    with pytest.raises(NeuralTypeError, match=told) as caught, SingleProcess().guarded():
        Wide()(x=torch.zeros(3, 5))
    assert "mat1 and mat2 shapes cannot be multiplied" in str(caught.value.__cause__)


def test_other_errors_of_a_module_stay_as_they_are():
    with pytest.raises(KeyError, match="dtype"), SingleProcess().guarded():
        Wide()(x=torch.zeros(3, 5, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="must have the same dtype"), SingleProcess().guarded():
        Wide().to(torch.float64)(x=torch.zeros(3, 4))


def test_an_error_is_told_at_once_with_its_whole_traceback_and_once(capfd):
    with pytest.raises(ZeroDivisionError) as caught:
        outer()
    err = capfd.readouterr().err
    assert err.count("ZeroDivisionError: division by zero") == 1
    # With the callers of the guarded block, and without the guard.
    assert 0 < err.index("in test_an_error_is_told") < err.index("in outer") < err.index("in divide")
    assert "in guard" not in err
    assert is_told(caught.value)


def test_a_users_mistake_and_an_interruption_are_not_told_here(capfd):
    for error in (DataError("x"), KeyboardInterrupt(), SystemExit(3)):
        tell_now(error)
        assert not is_told(error)
    assert capfd.readouterr().err == ""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C++ library has this name on Linux")
def test_the_end_that_a_cpp_error_brings_waits_for_our_report_which_comes_last():
    ended = script(
        """
        noted = threading.Event()
        process.before_abort(noted.set)
        abort()
        noted.wait(20)
        time.sleep(0.3)
        print("our report", file=sys.stderr)
        process.end_process(3)
        """
    )
    assert ended.returncode == 3
    first, last = ended.stderr.splitlines()
    assert first.startswith("terminate called")
    assert last == "our report"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C++ library has this name on Linux")
def test_at_the_end_of_a_script_a_cpp_error_says_nothing_and_changes_no_exit_code():
    ended = script(
        """
        process.before_abort(lambda: None)
        process.never_abort()
        abort()
        time.sleep(0.3)
        sys.exit(7)
        """
    )
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.long
@pytest.mark.slow
def test_what_was_told_is_not_printed_again_when_it_leaves_the_script():
    ended = script(
        """
        failures.print_each_once()
        try:
            1 / 0
        except ZeroDivisionError as error:
            failures.tell_now(error)
            raise
        """
    )
    assert ended.returncode == 1
    assert ended.stderr.count("ZeroDivisionError") == 1


@pytest.mark.long
@pytest.mark.slow
def test_an_error_of_ours_that_leaves_a_script_gives_its_exit_code_and_one_that_was_told_says_nothing():
    told = "from nemo_lite.base.errors import DistributedError as error\nfailures.print_each_once()\n"
    silent = script(f"{told}error = error('rank 1 is gone')\nerror.is_told = True\nraise error")
    assert (silent.returncode, silent.stderr) == (3, "")
    shown = script(f"{told}raise error('rank 1 is gone')")
    assert shown.returncode == 3
    assert shown.stderr.count("DistributedError: rank 1 is gone") == 1


LOST_STORE = """
import signal, torch.distributed as dist
server = os.fork()
if not server:
    store = dist.TCPStore("127.0.0.1", {port}, is_master=True, wait_for_workers=False)
    time.sleep(60)
client = dist.TCPStore("127.0.0.1", {port}, is_master=False)
threading.Timer(0.3, os.kill, (server, signal.SIGKILL)).start()
process.log_cpp_errors_only()
try:
    client.get("never")
except dist.DistError:
    print("lost")
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the library has this name on Linux")
def test_torch_logs_no_stack_where_the_store_is_lost_unless_the_user_has_set_its_level(monkeypatch):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    quiet = script(LOST_STORE.format(port=free_port()))
    assert (quiet.stdout, quiet.stderr) == ("lost\n", "")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "WARNING")
    loud = script(LOST_STORE.format(port=free_port()))
    assert loud.stdout == "lost\n"
    assert "recvValue" in loud.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS"])
def test_a_rank_that_crashes_prints_where_it_was(name):
    ended = script(
        f"""
        import signal
        def read_audio():
            os.kill(os.getpid(), signal.{name})
        process.print_stack_of_crash()
        read_audio()
        """
    )
    assert ended.returncode == -getattr(signal, name)
    assert "Fatal Python error" in ended.stderr
    assert "in read_audio" in ended.stderr


@pytest.mark.slow
def test_a_process_that_ends_at_once_leaves_no_folder_of_its_workers_sockets(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ended = script(
        """
        import multiprocessing.util
        print(os.listdir(os.path.dirname(multiprocessing.util.get_temp_dir())))
        process.end_process(3)
        """
    )
    assert ended.returncode == 3
    assert "pymp-" in ended.stdout
    assert list(tmp_path.iterdir()) == []


# Where an error comes from: the frame that raised it and its type decide, whatever words it has.


def raised(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Error opening '/data/gloo/a.wav': connection reset by peer, broken pipe, nccl, monitoredBarrier"),
        OSError("connection refused: /mnt/gloo"),
        torch.OutOfMemoryError("nccl: out of memory, timed out"),
        DistributedError("gloo"),
    ],
)
def test_words_of_networks_in_an_error_do_not_make_it_one_of_the_network(error):
    assert origin_of(raised(fail(error))) is Origin.ELSEWHERE


def test_what_torchs_collectives_raise_comes_from_an_exchange():
    # A stand-in for a group whose gloo raises: the frame is that of torch's own function.
    names = {}
    exec(compile("def all_reduce():\n    raise RuntimeError('data')", dist.distributed_c10d.__file__, "exec"), names)
    assert origin_of(raised(names["all_reduce"])) is Origin.EXCHANGE


def test_torchs_own_types_come_from_an_exchange_wherever_they_are_raised():
    assert origin_of(raised(fail(dist.DistNetworkError("x")))) is Origin.EXCHANGE
    assert origin_of(raised(fail(dist.DistStoreError("x")))) is Origin.EXCHANGE


class InPython(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("gloo")


def test_what_torchs_backward_raises_may_come_from_an_exchange_and_what_users_code_raises_in_it_does_not():
    x = torch.ones(1, requires_grad=True)
    y = x * x
    y.backward()
    assert origin_of(raised(y.backward)) is Origin.BACKWARD  # a second time through the same graph
    assert origin_of(raised(InPython.apply(x).backward)) is Origin.ELSEWHERE


def test_an_error_in_one_line_leaves_out_where_in_gloo_it_was():
    assert one_line(RuntimeError("[/gloo/pair.cc:525] Connection closed\nmore")) == "Connection closed"
    assert one_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    "text",
    [
        "Unable to find address for: eth77",
        "Connection closed by peer [10.0.0.2]:4711",
        "Timed out waiting 10000ms for recv operation to complete",
        "NCCL error in: ..., socketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused",
    ],
)
def test_errors_of_sockets_and_addresses_send_the_user_to_the_network(text):
    assert remedy_of(text).endswith("check the network between them")


@pytest.mark.parametrize(
    "text",
    [
        "DDP expects same model across all ranks, but Rank 0 has 6 params, while rank 1 has inconsistent 5 params.",
        "op.preamble.length <= op.nbytes. 4 vs 8",
    ],
)
def test_other_errors_of_an_exchange_send_the_user_to_what_ranks_call(text):
    assert "network" not in remedy_of(text)
    assert "calls the same in the same order" in remedy_of(text)


OPEN_FILES = r"raise the limit of open files, \d+ now \(ulimit -n; .*\): rank 0 needs about 4 for each rank"


def test_where_no_more_files_can_be_opened_the_user_is_sent_to_their_limit():
    assert re.fullmatch(OPEN_FILES, remedy_of("[/gloo/pair.cc:88] socket: Too many open files"))
    for error in (OSError(errno.EMFILE, "Too many open files"), RuntimeError("received 0 items of ancdata")):
        told = rf"rank 1 \(a\): no more files can be opened: got .*{error.args[-1]}; {OPEN_FILES}"
        with pytest.raises(UsageError, match=told), torch_errors_named("rank 1 (a)"):
            raise error
    with pytest.raises(FileNotFoundError), torch_errors_named():
        raise FileNotFoundError(errno.ENOENT, "none")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("could not create a primitive"),  # oneDNN's
    ],
)
def test_where_memory_lacks_in_a_step_or_an_evaluation_the_user_is_sent_to_the_batch_sizes(error):
    told = r"^rank 1 \(a\): memory lacks: got [^\n]+; lower --batch_size, in an evaluation --eval_batch_size"
    with pytest.raises(UsageError, match=told), torch_errors_named("rank 1 (a)"):
        raise error
    for other in ("another", "could not create a primitive descriptor for a matmul primitive"):
        with pytest.raises(RuntimeError, match=other), torch_errors_named():
            raise RuntimeError(other)


def test_a_rank_may_open_as_many_files_as_the_system_allows_and_is_warned_where_they_are_few(monkeypatch, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        raise_descriptor_limit(2)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 20), hard)
        assert not caplog.messages
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (50, 50))
        raise_descriptor_limit(8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (told,) = caplog.messages
    assert re.fullmatch(rf"8 ranks need up to 56 open files each: {OPEN_FILES}".replace(r"\d+", "50"), told)
