"""OpenAI's transcription API: the fields of a request, the shapes of answers and errors. Values only, no HTTP."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nemo_asr.run.audio.segments import Cutting, Span
from nemo_asr.run.engines import Prompt
from nemo_asr.run.transcribe.transcript import FORMATS, Transcript, Word
from nemo_lite.base.errors import UsageError, did_you_mean
from nemo_lite.base.files import FileKind, parse_json

# Any: values of JSON.

RESPONSE_FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
OPENAI_MODELS = ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-transcribe")
"""Names that clients send by default: they mean the first model."""
_OF_SPEAKERS = ("known_speaker_names", "known_speaker_references")
_INDEX = re.compile(r"\[\d{0,4}\]$", re.ASCII)  # lists come as name[] and as name[0], name[1]
_JSON = FileKind("the JSON", 1 << 20)
_MOST_KEYWORDS, _MOST_KEYWORD_CHARACTERS, _MOST_CHARACTERS = 1000, 200, 10_000  # how many, of one, of all
_LEAST_PROBABILITY = 5e-4  # confidences have three digits


@dataclass(frozen=True)
class FormField:
    """A field of a request's form.

    Attributes:
        meaning: one line.
        type: of a value, as JSON schema calls it.
        values: all that there are; (): others, too.
        is_list: whether it may come several times, as ``name[]``.
        more: further keys of its schema.
    """

    meaning: str
    type: str = "string"
    values: tuple[str, ...] = ()
    is_list: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    def schema(self) -> dict[str, Any]:
        """The field in JSON schema."""
        item = {"type": self.type, **({"enum": list(self.values)} if self.values else {}), **self.more}
        return {**({"type": "array", "items": item} if self.is_list else item), "description": self.meaning}


FIELDS: Mapping[str, FormField] = {
    "file": FormField(
        "WAV, FLAC, MP3, OGG, Opus; with PyAV on the server also M4A, MP4, WebM", more={"format": "binary"}
    ),
    "model": FormField(
        "a name of /v1/models; OpenAI's names mean the first one, and where there is one model every name does"
    ),
    "response_format": FormField(
        "json: the text; srt, vtt: subtitles; verbose_json: also the segments between pauses, and words",
        values=RESPONSE_FORMATS,
        more={"default": "json"},
    ),
    "timestamp_granularities": FormField(
        "of verbose_json; words have their confidence", values=("word", "segment"), is_list=True
    ),
    "include": FormField("of json: the logarithm of each word's confidence", values=("logprobs",), is_list=True),
    "keywords": FormField(
        "hot words and phrases, which become more probable; phrase:weight has its own weight", is_list=True
    ),
    "stream": FormField("server-sent events: the text of each segment as soon as it is known", "boolean"),
    "chunking_strategy": FormField(
        'auto, or JSON: {"type": "server_vad", "silence_duration_ms": 400, "prefix_padding_ms": 150}'
    ),
    "language": FormField(
        "that is spoken, of a model that takes it: as nemo-lite models show lists it, such as en; with other models it "
        "has no effect"
    ),
}
"""The fields that are read; all others have no effect."""


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: one line.
        param: the field that is wrong.
        code: a word for programs.
        retry_after: seconds after which it may be tried again.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def as_json(self) -> dict[str, Any]:
        """In OpenAI's form."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        model: a name, or "".
        language: as given, or "".
        translate: whether the text is to be English, whatever is spoken.
        response_format: one of `RESPONSE_FORMATS`.
        words, segments: what ``verbose_json`` has beside the text.
        logprobs: whether ``json`` has the logarithms of confidences.
        keywords: hot words.
        stream: whether texts come as events.
        cutting: where recordings are cut; None: not at all.
        ignored: names of fields that have no effect here.
    """

    model: str
    language: str
    translate: bool
    response_format: str
    words: bool
    segments: bool
    logprobs: bool
    keywords: tuple[str, ...]
    stream: bool
    cutting: Cutting | None
    ignored: tuple[str, ...]


def asked_for(fields: Sequence[tuple[str, Any]], cutting: Cutting | None, translate: bool = False) -> Asked:
    """What the fields of a form ask for.

    Args:
        fields: names and texts, in their order; ``name[]`` and ``name[0]`` count as ``name``, empty texts as none.
        cutting: where recordings are cut if ``chunking_strategy`` does not say it.
        translate: whether the text is to be English.

    Raises:
        ApiError: a value that is not known, or a field that this server cannot take.
    """
    values: dict[str, list[str]] = {}
    for name, value in fields:
        if isinstance(value, str) and value.strip():
            values.setdefault(_INDEX.sub("", name), []).append(value)
    for name in set(_OF_SPEAKERS) & values.keys():
        text = f"{name}: this server does not tell speakers apart; leave the field out"
        raise ApiError(400, text, param=name)
    response_format = _choice(values, "response_format", FIELDS["response_format"].values) or "json"
    granularities = _choices(values, "timestamp_granularities", FIELDS["timestamp_granularities"].values)
    stream = _choice(values, "stream", ("true", "false", "True", "False", "1", "0")) in ("true", "True", "1")
    if stream and response_format not in ("json", "text"):
        raise ApiError(400, f"stream: got response_format {response_format}, wanted json or text", param="stream")
    chunking = [name for name in values if name.partition("[")[0] == "chunking_strategy"]
    return Asked(
        model=_last(values, "model"),
        language=_last(values, "language"),
        translate=translate,
        response_format=response_format,
        words="word" in granularities,
        segments="segment" in granularities or not granularities,
        logprobs="logprobs" in _choices(values, "include", FIELDS["include"].values),
        keywords=checked_keywords([word for text in values.get("keywords", []) for word in _items(text)]),
        stream=stream,
        cutting=_cutting({name: values[name][-1] for name in chunking}, cutting),
        ignored=tuple(name for name in values if name not in FIELDS and name not in chunking),
    )


def prompt_of(language: str, translate: bool, languages: Sequence[str], translates: bool) -> Prompt:
    """What a request tells its model.

    Args:
        language: that is spoken; "": not said.
        translate: whether the text is to be English.
        languages: that the model can be told; none: a language has no effect.
        translates: whether the model can write English.

    Raises:
        ApiError: the model does not know the language, or does not translate.
    """
    if translate and not translates:
        text = "model: this one does not translate; ask for a transcription, or another model"
        raise ApiError(400, text, param="model")
    known = {each.casefold(): each for each in languages}
    if language and known and language.casefold() not in known:
        wanted = f"one of {', '.join(languages)}"
        raise ApiError(400, f"language: got {language[:60]!r}, wanted {wanted}", param="language")
    return Prompt(known.get(language.casefold(), ""), translate)


def checked_keywords(words: Sequence[str]) -> tuple[str, ...]:
    """Hot words of a request, each once.

    Raises:
        ApiError: they are too many or too long, or one names a file.
    """
    keywords = tuple(dict.fromkeys(filter(None, (word.strip() for word in words))))
    lengths = [len(word) for word in keywords]
    is_long = max(lengths, default=0) > _MOST_KEYWORD_CHARACTERS or sum(lengths) > _MOST_CHARACTERS
    if len(keywords) > _MOST_KEYWORDS or is_long:
        each = f"at most {_MOST_KEYWORDS} of at most {_MOST_KEYWORD_CHARACTERS} characters"
        wanted = f"{each}, {_MOST_CHARACTERS} in all"
        raise ApiError(400, f"keywords: there is too much of them: wanted {wanted}", param="keywords")
    if any(word.startswith("@") for word in keywords):  # on a command line it is a file with words
        raise ApiError(400, "keywords: got a word that begins with @, wanted words or phrases", param="keywords")
    return keywords


def json_of(text: str) -> Any:
    """The value that a text of a client stands for. ValueError where it is no JSON, or nested too deeply."""
    return parse_json(text, "", _JSON)


def _last(values: Mapping[str, list[str]], name: str) -> str:
    return values.get(name, [""])[-1].strip()


def _items(text: str) -> list[str]:
    """A text as it is, or the texts of a list in JSON."""
    if text.startswith("["):
        try:
            items = json_of(text)
        except ValueError:
            return [text]
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return items
    return [text]


def _choices(values: Mapping[str, list[str]], name: str, known: Sequence[str]) -> list[str]:
    chosen = [item for text in values.get(name, []) for item in _items(text)]
    for value in chosen:
        if value not in known:
            wanted = f"{', '.join(known)}{did_you_mean(value, known)}"
            raise ApiError(400, f"{name}: got {value[:60]!r}, wanted {wanted}", param=name)
    return chosen


def _choice(values: Mapping[str, list[str]], name: str, known: Sequence[str]) -> str:
    return (["", *_choices(values, name, known)])[-1]


def _cutting(fields: Mapping[str, str], cutting: Cutting | None) -> Cutting | None:
    """``auto``; or ``server_vad`` with its padding and the silence that ends a segment, as JSON or field by field."""
    name = "chunking_strategy"
    strategy: Any = {key.partition("[")[2].removesuffix("]"): value for key, value in fields.items() if key != name}
    if text := fields.get(name, "").strip():
        try:
            strategy = json_of(text) if text.startswith("{") else {"type": text}
        except ValueError:
            strategy = {"type": text}
    if not strategy or strategy.get("type") == "auto":
        return cutting
    if strategy.get("type") != "server_vad":
        got = str(strategy.get("type"))[:60]
        raise ApiError(400, f"{name}: got {got!r}, wanted auto or server_vad", param=name)
    try:
        values = {
            "padding": float(strategy["prefix_padding_ms"]) / 1000 if "prefix_padding_ms" in strategy else None,
            "min_pause": float(strategy["silence_duration_ms"]) / 1000 if "silence_duration_ms" in strategy else None,
        }
        return replace(cutting or Cutting(), **{key: value for key, value in values.items() if value is not None})
    except (ValueError, TypeError, UsageError) as error:
        raise ApiError(400, f"{name}: {error}", param=name) from None


def answer(transcript: Transcript, asked: Asked) -> str | dict[str, Any]:
    """A text, or an object that becomes JSON."""
    if asked.response_format in MEDIA_TYPES:
        return FORMATS[asked.response_format](transcript)
    shared = {"text": transcript.text, "usage": {"type": "duration", "seconds": math.ceil(transcript.duration)}}
    if transcript.unfamiliar:  # ours: why the model may not know what it hears
        shared["unfamiliar"] = list(transcript.unfamiliar)
    if asked.response_format == "json":
        return {**shared, **_logprobs(transcript, asked)}
    task, language = ("translate", "en") if asked.translate else ("transcribe", asked.language)
    verbose = {"task": task, "language": language, "duration": transcript.duration, **shared}
    if asked.segments:
        verbose["segments"] = [_segment(number, *part) for number, part in enumerate(_parts(transcript))]
    if asked.words:
        verbose["words"] = [_word(word) for word in transcript.words]
    return verbose


def _word(word: Word) -> dict[str, Any]:
    """OpenAI's fields, and the confidence."""
    return {"word": word.text, "start": word.start, "end": word.end, "confidence": word.confidence}


def delta_event(text: str) -> dict[str, Any]:
    """The text of a segment, while others are still computed."""
    return {"type": "transcript.text.delta", "delta": text}


def done_event(transcript: Transcript, asked: Asked) -> dict[str, Any]:
    """The last event."""
    return {"type": "transcript.text.done", "text": transcript.text, **_logprobs(transcript, asked)}


def _logprobs(transcript: Transcript, asked: Asked) -> dict[str, Any]:
    """One for each word: the logarithm of its confidence."""
    if not asked.logprobs:
        return {}
    tokens = [
        word.text if number == 0 else transcript.separator + word.text for number, word in enumerate(transcript.words)
    ]
    return {
        "logprobs": [
            {"token": token, "bytes": list(token.encode()), "logprob": round(_log(word.confidence), 4)}
            for token, word in zip(tokens, transcript.words, strict=True)
        ]
    }


def _log(confidence: float) -> float:
    return math.log(max(confidence, _LEAST_PROBABILITY))


def _parts(transcript: Transcript) -> list[tuple[Span, list[Word], str]]:
    """Each segment of a recording with its words and what stands between them."""
    if not transcript.segments:
        return [(Span(0.0, transcript.duration), list(transcript.words), transcript.separator)]
    words = transcript.segment_words()
    return [(span, inside, transcript.separator) for span, inside in zip(transcript.segments, words, strict=True)]


def _segment(number: int, span: Span, words: Sequence[Word], separator: str) -> dict[str, Any]:
    """A segment in Whisper's form; a model of CTC has no tokens of text and no temperature."""
    text = separator.join(word.text for word in words)
    content = text.encode()
    logs = [_log(word.confidence) for word in words]
    return {
        "id": number,
        "seek": 0,
        "start": span.start,
        "end": span.end,
        "text": text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": round(sum(logs) / len(logs), 4) if logs else 0.0,
        "compression_ratio": round(len(content) / len(zlib.compress(content)), 3),
        "no_speech_prob": 0.0 if words else 1.0,
    }
