"""The published language, for readers of any make: JSON Schemas of all facts, and how to subscribe to them."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter

from shared import subjects
from shared.errors import NotFound
from shared.events import event_types

API = APIRouter(tags=["language"])


@API.get("/schemas")
async def list_schemas() -> dict[str, Any]:
    """Every type of fact."""
    rows = [{"type": name, "version": model.VERSION, "href": _href(name, model.VERSION)} for name, model in sorted(event_types().items())]
    return {"schemas": rows}


@API.get("/schemas/{event_type}/v{version}")
async def get_schema(event_type: str, version: int) -> dict[str, Any]:
    """The JSON Schema of a type's body. Readers get today's version: what older engines stored is upcast."""
    model = event_types().get(event_type)
    if model is None:
        raise NotFound(f"no type {event_type!r}: GET /schemas lists those that exist", field="type")
    if version != model.VERSION:
        raise NotFound(f"{event_type} is at version {model.VERSION}: GET {_href(event_type, model.VERSION)}", field="version")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": _href(event_type, version), **model.model_json_schema()}


@API.get("/asyncapi.json")
async def asyncapi() -> dict[str, Any]:
    """An AsyncAPI 3 document of the subjects on NATS and the facts on them."""
    return document()


@cache
def document() -> dict[str, Any]:
    channels: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, model in sorted(event_types().items()):
        domain, fact = name.split(".")
        channels[name] = {
            "address": subjects.fact(domain, "{scope}", fact),
            "parameters": {
                "scope": {"description": "The aggregate: a run's GUID for run, llm, tool and signal; a project's number for project."}
            },
            "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        }
        messages[name] = {
            "name": name,
            "summary": (model.__doc__ or "").strip().partition("\n")[0],
            "contentType": "application/json",
            "headers": {"$ref": "#/components/schemas/headers"},
            "payload": {"$ref": _href(name, model.VERSION)},
        }
        operations[f"on_{domain}_{fact}"] = {"action": "receive", "channel": {"$ref": f"#/channels/{name}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Aetherium facts",
            "version": "1",
            "description": f"JetStream stream {subjects.STREAM}, subjects {subjects.EVENTS}.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {"headers": HEADERS}},
    }


HEADERS: dict[str, Any] = {
    "type": "object",
    "description": "CloudEvents 1.0, binary mode over NATS headers.",
    "required": ["ce-specversion", "ce-id", "ce-type", "ce-source", "ce-subject", "ce-time", "ce-dataschema"],
    "properties": {
        "ce-specversion": {"const": "1.0"},
        "ce-id": {"type": "string", "description": "Also the Nats-Msg-Id."},
        "ce-type": {"type": "string"},
        "ce-source": {"type": "string"},
        "ce-subject": {"type": "string", "description": "The scope."},
        "ce-time": {"type": "string", "format": "date-time"},
        "ce-dataschema": {"type": "string", "description": "Carries the version: /schemas/<type>/v<n>."},
        "ce-causationid": {"type": "string", "description": "The id of the fact that led to this one."},
        "traceparent": {"type": "string", "description": "The trace that the run belongs to."},
    },
}


def _href(event_type: str, version: int) -> str:
    return f"/schemas/{event_type}/v{version}"
