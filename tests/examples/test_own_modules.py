"""Modules of a user's own, each in one file with one line of registration, in the scripts as they are."""

import re
from pathlib import Path

import pytest
import toys
from toys.lion import Lion, registered_lion
from toys.tone_corpus import CONFIG, record, run_process, run_script

pytestmark = pytest.mark.long  # the model is trained in a fixture

OWN = Path(toys.__file__).parent
GRU = OWN / "gru_encoder.py"
START, END = CONFIG.index("JasperEncoder"), CONFIG.index("labels")
GRU_CONFIG = CONFIG[:START] + "GruEncoder: {hidden: 48}\n" + CONFIG[END:]


@pytest.fixture
def options(corpus, tmp_path):
    (tmp_path / "gru.yaml").write_text(GRU_CONFIG)
    return ["--import", GRU, "--model_config", "gru.yaml", "--train_dataset", corpus / "train.json"]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """A trained GRU: the options that use it, and what its training said."""
    folder = tmp_path_factory.mktemp("gru")
    (folder / "gru.yaml").write_text(GRU_CONFIG)
    finished = run_script(
        *("jasper.py", "--import", GRU, "--model_config", folder / "gru.yaml"),
        *("--train_dataset", corpus / "train.json", "--eval_datasets", corpus / "dev.json", "--num_epochs", 60),
        *(
            "--eval_freq",
            1000,
            "--batch_size",
            4,
            "--optimizer",
            "adam_w",
            "--lr",
            0.02,
            "--checkpoint_dir",
            folder / "saved",
        ),
        *("--log_freq", 1),
    )
    assert finished.code == 0, finished.err
    return ["--import", GRU, "--model_config", folder / "gru.yaml", "--load_dir", folder / "saved"], finished


def test_an_encoder_of_ones_own_learns(trained):
    _, finished = trained
    assert float(finished.losses[-1]) < 0.1 * float(finished.losses[0])
    assert re.findall(r"Evaluation WER dev: +(\S+)%", finished.out)[-1] == "0.00"


STREAM = """
import nemo_asr
from nemo_lite import DataLayerNM


class Lengthless:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class StreamDataLayer(DataLayerNM):
    def __init__(self, manifest: str, labels: list[str], batch_size: int):
        super().__init__()
        self.inner = nemo_asr.AudioToTextDataLayer(manifest, labels, batch_size)

    @property
    def output_ports(self):
        return self.inner.output_ports

    @property
    def data_iterator(self):
        return Lengthless(self.inner.data_iterator)


nemo_asr.register(StreamDataLayer)
"""


def test_a_data_layer_that_does_not_know_its_length_is_trained_on_for_a_number_of_steps(corpus, tmp_path):
    (tmp_path / "stream.py").write_text(STREAM)
    layer = "AudioToTextDataLayer:\n  train: {shuffle: true}\n  eval: {shuffle: false}\n"
    (tmp_path / "stream.yaml").write_text(CONFIG.replace(layer, "StreamDataLayer: {}\n"))
    words = ["jasper.py", "--import", "stream.py", "--model_config", "stream.yaml", "--batch_size", 4]
    words += ["--train_dataset", corpus / "train.json", "--log_freq", 1]
    finished = run_script(*words, "--max_steps", 4)
    assert (finished.code, len(finished.losses)) == (0, 4), finished.err
    assert "\n4 steps in all\n" in run_script(*words, "--max_steps", 4, "--plan").out
    finished = run_script(*words, "--num_epochs", 1)
    assert finished.code == 2
    assert "does not know how many batches an epoch has; give --max_steps" in finished.err


def test_it_is_planned_with_its_shapes_and_parameters(options):
    finished = run_script("jasper.py", *options, "--max_steps", 3, "--plan")
    assert finished.code == 0, finished.err
    assert re.search(r"GruEncoder +B 32 T -> B 48 T\S* +11,808", finished.out)


def test_it_is_evaluated(trained, corpus):
    options, _ = trained
    finished = run_script("jasper_eval.py", *options, "--eval_datasets", corpus / "dev.json")
    assert finished.code == 0, finished.err
    assert "dev: WER 0.00%" in finished.out


def test_it_transcribes(trained, tmp_path):
    options, _ = trained
    record(tmp_path / "one.wav", "cab")
    finished = run_script("jasper_infer.py", *options, "one.wav")
    assert finished.out.endswith("one.wav: cab\n"), finished.err


def test_a_decoder_of_ones_own_takes_the_place_of_greedy_decoding(trained, tmp_path):
    (_, _, _, config, *others), _ = trained
    (tmp_path / "beam.yaml").write_text(config.read_text() + "PrefixBeamSearch: {width: 3}\n")
    record(tmp_path / "one.wav", "abba")
    imports = ["--import", GRU, "--import", OWN / "beam_search.py"]
    finished = run_script("jasper_infer.py", *imports, "--model_config", "beam.yaml", *others, "one.wav")
    assert finished.out.endswith("one.wav: abba\n"), finished.err


def test_a_size_that_does_not_fit_is_told_by_the_ports_at_its_place(options, tmp_path):
    (tmp_path / "gru.yaml").write_text(GRU_CONFIG.replace("hidden: 48", "feat_in: 80"))
    finished = run_script("jasper.py", *options, "--max_steps", 3)
    assert finished.code == 2
    assert finished.err.endswith(  # a test of the same process may have registered the class before: a warning
        "jasper.py: error: gru.yaml:7:14: GruEncoder.feat_in is 80, wanted 32: GruEncoder.frames cannot take "
        "AudioToMelSpectrogramPreprocessor.processed_signal (AudioToMelSpectrogramPreprocessor: line 6): "
        "got B D=32 T MelSpectrogram, wanted B D=80 T Spectrogram; D is 32, not 80. Give both modules the same size.\n"
    )


def test_a_new_optimizer_trains_with_its_own_betas(corpus, monkeypatch):
    made = []
    monkeypatch.setattr(Lion, "register_load_state_dict_post_hook", lambda self, hook: made.append(self))
    options = ["--model_config", corpus / "tones.yaml", "--train_dataset", corpus / "train.json", "--num_epochs", 6]
    with registered_lion():
        finished = run_script(
            *("jasper.py", *options, "--optimizer", "lion", "--beta1", 0.8, "--lr", 0.003, "--batch_size", 4),
            *("--log_freq", 1),
        )
    assert finished.code == 0, finished.err
    assert float(finished.losses[-1]) < 0.5 * float(finished.losses[0])
    (optimizer,) = made
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)
    assert optimizer.param_groups[0]["weight_decay"] == 0.001


@pytest.mark.parametrize(
    ("name", "told"),
    [("none.py", "'none.py' is not a Python file"), ("json.py", "a module called json is there already; rename")],
)
def test_a_file_that_cannot_be_imported_is_one_line(options, tmp_path, name, told):
    (tmp_path / "json.py").write_text("raise AssertionError('shadows the standard library')\n")
    finished = run_script("jasper.py", "--import", name, *options, "--max_steps", 3)
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert f"error: argument --import: {told}" in finished.err


def test_a_process_of_its_own_with_a_worker_trains_it(options):
    finished = run_process("jasper.py", *options, "--max_steps", 1, "--log_freq", 1, "--num_workers", 1)
    assert finished.code == 0, finished.err
    assert len(finished.losses) == 1


def test_ports_of_other_names_train_and_are_planned_evaluated_and_transcribed(corpus, tmp_path):
    config = CONFIG.replace("AudioToTextDataLayer", "OtherDataLayer") + "OtherLoss: {}\nOtherGreedy: {}\n"
    (tmp_path / "other.yaml").write_text(config)
    (tmp_path / "plain.yaml").write_text(CONFIG)
    data = ["--train_dataset", corpus / "train.json", "--eval_datasets", corpus / "dev.json", "--batch_size", 4]
    rest = [*data, "--optimizer", "adam_w", "--lr", 0.02, "--log_freq", 1, "--num_epochs", 40, "--eval_freq", 1000]
    own = ["--import", OWN / "other_ports.py", "--model_config", "other.yaml"]
    planned = run_script("jasper.py", *own, *rest, "--plan")
    assert (planned.code, planned.err) == (0, "")
    assert "OtherGreedy" in planned.out
    trained = run_script("jasper.py", *own, *rest, "--checkpoint_dir", "saved")
    assert trained.code == 0, trained.err
    plain = run_script("jasper.py", "--model_config", "plain.yaml", *rest)
    assert trained.losses == plain.losses
    for what in ("Loss", "WER"):
        found, wanted = (re.findall(rf"Evaluation {what} dev: +(\S+)", each.out) for each in (trained, plain))
        assert found == wanted
        assert found
    evaluated = run_script("jasper_eval.py", *own, "--load_dir", "saved", "--eval_datasets", corpus / "dev.json")
    assert "dev: WER 0.00%" in evaluated.out, evaluated.err
    record(tmp_path / "one.wav", "cab")
    transcribed = run_script("jasper_infer.py", *own, "--load_dir", "saved", "one.wav")
    assert transcribed.out.endswith("one.wav: cab\n"), transcribed.err
