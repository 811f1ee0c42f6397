"""The options of the speech scripts: two generations of names, and nothing accepted that would have no effect."""

import subprocess
import sys
from pathlib import Path

import pytest
from toys.launchers import no_launcher, slurm_task, torchrun
from toys.lion import registered_lion

import nemo_asr
from nemo_asr.argparse import AsrArgParser, EvalArgParser, evaluation_steps
from nemo_asr.options import own_memory, policy_of
from nemo_asr.shipped import config_path
from nemo_lite import DeviceType, logging
from nemo_lite.base.errors import CheckpointError, ConfigError
from nemo_lite.base.options import factory_arguments, launch_arguments
from nemo_lite.utils.optimizers import OPTIMIZERS, register_optimizer

NEEDED = ("--model_config", "m.yaml", "--train_dataset", "t.json", "--max_steps", "2")

NEWER = """--model_config m.yaml --train_dataset t.json --eval_datasets a.json b.json c.json --num_epochs 3
    --iter_per_step 2 --work_dir runs --checkpoint_save_freq 7 --amp_opt_level O0"""
OLDER = """--model_config m.yaml --train_manifest t.json --val_manifest1 a.json --val_manifest2 b.json
    --val_manifest3 c.json --num_epochs 3 --batch_per_step 2 --logdir runs --save_freq 7 --disable_mixed_precision
    --num_gpus 1"""


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    no_launcher(monkeypatch)


def start(monkeypatch, environ):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def parse(*args):
    return AsrArgParser(prog="jasper.py").parse_args([*NEEDED, *args])


def refusal(capsys, *args, parser=AsrArgParser):
    with pytest.raises(SystemExit) as stopped:
        parser(prog="jasper.py").parse_args(args)
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("jasper.py: error: ")
    assert text.count("\n") == 1, "one line"
    return text


def test_both_generations_of_names_give_the_same_options():
    newer, older = (AsrArgParser().parse_args(line.split()) for line in (NEWER, OLDER))
    told = {key: value for key, value in vars(older).items() if key not in ("disable_mixed_precision", "num_gpus")}
    assert told == {key: vars(newer)[key] for key in told}
    assert older.eval_datasets == ["a.json", "b.json", "c.json"]
    assert older.run_dir == Path("runs/Jasper")


@pytest.mark.parametrize("name", ["../x", "../../x", "a/../../x", "a/../b", "/tmp/x", ".", "..", "/"])
def test_the_name_of_a_run_does_not_lead_out_of_its_folder(name, capsys):
    told = refusal(capsys, *NEEDED, "--work_dir", "runs", "--exp_name", name)
    assert f"argument --exp_name: {name!r} leads out of --work_dir; give a name, and another --work_dir" in told
    assert parse("--work_dir", "runs", "--exp_name", "group/mine").run_dir == Path("runs/group/mine")


def test_the_runs_folder_is_named_after_the_run_also_without_a_folder_to_put_it_in():
    assert (parse("--exp_name", "mine").run_dir, parse("--exp_name", "mine").create_tb_writer) == (Path("mine"), True)
    assert parse("--exp_name", "mine", "--work_dir", "runs").run_dir == Path("runs/mine")
    assert parse("--exp_name", "mine", "--save_freq", "5").checkpoint_save_freq == 5
    assert parse("--work_dir", "runs").run_dir == Path("runs/Jasper")
    assert (parse().run_dir, parse().exp_name) == (Path("runs/Jasper"), "Jasper")
    for option in ("--plan", "--checkpoint_dir=here"):
        assert parse(option).run_dir is None


def test_seed_is_a_name_of_random_seed_and_no_option_is_abbreviated(capsys):
    assert (parse("--seed", "42").random_seed, parse("--seed", "42").seeds) == (42, 1)
    for option in ("--num_epoch", "--check", "--precision_chec"):
        assert f"unrecognized arguments: {option} 3" in refusal(capsys, *NEEDED, option, "3")


@pytest.mark.parametrize(
    ("elsewhere", "ours", "value"),
    [
        ("--learning_rate=0.1", "lr", 0.1),
        ("--max-steps=7", "max_steps", 7),
        ("--wd=0.1", "weight_decay", 0.1),
        ("--optim=sgd", "optimizer", "sgd"),
        ("--accum_grad=3", "iter_per_step", 3),
        ("--gradient-accumulation-steps=3", "iter_per_step", 3),
        ("--output_dir=there", "work_dir", "there"),
        ("--save_dir=there", "work_dir", "there"),
        ("--name=mine", "exp_name", "mine"),
        ("--workers=0", "num_workers", 0),
        ("--val=dev.json", "eval_datasets", ["dev.json"]),
        ("--train=other.json", "train_dataset", "other.json"),
        ("--steps=9", "max_steps", 9),
        ("--grad_clip=1", "grad_norm_clip", 1.0),
        ("--config=n.yaml", "model_config", "n.yaml"),
        ("--manual_seed=3", "random_seed", 3),
        ("--no_create_tb_writer", "create_tb_writer", False),
    ],
)
def test_dashes_and_names_of_other_programs_are_accepted(elsewhere, ours, value):
    assert getattr(parse(elsewhere), ours) == value


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--cpu", "; in place of --cpu: --placement CPU"),
        ("--gpus 2", "; in place of --gpus: torchrun --nproc-per-node=N"),
        ("--precision bf16", "--amp_dtype bfloat16"),
        ("--bf16", "--amp_dtype bfloat16"),
        ("--fp16", "--amp_dtype float16"),
        ("--amp", "--amp_opt_level O1"),
        ("--use_amp", "--amp_opt_level O1"),
        ("--checkpoint a/final.pt", "; in place of --checkpoint: --init_from MODEL"),
        ("--override_config grad_clip", "or --set KEY=VALUE"),
        ("--train_engine torch_ddp", "; in place of --train_engine: nothing, for DDP"),
        ("--data_type raw", "; in place of --data_type: nothing"),
        ("--symbol_table a.txt", "--set labels=auto"),
        ("--cmvn a", "nemo-lite data statistics"),
        ("--resume", "the same command goes on with its run"),
        ("--wandb", "--track wandb"),
        ("--dropout 0.1", "--set KEY=VALUE"),
        ("--lerning_rat 3 --bacth_size 4", "(did you mean --batch_size?)"),
        ("--bacth_size 4 --num_epoch 3 --cpu", "(did you mean --batch_size, --num_epochs?); in place of --cpu: --pl"),
        ("--test_dataset x", "unrecognized arguments: --test_dataset x; jasper.py --help shows what there is\n"),
        ("--unheard_of", "unrecognized arguments: --unheard_of; jasper.py --help shows what there is\n"),
    ],
)
def test_an_option_that_is_not_there_is_answered_with_ours_or_with_the_help(option, remedy, capsys):
    text = refusal(capsys, *NEEDED, *option.split())
    assert f"unrecognized arguments: {option}" in text
    assert remedy in text


def test_validation_sets_of_both_spellings_add_up():
    assert parse("--eval_datasets", "a.json", "--val_manifest2", "b.json").eval_datasets == ["a.json", "b.json"]
    assert parse().eval_datasets == []


@pytest.mark.parametrize(
    ("older", "newer", "value"),
    [
        ("--train_manifest", "--train_dataset", "u.json"),
        ("--batch_per_step", "--iter_per_step", "3"),
        ("--logdir", "--work_dir", "runs"),
        ("--save_freq", "--checkpoint_save_freq", "5"),
    ],
)
def test_one_option_in_both_spellings_is_refused(older, newer, value, capsys):
    told = refusal(capsys, *NEEDED, newer, value, older, value)
    assert f"{older} is the older name of {newer}; give one of them" in told


def test_the_defaults_are_those_of_nemos_jasper():
    parsed = parse()
    assert (parsed.optimizer, parsed.batch_size, parsed.lr, parsed.weight_decay) == ("novograd", 64, 0.02, 0.001)
    assert (parsed.lr_policy, parsed.warmup_steps, parsed.exp_name) == ("CosineAnnealing", 0, "Jasper")
    assert (parsed.eval_freq, parsed.checkpoint_save_freq, parsed.random_seed) == (None, None, 0)
    assert [evaluation_steps(parsed, steps) for steps in (8, 1000, 5000)] == [8, 1000, 1000]
    parsed.eval_freq = 50
    assert evaluation_steps(parsed, 8) == 50
    assert (parsed.amp_opt_level, parsed.betas, parsed.run_dir, parsed.create_tb_writer) == (
        None,
        None,
        Path("runs/Jasper"),
        True,
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("--train_dataset t.json --max_steps 2", "--model_config is missing; give a file or a name such as digits"),
        ("--model_config m.yaml --max_steps 2", "--train_dataset is missing; give a manifest"),
        ("--model_config m.yaml --train_dataset t.json", "got neither, wanted --num_epochs or --max_steps"),
        ("{} --num_epochs 3", "got both, wanted --num_epochs or --max_steps"),
        (
            "{} --num_gpus 8",
            "--num_gpus: 8 asked, no launcher started this process; start it with torchrun --nproc-per-node=8, or",
        ),
        ("{} --disable_mixed_precision --amp_opt_level O1", "--disable_mixed_precision contradicts --amp_opt_level O1"),
        ("{} --amp_opt_level O4", "invalid choice: 'O4'"),
        ("{} --disable_mixed_precision --amp_opt_level O3", "--disable_mixed_precision contradicts --amp_opt_level O3"),
        ("{} --amp_dtype float61", "argument --amp_dtype: invalid choice: 'float61'"),
        ("{} --amp_backend apx", "argument --amp_backend: invalid choice: 'apx'"),
        ("{} --amp_opt_level O0 --amp_backend apex", "--amp_backend has no effect in float32 (O0); leave it out"),
        ("{} --precision_check 2", "--precision_check compares a level with float32; give --amp_opt_level O1, O2 or"),
        ("{} --precision_check 0 --amp_opt_level O2", "argument --precision_check: '0' is not a whole number from 1"),
        ("{} --amp_opt_level O0 --amp_dtype float16", "--amp_dtype has no effect in float32 (O0); leave it out"),
        ("{} --optimizer sgd --beta1 0.9", "--beta1 and --beta2 have no effect with --optimizer sgd"),
        ("{} --beta1 1.5", "'1.5' is not a number from 0, below 1"),
        ("{} --cudnn_benchmark --random_seed 3", "--random_seed contradicts --cudnn_benchmark"),
        ("{} --random_seed -1", "'-1' is not a whole number from 0"),
        ("{} --random_seed 9223372036854775808", "is not a whole number from 0"),
        ("{} --num_workers -2", "'-2' is not a whole number from 0"),
        ("{} --warmup_steps -1", "'-1' is not a whole number from 0"),
        ("{} --batch_size 0", "'0' is not a whole number from 1"),
        ("{} --lr -1", "'-1' is not a number from 0"),
        ("{} --lr 1e300", "'1e300' is not a number from 0"),
        ("{} --placement TPU", "'TPU' is none of GPU, CPU, AllGpu"),
        ("{} --create_tb_writer --checkpoint_dir c", "--create_tb_writer needs a folder for the events"),
        ("{} --tensorboard_dir tb --no-create_tb_writer", "--no-create_tb_writer contradicts --tensorboard_dir"),
        ("{} --eval_freq 5", "--eval_freq has no effect without --eval_datasets"),
        ("{} --eval_batch_size 5", "--eval_batch_size has no effect without --eval_datasets"),
        ("{} --synced_bn_groupsize 2", "--synced_bn_groupsize has no effect without --synced_bn; leave it out"),
        ("{} --uneven wait", "argument --uneven: invalid choice: 'wait'"),
        ("{} --global_batch_size 64 --batch_size 64", "--global_batch_size contradicts --batch_size; leave one out"),
        (
            "{} --global_batch_size 7 --iter_per_step 2",
            "--global_batch_size 7 does not divide by 2 (1 processes x --iter_per_step 2); 6 and 8 would",
        ),
        ("{} --local_rank 1", "RANK and WORLD_SIZE are missing: got --local_rank 1; start the script with torchrun"),
        ("{} --load_dir nowhere", "'nowhere' does not exist; give a folder of checkpoints"),
        ("{} --trian_manifest x", "unrecognized arguments: --trian_manifest x (did you mean --train_manifest?)"),
    ],
)
def test_what_cannot_be_used_or_would_have_no_effect_is_one_line(args, told, capsys):
    assert told in refusal(capsys, *args.format(" ".join(NEEDED)).split())


def test_a_folder_without_checkpoints_is_refused_before_a_run_is_made(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    told = refusal(capsys, *NEEDED, "--load_dir", str(tmp_path))
    assert f"--load_dir: there is no checkpoint in '{tmp_path}'" in told
    assert "is a file; give a folder" in refusal(capsys, *NEEDED, "--load_dir", str(file))


def test_a_script_that_uses_a_model_leaves_its_folder_to_load_model(tmp_path):
    """Which takes a run, a model folder or checkpoints, and names what is none of them."""
    given = EvalArgParser().parse_args(["--load_dir", str(tmp_path)]).load_dir
    with pytest.raises(CheckpointError, match=r"there is no model in this folder: wanted a run's folder, a model fold"):
        nemo_asr.load_model(given)


def test_checkpoints_are_looked_for_where_they_are_read_by_the_first_process(monkeypatch, capsys):
    start(monkeypatch, torchrun(2, 0, num_nodes=2))
    assert parse("--load_dir", "nowhere").load_dir == "nowhere"
    start(monkeypatch, torchrun(0, 0, num_nodes=2))
    told = refusal(capsys, *NEEDED, "--load_dir", "nowhere")
    assert "argument --load_dir: 'nowhere' does not exist; give a folder of checkpoints" in told


def test_the_number_of_gpus_is_held_against_the_launchers(monkeypatch, capsys):
    assert parse("--num_gpus", "1").num_gpus == 1
    start(monkeypatch, torchrun(1, 1, local_world_size=4))
    assert parse("--num_gpus", "4").num_gpus == 4
    told = refusal(capsys, *NEEDED, "--num_gpus", "8")
    assert "--num_gpus: 8 asked, the launcher started 4; start it with torchrun --nproc-per-node=8, or leave" in told


def test_the_global_batch_is_divided_among_processes_and_accumulated_batches(monkeypatch, capsys):
    assert parse("--global_batch_size", "64").batch_size == 64
    start(monkeypatch, slurm_task(5))
    parsed = parse("--global_batch_size", "64", "--iter_per_step", "2")
    assert (parsed.batch_size, parsed.global_batch_size) == (4, 64)
    assert parse("--global_batch_size", "64", "--batch_per_step", "2").batch_size == 4
    assert parse("--batch_size", "64").batch_size == 64
    told = refusal(capsys, *NEEDED, "--global_batch_size", "4")
    assert "--global_batch_size 4 does not divide by 8 (8 processes x --iter_per_step 1); 8 would" in told


def test_a_scripts_own_default_of_the_batch_gives_way_to_a_global_one():
    parser = AsrArgParser()
    parser.set_defaults(batch_size=16)
    assert parser.parse_args([*NEEDED]).batch_size == 16
    assert parser.parse_args([*NEEDED, "--global_batch_size", "8"]).batch_size == 8


def test_training_on_several_processes_has_its_options():
    parsed = parse()
    assert (parsed.synced_bn, parsed.synced_bn_groupsize, parsed.uneven, parsed.shard_weights) == (
        False,
        0,
        "pad",
        False,
    )
    parsed = parse("--synced_bn", "--synced_bn_groupsize", "2", "--uneven", "join", "--shard_weights")
    assert (parsed.synced_bn, parsed.synced_bn_groupsize, parsed.uneven, parsed.shard_weights) == (
        True,
        2,
        "join",
        True,
    )


def test_scripts_that_use_a_model_have_the_options_of_the_launch_and_none_of_training(tmp_path, capsys, monkeypatch):
    (tmp_path / "JasperEncoder-STEP-1.safetensors").write_bytes(b"")
    needed = ["--model_config", "m.yaml", "--load_dir", str(tmp_path)]
    launch = launch_arguments(AsrArgParser().parse_args([*NEEDED]))
    assert launch_arguments(EvalArgParser().parse_args(needed)) == launch
    assert EvalArgParser().parse_args([*needed, "--shard_weights"]).shard_weights is True
    for option in ("--synced_bn", "--uneven=pad", "--global_batch_size=8", "--num_gpus=1"):
        assert f"unrecognized arguments: {option}" in refusal(capsys, *needed, option, parser=EvalArgParser)
    start(monkeypatch, torchrun(1, 1))
    assert "--local_rank 0 and LOCAL_RANK=1 contradict each other" in refusal(
        capsys, *needed, "--local_rank=0", parser=EvalArgParser
    )


def test_one_beta_leaves_the_other_at_the_optimizers_own():
    assert parse("--beta1", "0.5").betas == (0.5, 0.25)
    assert parse("--beta2", "0.5").betas == (0.95, 0.5)
    assert parse("--optimizer", "adam_w", "--beta1", "0.5").betas == (0.5, 0.999)


def test_a_new_optimizer_is_known_with_its_own_betas():
    with registered_lion():
        assert parse("--optimizer", "lion", "--beta1", "0.8").betas == (0.8, 0.99)
        assert parse("--optimizer", "lion").betas is None


def test_every_optimizer_without_two_betas_refuses_the_options(capsys):
    def plain(params, lr=0.1): ...
    def of_three(params, lr=0.1, betas=(0.9, 0.9, 0.9)): ...

    for optimizer in (plain, of_three):
        register_optimizer("other", optimizer)
        told = refusal(capsys, *NEEDED, "--optimizer", "other", "--beta2", "0.8")
        assert "--beta1 and --beta2 have no effect with --optimizer other; leave them out" in told
        OPTIMIZERS.forget("other")


def test_a_dtype_asks_for_mixed_precision():
    assert parse("--amp_dtype", "bfloat16").amp_opt_level == "O1"
    assert parse("--amp_dtype", "bfloat16", "--amp_opt_level", "O3").amp_opt_level == "O3"
    assert parse("--amp_dtype", "auto").amp_opt_level is None


@pytest.mark.parametrize(
    ("given", "how"),
    [((), False), (("--compile",), True), (("--compile_mode", "max-autotune"), {"mode": "max-autotune"})],
)
def test_the_factory_compiles_as_the_options_say(given, how):
    assert factory_arguments(parse(*given))["compile"] == how


def test_timed_algorithms_go_without_a_seed():
    assert parse("--cudnn_benchmark").random_seed is None
    assert parse("--random_seed", "5").random_seed == 5


def test_the_placement_is_a_device_type():
    assert parse("--placement", "GPU").placement is DeviceType.GPU
    assert parse("--placement", "AllGpu").placement is DeviceType.AllGpu
    assert parse().placement is None


def test_events_are_written_where_there_is_a_folder_for_them():
    assert parse("--work_dir", "runs").create_tb_writer is True
    assert parse("--tensorboard_dir", "tb").create_tb_writer is True
    assert parse("--work_dir", "runs", "--no-create_tb_writer").create_tb_writer is False


@pytest.mark.parametrize("option", ["--local_rank", "--local-rank"])
def test_both_spellings_of_the_local_rank_are_one_option(option, tmp_path, monkeypatch):
    start(monkeypatch, torchrun(1, 1))
    (tmp_path / "JasperEncoder-STEP-1.safetensors").write_bytes(b"")
    assert parse(option, "1").local_rank == parse().local_rank == 1
    args = ["--model_config", "m.yaml", "--load_dir", str(tmp_path), option, "1"]
    assert EvalArgParser().parse_args(args).local_rank == 1


def test_the_error_rate_that_comes_first_can_be_chosen(capsys):
    assert AsrArgParser().parse_args(NEEDED).eval_metric is None
    assert AsrArgParser().parse_args([*NEEDED, "--eval_metric", "cer"]).eval_metric == "cer"
    told = refusal(capsys, *NEEDED, "--eval_metric", "ser")
    assert "argument --eval_metric: invalid choice: 'ser' (choose from" in told


def test_the_language_is_a_setting_of_the_configuration():
    args = AsrArgParser().parse_args([*NEEDED, "--set", "model=a", "--language", "zh-CN"])
    assert args.overrides == ["model=a", 'language="zh-CN"']


def test_the_help_shows_every_option_and_the_defaults(capsys):
    with pytest.raises(SystemExit) as stopped:
        AsrArgParser().parse_args(["--help", "all"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for shown in (
        "--local-rank",
        "--val_manifest3",
        "default: 0.02",
        "default: CosineAnnealing",
        "default: 64",
        "--launcher",
        "first gen",
    ):
        assert shown in text
    assert "default: None" not in text


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_service_whose_package_is_missing_ends_the_script_before_anything_is_read(package, capsys, monkeypatch):
    monkeypatch.setattr("nemo_asr.argparse.find_spec", lambda name: None)
    text = refusal(capsys, *NEEDED, "--track", package)
    assert text == f"jasper.py: error: argument --track: {package} is not installed; pip install {package}\n"
    start(monkeypatch, torchrun(1, 1))
    assert parse("--track", package).track == [package], "only the first process records"


def test_a_service_whose_package_is_there_is_taken(monkeypatch):
    monkeypatch.setattr("nemo_asr.argparse.find_spec", lambda name: object())
    assert parse("--track", "wandb", "mlflow").track == ["wandb", "mlflow"]


def test_tensorboard_as_a_tracker_is_the_writer_of_events(capsys):
    assert parse("--track", "tensorboard", "--work_dir", "runs").create_tb_writer is True
    text = refusal(capsys, *NEEDED, "--track", "tensorboard", "--checkpoint_dir", "c")
    assert "--track tensorboard needs a folder for the events; give --work_dir, --exp_name or --tensorboard_dir" in text
    both = ("--track", "tensorboard", "--no-create_tb_writer", "--work_dir", "runs")
    assert "--no-create_tb_writer contradicts --track tensorboard" in refusal(capsys, *NEEDED, *both)


def test_level_and_style_of_the_log_are_set_before_anything_is_said(monkeypatch):
    before = logging.get_verbosity()
    try:
        parse("--log_level", "debug", "--log_style", "nemo")
        assert (logging.get_verbosity(), logging.style) == (logging.DEBUG, "nemo")
        monkeypatch.setenv("NEMO_LITE_LOG_STYLE", "")
        parse()
        assert logging.style == "plain"
    finally:
        logging.setLevel(before)
        logging.set_style(None)


WENET = """optim: {optim}
optim_conf:
    lr: 0.002
scheduler: warmuplr
scheduler_conf:
    warmup_steps: 1562
"""


def parsed_with(tmp_path, training_keys, *options):
    """The options where the demo's configuration also has the keys of a training."""
    file = tmp_path / "train.yaml"
    file.write_text(config_path("demo").read_text() + training_keys)
    return parse("--model_config", str(file), *options)


@pytest.mark.parametrize(("optim", "ours", "decay"), [("adam", "adam", 0.0), ("adamw", "adam_w", 0.01)])
def test_the_optimizer_and_the_scheduler_of_a_wenet_configuration_are_taken(tmp_path, optim, ours, decay):
    found = parsed_with(tmp_path, WENET.format(optim=optim))
    assert (found.optimizer, found.lr, found.weight_decay) == (ours, 0.002, decay)
    assert (found.lr_policy, found.warmup_steps) == ("warmuplr", 1562)
    assert policy_of(found, 20_000)(0.002, 1561, 0) == pytest.approx(0.002, rel=1e-12)
    assert nemo_asr.load_recipe(found.model_config).labels  # a model's file may have these keys


def test_an_option_of_the_command_line_wins_over_the_configuration(tmp_path):
    options = ("--lr", "0.1", "--optimizer", "sgd", "--warmup_steps", "3", "--set", "optim_conf.betas=[0.8, 0.9]")
    found = parsed_with(tmp_path, WENET.format(optim="adam").replace("scheduler:", "lr_policy:"), *options[:-2])
    assert (found.lr, found.optimizer, found.lr_policy, found.warmup_steps) == (0.1, "sgd", "warmuplr", 3)
    assert parsed_with(tmp_path, WENET.format(optim="adam"), *options[-2:]).betas == (0.8, 0.9)


def test_wenets_policy_without_a_number_of_warmup_steps_has_wenets():
    policy = policy_of(parse("--lr_policy", "warmuplr"), 50_000)
    assert policy(1.0, 24_999, 0) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("warmuplr", "warmuplrr", r'scheduler "warmuplrr" is not known \(did you mean warmuplr\?\)'),
        ("warmuplr", "[warmuplr]", r'scheduler \["warmuplr"\] is not known \(did you mean warmuplr\?\)'),
        ("lr: 0.002", "lrr: 0.002", r"optim_conf.lrr is not a key \(did you mean lr\?\)"),
        ("lr: 0.002", "lr: -1", r"optim_conf.lr is -1, wanted float from 0"),
        ("warmup_steps: 1562", "warmup_steps: x", 'scheduler_conf.warmup_steps is "x", wanted int from 0'),
        ("\n    lr: 0.002", " 5", "optim_conf holds no mapping of arguments"),
        ("scheduler:", "lr_policy: WarmupPolicy\nscheduler:", "lr_policy is WarmupPolicy, and scheduler is warmuplr"),
    ],
)
def test_a_wrong_training_key_of_a_configuration_is_told_with_its_place(tmp_path, before, after, problem):
    with pytest.raises(ConfigError, match=rf"train\.yaml:\d+:\d+: {problem}"):
        parsed_with(tmp_path, WENET.format(optim="adam").replace(before, after))


def test_a_patience_of_nothing_or_without_sets_to_evaluate_is_refused(capsys):
    without_sets = [*NEEDED, "--patience", "3"]
    assert "--patience has no effect without --eval_datasets; leave it out" in refusal(capsys, *without_sets)
    assert "argument --patience: " in refusal(capsys, *NEEDED, "--eval_datasets", "a.json", "--patience", "0")
    assert parse("--eval_datasets", "a.json", "--early_stopping_patience", "3").patience == 3


@pytest.mark.parametrize(
    ("group", "file", "limit", "memory"),
    [
        ("0::/job/step", "sys/fs/cgroup/job/memory.max", "1000000\n", 1000000),  # of a job around its step
        ("0::/", "sys/fs/cgroup/memory.max", "1000000\n", 1000000),  # of a container
        ("4:memory:/docker/1\n0::/", "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n", 1000000),
        ("0::/", "sys/fs/cgroup/memory.max", "max\n", None),
        ("0::/", "sys/fs/cgroup/other.max", "1000000\n", None),
    ],
)
def test_the_memory_of_a_cpu_is_what_its_group_may_have(tmp_path, group, file, limit, memory):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(limit)
    assert own_memory(tmp_path) == (memory or own_memory(tmp_path / "none"))


def test_the_memory_of_a_cpu_is_what_ulimit_leaves():
    code = "from nemo_asr.options import memory; print(memory('cpu')[1])"
    words = ["bash", "-c", f'ulimit -v 8000000; exec {sys.executable} -c "{code}"']
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == f"{8000000 << 10}\n"
