"""Launch lines of guides that our users come from, letter by letter: NeMo's in both languages, MMEngine's, WeNet's.

Only what every reader replaces is replaced: ``<names in brackets>``, ``...``, files. A line is read by the launcher
that it names; the script's parser then reads what the launcher passes to each process, in the environment that the
launcher makes, within this test. One line runs for real.
"""

from __future__ import annotations

import re
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import launch as torch_launch
from torch.distributed import run as torch_run
from toys.launched import launch_of
from toys.launchers import no_launcher, slurm_task, torchrun
from toys.ranks import free_port, wait_all
from toys.tone_corpus import ASR, CONFIG, ROOT

from nemo_asr.argparse import AsrArgParser
from nemo_lite.base.options import LaunchedParser

MANIFESTS = "/manifests/librivox-train-all.json"
THREE = f"{MANIFESTS},/manifests/librivox-train-all-sp10pcnt.json,/manifests/cv/validated.json"

# NeMo 0.5 to 0.11, "Fast Training" and its Chinese page.
OPTIONS = (
    "--num_epochs=100 --lr=0.015 --warmup_steps=8000 --weight_decay=0.001 "
    "--train_manifest=/manifests/librivox-train-all.json --val_manifest1=/manifests/librivox-dev-clean.json "
    "--val_manifest2=/manifests/librivox-dev-other.json "
    "--model_config=<nemo_git_repo_root>/nemo/examples/asr/configs/jasper15x5SEP.yaml "
    "--exp_name=MyLARGE-ASR-EXPERIMENT"
)
LATER_OPTIONS = (
    "--batch_size=64 --num_epochs=100 --lr=0.015 --warmup_steps=8000 --weight_decay=0.001 "
    "--train_dataset=/manifests/librivox-train-all.json "
    "--eval_datasets /manifests/librivox-dev-clean.json /manifests/librivox-dev-other.json "
    "--model_config=<nemo_git_repo_root>/nemo/examples/asr/configs/{config}.yaml "
    "--exp_name=MyLARGE-ASR-EXPERIMENT"
)
LAUNCH = "python -m torch.distributed.launch --nproc_per_node="
NEMO = {
    "first": f"{LAUNCH}8 <nemo_git_repo_root>/examples/asr/jasper.py --batch_size=64 --num_gpus=8 {OPTIONS}",
    "second": f"{LAUNCH}8 <nemo_git_repo_root>/examples/asr/jasper.py --batch_size=64 {OPTIONS}",
    "English": f"{LAUNCH}<num_gpus> <nemo_git_repo_root>/examples/asr/jasper.py "
    + LATER_OPTIONS.format(config="jasper15x5SEP"),
    "Chinese": f"{LAUNCH}<num_gpus> <nemo_git_repo_root>/examples/asr/jasper.py "
    + LATER_OPTIONS.format(config="quartznet15x5"),
    "short": f"{LAUNCH}8 <nemo_git_repo_root>/examples/asr/jasper.py --num_gpus=8 ...",
    "short Chinese": f"{LAUNCH}8 <nemo_repo>/examples/asr/jasper.py ...",
    "three sets": f"{LAUNCH}8 <nemo_git_repo_root>/examples/asr/jasper.py --num_gpus=8 --batch_size=64 "
    + OPTIONS.replace(MANIFESTS, THREE),
}
NEMO_ON_TWO = [
    f"{LAUNCH}4 --nnodes=2 --node_rank={number} --master_addr=<MASTER_IP_ADDRESS> --master_port=<FREE_PORT> "
    "jasper.py ..."
    for number in range(2)
]

# NeMo 0.5 to 0.11, the same pages: the argument of a script of one's own, and the factory that gets it.
NEMO_OWN_SCRIPTS = {
    "English": """parser.add_argument("--local_rank", default=None, type=int)""",
    "Chinese": """parser.add_argument("--local_rank", default=os.getenv('LOCAL_RANK', None), type=int)""",
}
NEMO_OWN_SCRIPT = """
import argparse
import os
import nemo_lite as nemo
parser = argparse.ArgumentParser()
{line}
args = parser.parse_args()
nf = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.AllGpu, local_rank=args.local_rank)
os.write(1, b"local %d of %d\\n" % (args.local_rank, nf.world_size))  # in one piece, beside the other process
"""

# MMEngine 0.4 to 0.10, "Speed up Training".
MMENGINE = [
    "python -m torch.distributed.launch --nproc_per_node=8 examples/train.py --launcher pytorch",
    "CUDA_VISIBLE_DEVICES=0,3 python -m torch.distributed.launch --nproc_per_node=2 examples/train.py "
    "--launcher pytorch",
]
MMENGINE_ON_TWO = [
    f"""python -m torch.distributed.launch \\
    --nnodes {{number}} \\
    --node_rank {node} \\
    --master_addr {{address}} \\
    --master_port 29500 \\
    --nproc_per_node=8 \\
    examples/train.py --launcher pytorch"""
    for node in range(2)
]
MMENGINE_SLURM = """srun -p mm_dev \\
    --job-name=test \\
    --gres=gpu:8 \\
    --ntasks=16 \\
    --ntasks-per-node=8 \\
    --cpus-per-task=5 \\
    --kill-on-bad-exit=1 \\
    python examples/train.py --launcher="slurm\""""

# WeNet: what its guide to several machines sets in run.sh, and what run.sh passes on; $i counts the processes there.
WENET_NODE = 'num_nodes=2 node_rank={node} init_method="tcp://${{node1_ip}}:23456" dist_backend="nccl"'
WENET = """--ddp.init_method $init_method \\
      --ddp.world_size $world_size \\
      --ddp.rank $rank \\
      --ddp.dist_backend $dist_backend"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    no_launcher(monkeypatch)


def filled_in(line: str, root: Path = ROOT) -> str:
    """The line with what a reader puts in place of the guide's placeholders."""
    own = {"<num_gpus>": "8", "<MASTER_IP_ADDRESS>": "10.0.0.1", "<FREE_PORT>": "29500", " ...": f" {OPTIONS}"}
    for placeholder, value in {**own, "<nemo_git_repo_root>": str(root), "<nemo_repo>": str(root)}.items():
        line = line.replace(placeholder, value)
    return line


def passed_to_processes(line: str) -> list[tuple[dict[str, str], list[str]]]:
    """Environment and arguments of each process that a line starts on its machine, by torch's own reading of it."""
    launch = launch_of(shlex.split(line.replace("\\\n", " ")))
    assert launch is not None
    own = [part for option, value in launch.options for part in (option, value) if part]
    asked = torch_launch.parse_args([*own, launch.script, *launch.args])
    config, _, words = torch_run.config_from_args(asked)
    assert words[:2] == ["-u", launch.script]
    size, node, several = config.nproc_per_node, asked.node_rank, config.max_nodes > 1
    where = {"MASTER_ADDR": asked.master_addr, "MASTER_PORT": str(asked.master_port)} if several else {}
    environs = [torchrun(node * size + local, local, size, config.max_nodes, **where) for local in range(size)]
    # The launcher has a placeholder of its own for the number of the process.
    return [(env, [re.sub(r"\${\w+}", env["LOCAL_RANK"], word) for word in words[2:]]) for env in environs]


def identities(line, parser, monkeypatch):
    """What the script's parser gives in each of the processes, and which process it is."""
    found = []
    for env, words in passed_to_processes(line):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        parsed = parser.parse_args(words)
        found.append((parsed, parser.process_of(parsed)))
    return found


@pytest.mark.parametrize("name", NEMO)
def test_lines_of_nemos_guides_are_read_as_they_stand(name, tmp_path, monkeypatch):
    line = filled_in(NEMO[name])
    started = identities(line, AsrArgParser(), monkeypatch)
    assert [(who.rank, who.local_rank, who.world_size) for _, who in started] == [(i, i, 8) for i in range(8)]
    for parsed, _ in started:
        assert parsed.train_dataset == (THREE if name == "three sets" else MANIFESTS)
        assert parsed.eval_datasets == ["/manifests/librivox-dev-clean.json", "/manifests/librivox-dev-other.json"]
        assert (parsed.batch_size, parsed.num_epochs, parsed.lr, parsed.warmup_steps) == (64, 100, 0.015, 8000)
        assert parsed.model_config == str(ASR / "configs" / Path(re.findall(r"\S+\.yaml", line)[0]).name)
        assert parsed.run_dir == Path("MyLARGE-ASR-EXPERIMENT")
    assert [*tmp_path.iterdir()] == [], "nothing is written before there is something to write"


def test_nemos_lines_for_two_machines_are_read_as_they_stand(monkeypatch):
    processes = [who for line in NEMO_ON_TWO for _, who in identities(filled_in(line), AsrArgParser(), monkeypatch)]
    assert [(who.rank, who.local_rank) for who in processes] == [(rank, rank % 4) for rank in range(8)]
    assert {(who.world_size, who.num_nodes, who.master) for who in processes} == {(8, 2, ("10.0.0.1", 29500))}


@pytest.mark.parametrize("line", MMENGINE)
def test_mmengines_lines_are_read_as_they_stand(line, monkeypatch):
    started = [who for _, who in identities(line, LaunchedParser(), monkeypatch)]
    assert [(who.rank, who.launcher) for who in started] == [(rank, "pytorch") for rank in range(len(started))]
    assert len(started) in (8, 2)


def test_mmengines_lines_for_two_machines_are_read_with_the_number_and_the_address_of_machines(monkeypatch):
    lines = [line.format(number=2, address="10.0.0.1") for line in MMENGINE_ON_TWO]
    started = [who for line in lines for _, who in identities(line, LaunchedParser(), monkeypatch)]
    assert [(who.rank, who.world_size) for who in started] == [(rank, 16) for rank in range(16)]


def test_mmengines_lines_for_two_machines_as_they_stand_are_refused_with_the_reason(monkeypatch, capsys):
    """They name the loopback address as the meeting point of eight machines."""
    for line in MMENGINE_ON_TWO:
        with pytest.raises(SystemExit) as stopped:
            identities(line.format(number=8, address="127.0.0.1"), LaunchedParser(), monkeypatch)
        assert stopped.value.code == 2
        assert "master 127.0.0.1:29500: other machines cannot reach a loopback address" in capsys.readouterr().err


def test_mmengines_line_for_slurm_is_read_as_it_stands(monkeypatch):
    launch = launch_of(shlex.split(MMENGINE_SLURM.replace("\\\n", " ")))
    tasks, per_node = int(launch.option("ntasks")), int(launch.option("ntasks_per_node"))
    for rank in range(tasks):
        for name, value in slurm_task(rank, "gpu[08-09]", tasks // per_node, per_node).items():
            monkeypatch.setenv(name, value)
        who = LaunchedParser().process_of(LaunchedParser().parse_args(launch.args))
        assert (who.rank, who.local_rank, who.world_size) == (rank, rank % 8, 16)
        assert (who.launcher, who.num_nodes, who.master[0]) == ("slurm", 2, "gpu08")


@pytest.mark.parametrize("node", [0, 1])
def test_what_wenets_recipe_passes_is_read_as_it_stands(node):
    set_there = string.Template(WENET_NODE.format(node=node)).substitute(node1_ip="10.0.0.1")
    variables = dict(word.split("=", 1) for word in shlex.split(set_there))
    num_gpus, parser = 4, LaunchedParser()
    for i in range(num_gpus):
        rank = int(variables["node_rank"]) * num_gpus + i
        more = {"world_size": str(num_gpus * int(variables["num_nodes"])), "rank": str(rank)}
        words = shlex.split(string.Template(WENET.replace("\\\n", " ")).substitute(variables, **more))
        # --gpu there is a number of nvidia-smi; here a process has its number on the machine.
        parsed = parser.parse_args([*words, "--local_rank", str(i)])
        who = parser.process_of(parsed)
        assert (who.rank, who.world_size, who.local_rank, who.master) == (rank, 8, i, ("10.0.0.1", 23456))
        assert parsed.dist_backend == "nccl"


@pytest.mark.long
@pytest.mark.parametrize("language", NEMO_OWN_SCRIPTS)
def test_nemos_argument_of_an_own_script_takes_what_torchs_launcher_passes(language, tmp_path):
    """In fresh processes: the launcher writes ``--local-rank``, and nemo_lite is imported before the parser runs."""
    (tmp_path / "own.py").write_text(NEMO_OWN_SCRIPT.format(line=NEMO_OWN_SCRIPTS[language]))
    line = f"{LAUNCH}2 --master_port={free_port()} own.py"
    words = [sys.executable, *shlex.split(line)[1:]]
    end = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stderr
    assert {row for row in end.stdout.splitlines() if row.startswith("local")} == {"local 0 of 2", "local 1 of 2"}


def test_the_line_of_nemos_guide_trains_in_an_empty_folder(corpus, tmp_path):
    """With two processes and epochs, not eight and a hundred, and tiny files under the guide's names."""
    root = tmp_path / "clone"
    config = root / "nemo/examples/asr/configs/jasper15x5SEP.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)
    line = re.sub(r"(--nproc_per_node|--num_gpus|--num_epochs)=(8|100)\b", r"\1=2", filled_in(NEMO["three sets"], root))
    for path in set(re.findall(r"/manifests/[^ ,]+\.json", line)):
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text("".join((corpus / "dev.json").open().readlines()[:2]))
    launch = launch_of(shlex.split(line.replace("/manifests/", f"{tmp_path}/manifests/")))
    there = {*tmp_path.iterdir()}
    (end,) = wait_all(launch.start(0, "127.0.0.1", free_port(), str(ASR / "jasper.py"), launch.args))
    assert end.code == 0, end.err
    (run,) = {*tmp_path.iterdir()} - there
    assert run.name == "MyLARGE-ASR-EXPERIMENT"
    assert {"checkpoints", "model", "metrics.jsonl", "report.html"} <= {path.name for path in run.iterdir()}
    assert "64 x 2 ranks = 128 items per step" in end.out
    assert "2 steps, 2 epochs" in end.out
