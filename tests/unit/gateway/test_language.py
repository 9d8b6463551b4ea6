"""The published language can be read by programs of any make."""

from __future__ import annotations

import jsonschema
import pytest

from services.gateway.routers import language
from shared.events import event_types
from shared.events.run import RunCompleted
from tests.requirements import covers
from tests.unit.gateway.conftest import World


@covers("api.schemas")
async def test_every_type_has_a_schema_that_its_events_fit(world: World) -> None:
    listed = (await world.client.get("/schemas")).json()["schemas"]
    assert {row["type"] for row in listed} >= {"run.submitted", "llm.completed", "tool.completed", "project.created"}
    for row in listed:
        schema = (await world.client.get(row["href"])).json()
        jsonschema.Draft202012Validator.check_schema(schema)
    schema = (await world.client.get("/schemas/run.completed/v1")).json()
    jsonschema.validate(RunCompleted(reply="x").model_dump(mode="json"), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"reply": 5}, schema)


async def test_an_unknown_type_or_version_is_not_found_and_says_which_exists(world: World) -> None:
    assert (await world.client.get("/schemas/run.dreamt/v1")).json()["field"] == "type"
    body = (await world.client.get("/schemas/run.completed/v9")).json()
    assert (body["status"], body["field"]) == (404, "version")
    assert "/schemas/run.completed/v1" in body["detail"]


async def test_the_asyncapi_document_has_a_channel_for_every_type_and_no_dangling_reference(world: World) -> None:
    document = (await world.client.get("/asyncapi.json")).json()
    assert document == language.document()
    assert document["asyncapi"] == "3.0.0"
    assert set(document["channels"]) == set(event_types())
    assert document["channels"]["run.completed"]["address"] == "aetherium.evt.run.{scope}.completed"
    for operation in document["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in document["channels"]
    for name, message in document["components"]["messages"].items():
        assert (await world.client.get(message["payload"]["$ref"])).status_code == 200, name


async def test_openapi_describes_the_bodies(world: World) -> None:
    document = (await world.client.get("/openapi.json")).json()
    body = document["paths"]["/api/orchestrator/run-from-template"]["post"]["requestBody"]
    fields = body["content"]["application/json"]["schema"]["properties"]
    assert {"templateId", "projectName", "message"} <= set(fields)


async def test_the_gateway_says_that_it_lives_is_ready_and_how_it_does(world: World) -> None:
    assert (await world.client.get("/healthz")).json() == {"status": "ok"}
    assert (await world.client.get("/readyz")).json() == {"status": "ready", "missing": {}}
    assert "aetherium_gateway_subscribers" in (await world.client.get("/metrics")).text
