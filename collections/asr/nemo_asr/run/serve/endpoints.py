"""The table of endpoints: the application takes its routes from it, and /openapi.json is made of it. No HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_asr.run.serve.openai_api import FIELDS, FormField

# Any: values of JSON.

_DESCRIPTION = (
    "OpenAI's transcription API over the models of this server, and a websocket for live speech. Where the server has "
    "a token, requests need the header Authorization: Bearer TOKEN."
)
_FORBIDDEN = "a name in the address, or a page, that is not the server's own"


@dataclass(frozen=True)
class Endpoint:
    """A path of the API, and what it takes and gives.

    Attributes:
        path: ``{name}`` in it stands for a parameter.
        operation: a word that names the endpoint; the application finds its handler by it.
        summary: one line.
        answers: what each status means.
        description: all of it; "": the summary says it.
        method: of HTTP.
        parameters: what each parameter of the path means.
        form: the fields of the body; the file is needed.
        example: a command, in which ADDRESS stands for the server's.
    """

    path: str
    operation: str
    summary: str
    answers: Mapping[int, str]
    description: str = ""
    method: str = "GET"
    parameters: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, FormField] = field(default_factory=dict)
    example: str = ""

    def as_json(self) -> dict[str, Any]:
        """An operation of OpenAPI."""
        operation: dict[str, Any] = {"operationId": self.operation, "summary": self.summary}
        if self.description:
            operation["description"] = self.description
        if self.parameters:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
                for name, text in self.parameters.items()
            ]
        if self.form:
            fields = {f"{name}[]" if about.is_list else name: about.schema() for name, about in self.form.items()}
            schema = {"type": "object", "required": ["file"], "properties": fields}
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
        operation["responses"] = {str(status): {"description": text} for status, text in self.answers.items()}
        if self.example:
            operation["x-example"] = self.example
        return operation


_OF_TEXTS = {
    200: "the text in the format that was asked for",
    400: "a field or the recording cannot be used; the message says why",
    401: "no token, or a wrong one",
    403: _FORBIDDEN,
    404: "there is no such model",
    408: "the body came too slowly",
    413: "the file is too large, or the recording too long or of too many samples",
    429: "too many requests are open; Retry-After says when to come again",
    500: "the model has failed",
    503: "the answer took too long, or the server is about to end",
    507: "there is no place on the disk for a temporary file",
}
ENDPOINTS = (
    Endpoint(
        "/v1/audio/transcriptions",
        "transcribe",
        "The text of a recording",
        _OF_TEXTS,
        description="The text of a recording. Fields that are not listed have no effect; the answer's header "
        "X-Ignored-Fields names them, and X-Model the model.",
        method="POST",
        form=FIELDS,
        example="curl ADDRESS/v1/audio/transcriptions -F file=@a.wav -F response_format=verbose_json "
        "-F 'timestamp_granularities[]=word'",
    ),
    Endpoint(
        "/v1/audio/translations",
        "translate",
        "What is said in a recording, in English",
        _OF_TEXTS,
        description="What is said in a recording, in English, by a model that translates, such as Whisper or Canary; "
        "other models answer 400. Fields are those of /v1/audio/transcriptions.",
        method="POST",
        form=FIELDS,
        example="curl ADDRESS/v1/audio/translations -F file=@a.wav -F language=de",
    ),
    Endpoint(
        "/v1/stream",
        "stream",
        "A websocket: samples in, partial and final texts out",
        {101: "the websocket is open", 403: _FORBIDDEN, 426: "the request asks for no websocket"},
        description='A websocket. First, if wanted, {"type": "start", "sample_rate": 16000, "model": "", "language": '
        '"", "task": "transcribe" or "translate", "keywords": [], "token": ""}; then binary messages with samples of '
        'one channel, 16 bits, little endian; at the end {"type": "stop"}. The server sends {"type": "partial" or '
        '"final", "text", "start", "end", "words"}: a partial text is replaced by the next one, and a final one has '
        '"unfamiliar", a list of reasons, where the model may not know what it hears; and {"type": "done", "text"} '
        'behind the last. {"type": "error", "message"} ends a stream. The bytes of a file (WebM, OGG, MP3, WAV, ...) '
        "are no samples.",
    ),
    Endpoint(
        "/v1/models",
        "models",
        "The models of this server",
        {200: "a list; languages are those that a request may tell, translates says whether it may ask for English"},
    ),
    Endpoint(
        "/v1/models/{name}",
        "model",
        "One of them",
        {200: "the model", 404: "there is no such model"},
        parameters={"name": "as /v1/models lists it"},
    ),
    Endpoint("/health", "health", "Whether the server is ready; needs no token", {200: "it is"}),
    Endpoint("/metrics", "metrics", "Counters, gauges and histograms for Prometheus", {200: "text, version 0.0.4"}),
)


def openapi_document() -> dict[str, Any]:
    """The description of the API, in the form of OpenAPI 3.1."""
    info = {"title": "nemo-lite serve", "version": "1", "description": _DESCRIPTION}
    paths = {endpoint.path: {endpoint.method.lower(): endpoint.as_json()} for endpoint in ENDPOINTS}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
