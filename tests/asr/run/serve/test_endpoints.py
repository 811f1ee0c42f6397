"""The table of endpoints, and the document that is made of it."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")

from nemo_asr.run.serve.app import Server
from nemo_asr.run.serve.endpoints import ENDPOINTS, Endpoint, openapi_document
from nemo_asr.run.serve.openai_api import FIELDS, FormField

# What clients were made for: path, method and name of each operation, with its parameters and statuses.
OPERATIONS = {
    "/v1/audio/transcriptions": ("post", "transcribe", [], [200, 400, 401, 403, 404, 408, 413, 429, 500, 503, 507]),
    "/v1/audio/translations": ("post", "translate", [], [200, 400, 401, 403, 404, 408, 413, 429, 500, 503, 507]),
    "/v1/stream": ("get", "stream", [], [101, 403, 426]),
    "/v1/models": ("get", "models", [], [200]),
    "/v1/models/{name}": ("get", "model", ["name"], [200, 404]),
    "/health": ("get", "health", [], [200]),
    "/metrics": ("get", "metrics", [], [200]),
}
FORM = {
    "file": {"type": "string", "format": "binary"},
    "model": {"type": "string"},
    "response_format": {"type": "string", "enum": ["json", "text", "srt", "vtt", "verbose_json"], "default": "json"},
    "timestamp_granularities[]": {"type": "array", "items": {"type": "string", "enum": ["word", "segment"]}},
    "include[]": {"type": "array", "items": {"type": "string", "enum": ["logprobs"]}},
    "keywords[]": {"type": "array", "items": {"type": "string"}},
    "stream": {"type": "boolean"},
    "chunking_strategy": {"type": "string"},
    "language": {"type": "string"},
}


def test_the_document_has_the_operations_parameters_and_statuses_that_clients_know() -> None:
    document = openapi_document()
    assert document["openapi"] == "3.1.0"
    operations = {
        path: (
            method,
            about["operationId"],
            [parameter["name"] for parameter in about.get("parameters", [])],
            [int(status) for status in about["responses"]],
        )
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }
    assert operations == OPERATIONS


def test_the_form_has_the_fields_and_schemas_that_clients_know() -> None:
    body = openapi_document()["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]
    assert body["required"]
    schema = body["content"]["multipart/form-data"]["schema"]
    assert schema["required"] == ["file"]
    described = {
        name: {key: value for key, value in field.items() if key != "description"}
        for name, field in schema["properties"].items()
    }
    assert described == FORM


def test_a_path_has_the_parameters_that_are_described() -> None:
    for endpoint in ENDPOINTS:
        assert [name for name in endpoint.parameters if f"{{{name}}}" not in endpoint.path] == []
        assert endpoint.path.count("{") == len(endpoint.parameters)


def test_the_application_takes_its_routes_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    more = Endpoint("/v2/health", "health", "The same", {200: "it is"})
    monkeypatch.setattr("nemo_asr.run.serve.app.ENDPOINTS", (*ENDPOINTS, more))
    assert "/v2/health" in {getattr(route, "path", "") for route in Server(None).app().routes}


def test_an_endpoint_without_a_handler_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_asr.run.serve.app.ENDPOINTS", (Endpoint("/v2/new", "new", "New", {}),))
    with pytest.raises(KeyError, match="new"):
        Server(None).app()


def test_a_list_says_what_its_items_may_be() -> None:
    field = FormField("some", values=("a", "b"), is_list=True)
    assert field.schema() == {
        "type": "array",
        "items": {"type": "string", "enum": ["a", "b"]},
        "description": "some",
    }
    assert FIELDS["stream"].schema()["type"] == "boolean"
