"""Fields of a transcription request, and the shapes of answers."""

import inspect
import json
from dataclasses import replace

import pytest

from nemo_asr.run.audio.segments import DEFAULT_CUTTING, Cutting, Span
from nemo_asr.run.serve.openai_api import ApiError, answer, asked_for, done_event
from nemo_asr.run.transcribe.transcript import Transcript, Word

WORDS = (Word("hello", 0.1, 0.5, 0.9), Word("you", 0.6, 0.8, 0.0), Word("there", 2.1, 2.4, 1.0))
TALK = Transcript("hello you there", WORDS, 3.2, "a.wav", segments=(Span(0.0, 1.0), Span(2.0, 3.0)))


def asked(*fields, **named):
    return asked_for([*fields, *named.items()], DEFAULT_CUTTING)


def test_without_fields_a_request_asks_for_json():
    found = asked()
    assert (found.response_format, found.stream, found.logprobs, found.keywords) == ("json", False, False, ())
    assert found.cutting == DEFAULT_CUTTING
    assert not found.ignored


def test_lists_come_with_brackets_without_or_as_json():
    for fields in (
        [("keywords[]", "a"), ("keywords[]", "b")],
        [("keywords", "a"), ("keywords", "b")],
        [("keywords", '["a", "b"]')],
        [("keywords", " a "), ("keywords", ""), ("keywords", "b"), ("keywords", "a")],
    ):
        assert asked(*fields).keywords == ("a", "b")


def test_lists_come_with_an_index_too():
    found = asked(
        *(("timestamp_granularities[0]", "word"), ("timestamp_granularities[1]", "segment")),
        *(("include[0]", "logprobs"), ("keywords[0]", "a"), ("keywords[1]", "b"), ("nonsense[1][x]", "c")),
    )
    assert (found.words, found.segments, found.logprobs, found.keywords) == (True, True, True, ("a", "b"))
    assert found.ignored == ("nonsense[1][x]",)


def test_an_empty_field_counts_as_none():
    names = ("response_format", "timestamp_granularities[]", "include[0]", "stream", "chunking_strategy", "prompt")
    assert asked(*((name, value) for name in names for value in ("", " "))) == asked()
    assert asked(("known_speaker_names[]", "")) == asked()


def test_what_the_client_of_openai_sends_is_taken_named_as_without_effect_or_refused():
    openai = pytest.importorskip("openai.resources.audio", reason="pip install openai")
    sent = inspect.signature(openai.Transcriptions.create).parameters
    values = {"response_format": "json", "stream": "false", "include": "logprobs", "chunking_strategy": "auto"}
    values |= {"timestamp_granularities": "word", "keywords": "a"}
    of_http = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for name in sent.keys() - of_http - {"file", "model", "language"}:
        if name.startswith("known_speaker"):
            with pytest.raises(ApiError, match=rf"{name}: this server does not tell speakers apart; leave"):
                asked((f"{name}[]", "anna"))
        elif name in values:
            assert asked((name, values[name])).ignored == ()
        else:
            assert name in ("prompt", "temperature", "languages"), "a new parameter: take it, or say that it is not"
            assert asked((name, "1")).ignored == (name,)


def test_fields_without_effect_are_named():
    assert asked(temperature="0", prompt="x", language="en", nonsense="1").ignored == (
        "temperature",
        "prompt",
        "nonsense",
    )


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": "jsn"}, "response_format", r"got 'jsn', wanted json, text, .* \(did you mean json\?\)"),
        ({"response_format": "diarized_json"}, "response_format", "wanted json, text, srt, vtt, verbose_json"),
        ({"timestamp_granularities[]": "phone"}, "timestamp_granularities", "got 'phone', wanted word, segment"),
        ({"include[]": "x" * 500}, "include", "got 'x{60}', wanted logprobs"),
        ({"stream": "maybe"}, "stream", "got 'maybe'"),
        ({"stream": "true", "response_format": "srt"}, "stream", "got response_format srt, wanted json or text"),
        ({"keywords": "@/etc/passwd"}, "keywords", "begins with @"),
        ({"keywords": '["a", "@/etc/passwd"]'}, "keywords", "begins with @"),
        ({"keywords": "x" * 201}, "keywords", "at most 1000 of at most 200 characters"),
        ({"keywords": json.dumps([f"{n:0200}" for n in range(51)])}, "keywords", "200 characters, 10000 in all"),
        ({"chunking_strategy": "never"}, "chunking_strategy", "got 'never', wanted auto or server_vad"),
        ({"chunking_strategy": '{"type":' * 5000}, "chunking_strategy", "wanted auto or server_vad"),
        ({"chunking_strategy": "{nonsense"}, "chunking_strategy", "wanted auto or server_vad"),
        (
            {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 1}'},
            "chunking_strategy",
            "min_pause is 0.001, wanted float from 0.05 to 3600 s",
        ),
        ({"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": []}'}, "chunking_strategy", "float"),
    ],
)
def test_wrong_values_are_told_with_their_field(fields, param, message):
    with pytest.raises(ApiError, match=message) as told:
        asked(**fields)
    assert told.value.as_json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


def test_chunking_says_where_recordings_are_cut():
    wanted = Cutting(min_pause=0.2, padding=0.05)
    as_text = json.dumps({"type": "server_vad", "silence_duration_ms": 200, "prefix_padding_ms": 50, "threshold": 0.5})
    assert asked(chunking_strategy=as_text).cutting == wanted
    by_field = {"type": "server_vad", "silence_duration_ms": "200", "prefix_padding_ms": "50"}
    assert asked(*((f"chunking_strategy[{name}]", value) for name, value in by_field.items())).cutting == wanted
    assert asked(chunking_strategy="auto").cutting == DEFAULT_CUTTING


def test_json_has_the_text_and_on_request_the_logarithms_of_confidences():
    assert answer(TALK, asked()) == {"text": "hello you there", "usage": {"type": "duration", "seconds": 4}}
    unfamiliar = replace(TALK, unfamiliar=("level -60 dB, on dev -30 to -10",))
    for response_format in ("json", "verbose_json"):
        told = answer(unfamiliar, asked(response_format=response_format))
        assert told["unfamiliar"] == ["level -60 dB, on dev -30 to -10"]
    logprobs = answer(TALK, asked(("include[]", "logprobs")))["logprobs"]
    assert "".join(token["token"] for token in logprobs) == TALK.text
    assert bytes(logprobs[1]["bytes"]).decode() == " you"
    assert [token["logprob"] for token in logprobs] == pytest.approx([-0.1054, -7.6009, 0.0], abs=1e-4)


def test_verbose_json_has_segments_with_their_words_and_words_where_they_are_asked_for():
    verbose = answer(TALK, asked(response_format="verbose_json", language="en"))
    assert (verbose["duration"], verbose["language"], "words" in verbose) == (3.2, "en", False)
    assert [(part["id"], part["start"], part["end"], part["text"]) for part in verbose["segments"]] == [
        (0, 0.0, 1.0, "hello you"),
        (1, 2.0, 3.0, "there"),
    ]
    only_words = answer(TALK, asked(("timestamp_granularities[]", "word"), response_format="verbose_json"))
    assert "segments" not in only_words
    assert only_words["words"][0] == {"word": "hello", "start": 0.1, "end": 0.5, "confidence": 0.9}


def test_each_word_is_in_one_segment_also_where_it_begins_at_the_end_of_one():
    times = {"yes": (0.2, 0.5), "no": (1.0, 1.0), "go": (1.9, 2.3), "on": (3.0, 3.0)}
    words = tuple(Word(text, start, end, 0.9) for text, (start, end) in times.items())
    talk = Transcript("yes no go on", words, 3.0, "a.wav", segments=(Span(0.1, 1.0), Span(2.0, 3.0)))
    segments = answer(talk, asked(response_format="verbose_json"))["segments"]
    assert [part["text"] for part in segments] == talk.segment_texts() == ["yes no", "go on"]


def test_an_empty_recording_has_an_answer_in_each_format():
    silence = Transcript("", (), 1.0, "a.wav")
    for name in ("json", "text", "srt", "vtt", "verbose_json"):
        assert answer(silence, asked(response_format=name)) is not None
    assert answer(silence, asked(response_format="verbose_json"))["segments"][0]["no_speech_prob"] == 1.0


def test_texts_without_spaces_have_none_in_segments_and_logprobs():
    chinese = Transcript("你好", (Word("你", 0.0, 0.1, 1.0), Word("好", 0.2, 0.3, 1.0)), 1.0, "a.wav")
    assert answer(chinese, asked(response_format="verbose_json"))["segments"][0]["text"] == "你好"
    assert [token["token"] for token in done_event(chinese, asked(include="logprobs"))["logprobs"]] == ["你", "好"]


def test_kinds_of_errors_are_those_of_openai():
    kinds = {status: ApiError(status, "").as_json()["error"]["type"] for status in (400, 401, 413, 429, 503)}
    assert kinds == {
        400: "invalid_request_error",
        401: "authentication_error",
        413: "invalid_request_error",
        429: "rate_limit_error",
        503: "server_error",
    }
