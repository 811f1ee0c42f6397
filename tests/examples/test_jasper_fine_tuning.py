"""jasper.py --init_from: training that starts from the weights of a trained model, with its labels or with others."""

import os
import re

import pytest
from toys.launched import run_as_script
from toys.ranks import on_ranks
from toys.tone_corpus import ASR, CONFIG, read_manifest, run_script, write_manifest

from nemo_asr.scoring.report.run_folder import read_run
from nemo_asr.trained.folder import read_model
from nemo_lite.backends.pytorch.checkpoint.storage import read_tensors


def words(*given, **options):
    """Command-line words: of ``init_from="runs/Base"``, ``--init_from runs/Base``."""
    return [*map(str, given), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]


def common(corpus):
    return words(model_config=corpus / "tones.yaml", train_dataset=corpus / "train.json", batch_size=4, log_freq=1)


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    """The folder of a run that has learnt something in a few steps."""
    folder = tmp_path_factory.mktemp("base")
    options = words(num_epochs=6, optimizer="adam_w", lr=0.02, work_dir=folder, exp_name="Base")
    finished = run_script("jasper.py", *common(corpus), *options)
    assert finished.code == 0, finished.err
    assert (finished.out + finished.err).count("of speech: enough to adapt a trained model") == 1
    return folder / "Base"


def tune(corpus, base, *args, **options):
    """Start from the base model; how it ended."""
    given = {"init_from": base, "max_steps": 1, "work_dir": "runs", "exp_name": "Tuned", **options}
    return run_script("jasper.py", *common(corpus), *words(*args, **given))


def weights_in(folder, module):
    """The tensors of a module in the newest checkpoint."""
    newest = max(folder.glob(f"checkpoints/*/{module}-STEP-*.safetensors"), key=lambda path: path.stat().st_mtime)
    return read_tensors(newest)  # also where each rank wrote a part


def differing(one, other):
    return {name for name in one if one[name].tolist() != other[name].tolist()}


@pytest.mark.slow
def test_weights_are_taken_over_and_all_else_starts_anew(corpus, base, tmp_path):
    finished = tune(corpus, base, "--optimizer", "sgd", lr=0)
    assert finished.code == 0, finished.err
    assert re.findall(r"Step: (\d+)", finished.out) == ["0"]
    assert f"Weights from {base}" in finished.out
    assert "of speech: enough to adapt" not in finished.out + finished.err, "it starts from a model"
    for module, count in (("JasperEncoder", 13), ("JasperDecoderForCTC", 2)):
        assert re.search(rf"\n  {module}: all {count} tensors loaded\n", finished.out), finished.out
        different = differing(weights_in(base, module), weights_in(tmp_path / "runs/Tuned", module))
        assert not [name for name in different if "running" not in name and "num_batches" not in name]


@pytest.mark.slow
def test_the_same_command_again_goes_on_and_does_not_start_from_the_weights_again(corpus, base):
    assert tune(corpus, base).code == 0
    again = tune(corpus, base, max_steps=2)
    assert (again.code, len(again.losses)) == (0, 1), again.err
    assert (
        f"--init_from {base} is not used: the run goes on from its checkpoints in runs/Tuned/checkpoints" in again.err
    )
    assert "Weights from" not in again.out


@pytest.mark.slow
def test_a_training_that_makes_the_model_worse_keeps_the_one_that_it_started_from(corpus, base, tmp_path):
    options = ["--log_style", "plain", "--lr", "30", "--eval_datasets", corpus / "dev.json"]
    started = tune(corpus, base, *options, max_steps=2)
    assert started.code == 0, started.err
    best = re.search(r"Best model \(WER .* of dev, step 0.*: training has not made it better\)", started.out)
    assert best, started.out
    (history,) = read_run(tmp_path / "runs/Tuned").history
    assert history.best_step == read_model(tmp_path / "runs/Tuned").card.step == 0


@pytest.mark.slow
def test_a_guard_says_what_was_won_and_forgotten_and_changes_nothing_of_the_training(corpus, base, tmp_path):
    short = write_manifest(tmp_path / "short.json", read_manifest(corpus / "dev.json")[:3])
    options = ["--log_style", "plain", "--lr", "1", "--eval_datasets", corpus / "other.json"]
    plain = tune(corpus, base, *options, max_steps=2, exp_name="Plain")
    started = tune(corpus, base, *options, "--guard", corpus / "dev.json", short, max_steps=2)
    assert (plain.code, started.code) == (0, 0), started.err
    for module in ("JasperEncoder", "JasperDecoderForCTC"):
        one, other = (weights_in(tmp_path / "runs" / name, module) for name in ("Plain", "Tuned"))
        assert differing(one, other) == set()
    place = "runs/Tuned/model"
    assert f"{place} (step {read_model(tmp_path / place).card.step}) beside {base}, WER with 95 % int" in started.out
    lines = re.findall(
        r"^  (new|guard) +(\w+) +([\d.]+) % \[.*\] -> ([\d.]+) % \[.*\]: (.*)$", started.out, re.MULTILINE
    )
    assert [line[:2] for line in lines] == [("new", "other"), ("guard", "dev"), ("guard", "short")]
    (guarded,) = read_run(tmp_path / "runs/Tuned").guards
    assert (guarded.model, guarded.before, guarded.metric) == (place, str(base), "wer")
    assert [each.is_guard for each in guarded.sets] == [False, True, True]
    for each, line in zip(guarded.sets, lines, strict=True):
        assert (f"{100 * each.before:.1f}", f"{100 * each.after:.1f}") == line[2:4]
        assert line[4].startswith(each.verdict)
    # The rates are those of `eval` with the two stored models.
    for model, rates in (
        (base, [each.before for each in guarded.sets]),
        (place, [each.after for each in guarded.sets]),
    ):
        sets = [corpus / "other.json", corpus / "dev.json", short]
        scored = run_script("jasper_eval.py", *words("--eval_datasets", *sets, load_dir=model, out=tmp_path / "out"))
        shown = [float(rate) for rate in re.findall(r"\w+: WER ([\d.]+)%", scored.out)]
        assert shown == pytest.approx([100 * rate for rate in rates], abs=0.01)


@pytest.mark.slow
def test_a_run_that_goes_on_compares_with_the_model_that_it_started_from(corpus, base, tmp_path):
    for steps in (1, 2):
        finished = tune(corpus, base, "--guard", corpus / "dev.json", max_steps=steps)
        assert finished.code == 0, finished.err
        assert (f"Loaded {base}" in finished.out) == (steps == 1)
    (guarded,) = read_run(tmp_path / "runs/Tuned").guards
    assert (guarded.before, guarded.sets[0].name) == (str(base), "dev")


@pytest.mark.slow
def test_a_guard_takes_a_model_of_other_labels_and_tells_of_the_averaged_model_too(corpus, base, tmp_path):
    options = ["--log_style", "plain", "--set", 'labels=["c", "b", "a", " "]', "--ema_decay", "0.5"]
    finished = tune(corpus, base, *options, "--guard", corpus / "dev.json", max_steps=2, lr=0)
    assert finished.code == 0, finished.err
    guarded = read_run(tmp_path / "runs/Tuned").guards
    assert [each.model for each in guarded] == ["runs/Tuned/model", "runs/Tuned/averaged"]
    for each in guarded:
        assert each.sets[0].verdict == "no clear change"
    best, averaged = (each.sets[0] for each in guarded)
    assert best.before == averaged.before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--guard", "DEV"], "--guard has no effect without --init_from; leave it out"),
        (["--init_from", "BASE", "--guard", "DEV", "--eval_datasets", "DEV"], "--guard: DEV is one of --eval_datasets"),
        (["--init_from", "BASE", "--guard", "EMPTY"], "EMPTY: the manifest is empty"),
        (["--init_from", "BASE", "--guard", "DEV:2"], "--guard: an evaluation set has weights: got DEV:2"),
        (["--init_from", "BASE", "--guard", "NONE"], "NONE: the manifest does not exist"),
    ],
)
@pytest.mark.slow
def test_a_guard_that_cannot_be_is_one_line_and_leaves_nothing(corpus, base, tmp_path, given, told):
    (tmp_path / "empty.json").touch()
    names = {"DEV": corpus / "dev.json", "BASE": base, "EMPTY": tmp_path / "empty.json", "NONE": tmp_path / "none.json"}
    given, told = (
        [re.sub("[A-Z]{4,}|DEV", lambda m: str(names.get(m[0], m[0])), word) for word in part]
        for part in (given, [told])
    )
    refused = run_script("jasper.py", *common(corpus), *given, *words(max_steps=1, work_dir="runs"))
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused.err
    assert told[0] in refused.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [(["--lora", "2"], "no module has attention"), (["--module_lr", "Jasper=1"], 'module "Jasper" is not known')],
)
@pytest.mark.slow
def test_options_are_refused_before_a_guard_hears_its_sets(corpus, base, tmp_path, option, told):
    refused = tune(corpus, base, "--guard", corpus / "dev.json", *option)
    assert refused.code == 2
    assert told in refused.err
    assert not (tmp_path / "runs/Tuned/guard").exists()


@pytest.mark.slow
def test_a_plan_refuses_what_training_refuses(corpus, base, tmp_path):
    for option in ([], ["--plan"]):
        refused = tune(corpus, base, "--set", "sample_rate=8000", *option)
        assert refused.code == 2
        assert "its features are not those of the model that the weights are from: got sample_rate 8000" in refused.err
        assert refused.err.endswith("or give --allow_feature_change\n")
    planned = tune(corpus, base, "--plan")
    assert (planned.code, "1 step in all" in planned.out) == (0, True), planned.err


@pytest.mark.slow
def test_a_frozen_encoder_stays_as_it_is_with_its_statistics(corpus, base, tmp_path):
    finished = tune(corpus, base, freeze_encoder_until=2, max_steps=2)
    assert finished.code == 0, finished.err
    of_encoder = (weights_in(folder, "JasperEncoder") for folder in (base, tmp_path / "runs/Tuned"))
    of_decoder = (weights_in(folder, "JasperDecoderForCTC") for folder in (base, tmp_path / "runs/Tuned"))
    assert differing(*of_encoder) == set()
    assert len(differing(*of_decoder)) == 2


@pytest.mark.slow
def test_a_frozen_encoder_is_trained_from_the_step_that_was_given(corpus, base, tmp_path):
    finished = tune(corpus, base, freeze_encoder_until=2, max_steps=3, module_lr="JasperEncoder=0.001")
    assert finished.code == 0, finished.err
    assert "Step 2: unfroze jasper_encoder" in finished.out
    assert "Learning rates: 0.001 for JasperEncoder, 0.02 for JasperDecoderForCTC" in finished.out
    assert differing(weights_in(base, "JasperEncoder"), weights_in(tmp_path / "runs/Tuned", "JasperEncoder"))


@pytest.mark.slow
def test_without_a_configuration_the_trained_models_own_is_taken(corpus, base):
    options = words(train_dataset=corpus / "train.json", init_from=base, max_steps=1, lr=0, batch_size=4)
    finished = run_script("jasper.py", *options)
    assert finished.code == 0, finished.err
    assert "JasperDecoderForCTC: all 2 tensors loaded" in finished.out
    finished = run_script("jasper.py", *words(train_dataset=corpus / "train.json", max_steps=1))
    assert finished.code == 2
    assert re.fullmatch(r"jasper\.py: error: --model_config is missing; .* or --init_from MODEL\n", finished.err)


@pytest.fixture
def renamed(corpus, tmp_path):
    """The training data with a, b and c called x, c and a, and a configuration with these labels."""
    lines = read_manifest(corpus / "train.json")
    write_manifest(tmp_path / "new.json", [{**line, "text": str(line["text"]).translate(TABLE)} for line in lines])
    (tmp_path / "new.yaml").write_text(CONFIG.replace('[" ", "a", "b", "c"]', '["a", "c", "x"]'))
    return {"model_config": "new.yaml", "train_dataset": "new.json"}


TABLE = str.maketrans("abc", "xca")


def test_other_labels_get_a_new_decoder_with_the_rows_of_those_that_both_have(corpus, base, renamed, tmp_path):
    finished = tune(corpus, base, "--optimizer", "sgd", lr=0, **renamed)
    assert finished.code == 0, finished.err
    assert "JasperEncoder: all 13 tensors loaded" in finished.out
    assert "labels: 2 kept with the blank (a c), 1 new (x), 2 left (space b)" in finished.out
    old, new = (weights_in(folder, "JasperDecoderForCTC") for folder in (base, tmp_path / "runs/Tuned"))
    for name in old:
        assert new[name][[0, 1, 3]].tolist() == old[name][[1, 3, 4]].tolist()


@pytest.mark.slow
def test_a_trained_encoder_learns_other_labels_sooner(corpus, base, renamed):
    def last_loss(*args):
        options = {"num_epochs": 8, "optimizer": "adam_w", "lr": 0.02, "work_dir": "runs", **renamed}
        finished = run_script("jasper.py", *common(corpus), *words(*args, **options))
        assert finished.code == 0, finished.err
        return float(finished.losses[-1])

    assert last_loss("--init_from", base, "--exp_name", "tuned") < 0.5 * last_loss("--exp_name", "scratch")


def beside_the_model_or_not(base, folder, args):
    """jasper.py on a rank; only the first finds the model under ``base``."""
    own = folder / os.environ["RANK"]
    own.mkdir()
    os.chdir(own)
    if os.environ["RANK"] == "0":
        os.symlink(base, "base")
    run_as_script(str(ASR / "jasper.py"), args)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--shard_weights"]], ids=["whole", "sharded"])
def test_on_two_processes_the_second_gets_the_weights_from_the_first(corpus, base, tmp_path, more):
    """The second has neither the model nor, where none is given, its configuration."""
    options = words(init_from="base", max_steps=1, work_dir=tmp_path / "runs", lr=0, optimizer="sgd", batch_size=2)
    given = common(corpus) if more else words(train_dataset=corpus / "train.json")
    ends = on_ranks(2, beside_the_model_or_not, base, tmp_path, [*given, *more, *options])
    assert [end.code for end in ends] == [0, 0], ends
    assert "JasperEncoder: all 13 tensors loaded" in ends[0].out
    assert ends[1].out == ends[1].err == ""
    of_decoder = (weights_in(folder, "JasperDecoderForCTC") for folder in (base, tmp_path / "runs/Jasper"))
    assert differing(*of_decoder) == set()


# What cannot be used: one line, exit code 2


def refusal(finished):
    assert (finished.code, finished.err.count("\n")) == (2, 1), finished
    return finished.err


def test_features_that_differ_are_refused_with_the_difference(corpus, base, tmp_path):
    changed = CONFIG.replace("n_fft: 512, dither: 0.0", "n_fft: 512, window_stride: 0.02, dither: 0.1")
    (tmp_path / "other.yaml").write_text(changed)
    told = refusal(tune(corpus, base, model_config="other.yaml"))
    assert re.search(
        r"other\.yaml\S*: its features are not those of the model that the weights are from: got window_stride 0\.02, "
        r"wanted window_stride 0\.01 as in \S+; change the preprocessor's section",
        told,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"init_from": "nowhere"},
            "argument --init_from: 'nowhere' does not exist; give a run's folder, a model folder",
        ),
        ({"init_from": "file"}, "file: this is no model: got a file, wanted a run's folder, a model folder, "),
        ({"init_from": "empty"}, "empty: there is no model in this folder"),
        ({"load_dir": "empty"}, "--init_from contradicts --load_dir: the first starts anew from weights"),
        ({"module_lr": "JasperEncoder"}, "'JasperEncoder' is not MODULE=LR, such as JasperEncoder=0.002"),
        ({"module_lr": "JasperEncoder=-1"}, "'-1' is not a number from 0"),
        ({"module_lr": "JasperEncodr=1"}, r'module "JasperEncodr" is not known; .* \(did you mean JasperEncoder\?\)'),
        ({"freeze_encoder_until": 0}, "argument --freeze_encoder_until: '0' is not a whole number from 1"),
    ],
)
def test_what_cannot_be_is_one_line(corpus, base, tmp_path, options, told):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    finished = tune(corpus, base, **options)
    assert finished.code == 2
    assert re.search(told, finished.err.splitlines()[-1]), finished.err


def test_a_rate_given_twice_is_refused(corpus, base):
    told = refusal(tune(corpus, base, "--module_lr", "A=1", "A=2"))
    assert "argument --module_lr: A is given twice" in told
