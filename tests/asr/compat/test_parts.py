"""NeMo's parts: lists, data sets, manifests, parsers, features."""

import json
import random
import string

import pytest
import torch
from toys.kaldi_folders import make_folder
from toys.manifests import LABELS, make_set

from nemo_asr import AudioToMelSpectrogramPreprocessor
from nemo_asr.augmentation import WaveformFeaturizer
from nemo_asr.compat.parts import (
    CONSTANT,
    NAME_TO_PARSER,
    ASRAudioText,
    ASRSpeechLabel,
    AudioDataset,
    AudioLabelDataset,
    AudioText,
    CharParser,
    ENCharParser,
    FeaturizerFactory,
    FilterbankFeatures,
    FromFileText,
    KaldiFeatureDataset,
    SpecAugment,
    SpecCutout,
    SpeechLabel,
    Text,
    TranscriptDataset,
    clean_abbreviations,
    clean_numbers,
    clean_punctuations,
    clean_text,
    fixed_seq_collate_fn,
    item_iter,
    make_parser,
    normalize_batch,
    seq_collate_fn,
    splice_frames,
    warn_common_chars,
)

# NeMo's functions that clean texts.


TABLE = str.maketrans(string.punctuation, " " * len(string.punctuation))
WORDS = {"+": "plus", "&": "and", "%": "percent"}


def test_a_text_is_cleaned_in_nemos_steps():
    assert (
        clean_text("Dr. Who  paid \u00a35 & 3% - caf\u00e9", TABLE, WORDS)
        == "doctor who paid five pounds and three percent cafe"
    )
    assert clean_text("7:05am", TABLE, WORDS, abbreviation_version="fastpitch") == "seven oh five a m"


def test_each_step_can_be_called_alone():
    assert clean_numbers("at 9:30pm") == "at nine thirty p m"
    assert clean_abbreviations("mr. smith", version="fastpitch", expanded=True) == "mister smith"
    assert clean_punctuations("a+b!", TABLE, WORDS) == "a plus b "
    assert warn_common_chars("\u00a3") is None


# NeMo's lists: what is kept, in which order, and their fields.


PARSER = CharParser([" ", "a", "b"])


@pytest.fixture
def manifest(tmp_path):
    lines = [
        {"audio_filepath": f"x/{number}.wav", "duration": number, "text": text, "label": text or "no"}
        for number, text in enumerate(["b", "a", "", "ab"], start=1)
    ]
    (tmp_path / "m.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(tmp_path / "m.json")


def test_texts_that_the_parser_refuses_are_left_out_and_empty_ones_stay():
    assert [entity.tokens for entity in Text(["ab", 3, ""], PARSER)] == [[1, 2], []]


@pytest.mark.parametrize(
    ("name", "content"), [("t.txt", "a\nb a\n"), ("t.csv", "wav,transcript\n1.wav,a\n2.wav,b a\n")]
)
def test_texts_come_from_lines_columns_and_manifests(name, content, tmp_path, manifest):
    (tmp_path / name).write_text(content)
    assert [entity.tokens for entity in FromFileText(tmp_path / name, PARSER)] == [[1], [2, 0, 1]]
    assert [entity.tokens for entity in FromFileText(manifest, PARSER)] == [[2], [1], [], [1, 2]]


def test_utterances_are_filtered_sorted_and_counted(manifest, capsys):
    found = ASRAudioText(manifest, parser=PARSER, min_duration=2, max_duration=3)
    assert "ASRAudioText: 2 utterances kept (0.00 h), 2 left out" in capsys.readouterr().out
    assert [(one.id, one.audio_file, one.text_tokens, one.text_raw) for one in found] == [
        (1, "x/2.wav", [1], "a"),
        (2, "x/3.wav", [], ""),
    ]
    assert len(ASRAudioText([manifest, manifest], parser=PARSER, max_number=3)) == 3
    columns = [[0, 1], ["b.wav", "a.wav"], [2.0, 1.0], ["a", "b"], [None, None], [None, "s"]]
    found = AudioText(*columns, parser=PARSER, do_sort_by_duration=True)
    assert [one.duration for one in found] == [1.0, 2.0]
    assert found.OUTPUT_TYPE._fields == ("id", "audio_file", "duration", "text_tokens", "offset", "text_raw", "speaker")


def test_utterances_are_found_by_the_base_name_of_their_file(manifest):
    found = ASRAudioText(manifest, parser=PARSER, index_by_file_id=True)
    assert found.mapping == {"1": 0, "2": 1, "3": 2, "4": 3}


def test_classes_are_listed_sorted(manifest):
    found = ASRSpeechLabel(manifest, max_duration=3)
    assert found.uniq_labels == ["a", "b", "no"]
    assert found[0]._asdict() == {"audio_file": "x/1.wav", "duration": 1, "label": "b", "offset": None}
    assert SpeechLabel(["a"], [1.0], ["x"], [0.5])[0].offset == 0.5


def test_a_line_that_names_a_channel_is_refused(tmp_path):
    (tmp_path / "m.json").write_text('{"audio_filepath": "a.wav", "duration": 1, "text": "a", "channel": 1}\n')
    with pytest.raises(
        ValueError, match=r"m\.json:1: NeMo's items know no channel: got 1; leave it out for the average"
    ):
        ASRAudioText(str(tmp_path / "m.json"), parser=PARSER)


def test_a_line_without_a_class_is_refused(tmp_path):
    (tmp_path / "m.json").write_text('{"audio_filepath": "a.wav", "duration": 1}\n')
    with pytest.raises(ValueError, match="a line has no class: wanted command, target or label"):
        ASRSpeechLabel(str(tmp_path / "m.json"))


# NeMo's data sets of torch and their collate functions.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, 4)
    return tmp_path


def test_recordings_and_texts_are_items_and_a_batch_is_padded(folder):
    items = AudioDataset("train.json,train.json", LABELS, WaveformFeaturizer(), max_utts=6, bos_id=8, eos_id=9)
    assert len(items) == 6
    audio, audio_len, tokens, num_tokens = items[1]
    assert (audio.shape, audio_len.item(), tokens.tolist(), num_tokens.item()) == ((3520,), 3520, [8, 1, 2, 9], 4)
    audio, audio_lens, tokens, _ = seq_collate_fn([items[0], items[1]], token_pad_value=7)
    assert (audio.shape, audio_lens.tolist()) == ((2, 3520), [3360, 3520])
    assert tokens.tolist() == [[8, 1, 9, 7], [8, 1, 2, 9]]


def test_an_item_may_tell_where_it_is_from_and_have_no_audio(folder):
    items = AudioDataset("train.json", LABELS, WaveformFeaturizer(), add_misc=True, load_audio=False)
    (audio, _, tokens, _), misc = items[2]
    assert (audio, tokens.tolist()) == (None, [1])
    assert misc == {"id": 2, "text_raw": "a", "speaker": None}
    assert seq_collate_fn([items[0][0], items[1][0]])[0] is None


def test_at_most_the_duration_is_read(folder):
    line = {"audio_filepath": "1.wav", "offset": 0.1, "duration": 18000, "text": "a"}
    (folder / "long.json").write_text(json.dumps(line) + "\n" + json.dumps({**line, "duration": 0.05}))
    items = AudioDataset("long.json", LABELS, WaveformFeaturizer())
    assert [len(items[row][0]) for row in (0, 1)] == [1760, 800]


def test_classes_have_numbers(folder):
    make_set(folder, 3, "commands.json", command="go")
    items = AudioLabelDataset("commands.json", WaveformFeaturizer(), labels=["stop", "go"])
    assert (items.label2id, items.id2label, items.num_commands) == ({"stop": 0, "go": 1}, {0: "stop", 1: "go"}, 2)
    assert [value.item() for value in items[0][1:]] == [3360, 1, 1]
    assert AudioLabelDataset("commands.json", WaveformFeaturizer()).labels == ["go"]
    with pytest.raises(KeyError):
        AudioLabelDataset("commands.json", WaveformFeaturizer(), labels=["stop"])[0]


def test_audio_is_brought_to_one_length():
    one, ids = torch.arange(1.0, 6.0), torch.tensor([1])
    batch = [(one, torch.tensor(5), ids, torch.tensor(1)), (torch.ones(20), torch.tensor(20), ids, torch.tensor(1))]
    audio, lengths, *_ = fixed_seq_collate_fn(batch, fixed_length=12)
    assert audio[0].tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 4, 5]
    assert (audio.shape, lengths.tolist()) == ((2, 12), [5, 20])
    assert fixed_seq_collate_fn(batch[:1], fixed_length=12)[0].shape == (1, 5)


def test_texts_alone_are_a_data_set(folder):
    (folder / "t.txt").write_text("A b\nc\n")
    items = TranscriptDataset("t.txt", LABELS, bos_id=8)
    assert [(ids.tolist(), number.item()) for ids, number in (items[0], items[1])] == [([8, 1, 0, 2], 4), ([8, 3], 2)]


def test_features_of_kaldi_are_items_with_features_first(tmp_path):
    matrices = make_folder(tmp_path / "kaldi")
    items = KaldiFeatureDataset(str(tmp_path / "kaldi"), LABELS, min_duration=0.21, max_utts=3, eos_id=9)
    features, length, ids, num_ids = items[0]
    assert (len(items), length.item(), ids.tolist(), num_ids.item()) == (3, 21, [1, 2, 9], 3)
    assert torch.equal(features, torch.from_numpy(matrices[1]).T)
    with pytest.raises(IndexError):
        items[3]


# NeMo's featurizers: the features of the preprocessor, without ports.


LENGTHS = torch.tensor([8000, 4000])


def test_filterbank_features_are_those_of_the_preprocessor():
    signal = torch.randn(2, 8000)
    features = FilterbankFeatures(dither=0.0, nfilt=40, pad_to=0).eval()
    expected, _ = AudioToMelSpectrogramPreprocessor(features=40, pad_to=0).eval()(signal, LENGTHS)
    torch.testing.assert_close(features(signal, LENGTHS), expected)
    assert features.preprocessor.std_floor == 0.0  # NeMo's numbers in bands without signal too
    assert features.get_seq_len(torch.tensor([8000.0, 8001.0])).tolist() == [50, 51]
    assert features.filter_banks.shape == (1, 40, 257)


def test_a_batch_is_normalised_over_its_valid_frames_and_stays_as_it_is():
    x, lengths = torch.randn(2, 3, 50) * 4 + 2, torch.tensor([50, 20])
    before = x.clone()
    one = normalize_batch(x, lengths, "per_feature")
    assert torch.equal(x, before)
    torch.testing.assert_close(one[1, :, :20].std(1), torch.ones(3), rtol=1e-3, atol=0)
    assert one[1, :, 20:].abs().max() == 0
    fixed = {"fixed_mean": [1.0, 2.0, 3.0], "fixed_std": [2.0, 2.0, 2.0]}
    torch.testing.assert_close(normalize_batch(x, lengths, fixed)[0, 2], (x[0, 2] - 3) / 2)
    assert torch.equal(normalize_batch(x, lengths, False), x)
    assert CONSTANT == 1e-5


def test_frames_are_spliced_and_a_rest_filled_with_zeros():
    spliced = splice_frames(torch.arange(5.0).view(1, 1, 5), 2)
    assert spliced.tolist() == [[[0, 2, 4], [1, 3, 0]]]


def test_the_factory_makes_featurizers():
    assert FeaturizerFactory.from_config({"sample_rate": 8000}).sample_rate == 8000


# item_iter: which keys of a line count, where paths lead, and what is refused.


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, *lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return name

    return written


def test_a_line_becomes_a_dictionary_and_its_other_keys_are_dropped(write):
    line = {"audio_filepath": "~/a.wav", "duration": 1.5, "text": "one", "lang": "en"}
    first = write("a.json", line, {**line, "audio_filepath": "b.wav", "offset": 2, "speaker": ["x"]})
    items = list(item_iter(first))
    assert items[0]["audio_file"].startswith("/")
    assert items[1] == {
        **{"audio_file": "b.wav", "duration": 1.5, "text": "one"},
        **{"offset": 2, "speaker": ["x"], "id": 1},
    }


def test_texts_are_looked_for_in_nemos_order(write, tmp_path):
    (tmp_path / "t.txt").write_text("from a\nfile\n")
    line = {"audio_filepath": "a.wav", "duration": 1}
    others = {"text_filepath": "t.txt", "normalized_text": "normal"}
    name = write("a.json", {**line, **others, "text": ""}, {**line, **others}, {**line, "normalized_text": "normal"})
    assert [item["text"] for item in item_iter(name)] == ["", "from afile", "normal"]


def test_ids_go_on_over_the_manifests(write):
    line = {"audio_filepath": "a.wav", "duration": 1, "text": ""}
    assert [item["id"] for item in item_iter([write("a.json", line, line), write("b.json", line)])] == [0, 1, 2]


def test_a_path_that_leads_nowhere_but_beside_the_manifest_starts_there(write, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.wav").touch()
    line = {"duration": 1, "text": ""}
    name = write("set/m.json", {**line, "audio_filepath": "a.wav"}, {**line, "audio_filepath": "none.wav"})
    assert [item["audio_file"] for item in item_iter(name)] == ["set/a.wav", "none.wav"]


def test_a_function_may_read_the_lines(write):
    name = write("a.json", "x", "y")
    found = list(item_iter(name, lambda line, path: {"line": line.strip(), "path": path}))
    assert found == [{"line": '"x"', "path": name, "id": 0}, {"line": '"y"', "path": name, "id": 1}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"duration": 1, "text": ""}, r"no audio_filepath \(or audio_filename\)"),
        ({"audio_filepath": "a.wav", "text": ""}, "there is no duration"),
        ({"audio_filepath": "a.wav", "duration": 1}, "there is no text, text_filepath or normalized_text; write"),
        (
            {"audio_filepath": "a.wav", "duration": 1, "text_filepath": "no.txt"},
            r"no\.txt: the text file cannot",
        ),
        (["a.wav"], "expected object, got array"),
    ],
)
def test_a_line_without_its_keys_is_a_value_error_with_its_place(line, problem, write):
    with pytest.raises(ValueError, match=rf"^a\.json:1: {problem}"):
        list(item_iter(write("a.json", line)))


# NeMo's parsers: ids or None, and which names there are.


@pytest.mark.parametrize(("text", "ids"), [("ab", [1, 2]), (" A b ", [1, 0, 2]), ("", []), ("todo", []), (3, None)])
def test_a_text_becomes_ids_perhaps_none_and_what_is_no_text_becomes_none(text, ids):
    assert CharParser(LABELS)(text) == ids


def test_settings_are_those_of_nemo():
    assert CharParser(LABELS, unk_id=9, do_normalize=False, do_lowercase=False)("axB") == [1, 9, 9]
    english = ENCharParser(list(" abcdefghijklmnopqrstuvwxyz"), abbreviation_version="fastpitch")
    assert english("3") == english("three")


def test_parsers_have_names():
    assert {"base": CharParser, "en": ENCharParser} == NAME_TO_PARSER
    assert type(make_parser(LABELS, name="en", unk_id=-1)) is ENCharParser
    assert make_parser()("az") == [10, 35]
    with pytest.raises(ValueError, match='parser "fr" is not known'):
        make_parser(LABELS, name="fr")


# SpecAugment and SpecCutout as torch modules.


def test_masks_act_whenever_the_module_is_called_and_follow_the_generator():
    x = torch.rand(4, 20, 50) + 1
    for make in (
        lambda seed: SpecAugment(freq_masks=2, time_masks=2, rng=random.Random(seed)),
        lambda seed: SpecCutout(rect_masks=5, rng=random.Random(seed)),
    ):
        one, two, other = (make(seed).eval()(x) for seed in (3, 3, 4))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)
        assert (one == 0).any()
        assert torch.equal(one[one != 0], x[one != 0])
