"""Runs that begin with files, and what a run does otherwise than its template says."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.requests import MAX_FILES, MAX_FILES_BYTES, RunFromTemplate, RunOnProject
from shared.events.run import RunSubmitted
from shared.ids import digest
from shared.template import Template, parse_template
from tests.requirements import covers
from tests.unit.gateway.conftest import ASK, World

FROM_TEMPLATE = "/api/orchestrator/run-from-template?wait=false"


async def submitted(world: World) -> RunSubmitted:
    event = (await world.submitted())[-1].event
    assert isinstance(event, RunSubmitted)
    return event


async def template_of(world: World) -> Template:
    return parse_template(await world.gateway.blobs.get((await submitted(world)).template), "blob")


@covers("api.files")
async def test_the_files_of_a_request_are_kept_with_the_run(world: World) -> None:
    files = {"src/main.py": "print('hällo')\n", "empty.txt": ""}
    await world.start_run(files=files)
    kept = (await submitted(world)).files
    assert {each.path: (await world.gateway.blobs.get(each.content)).decode() for each in kept} == files


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../../x", "~/x", "a//b", "./a", "a/.", "a/", "a\\b", "a\nb", "a\x7fb", "x" * 256, "ä" * 128],
)
async def test_a_path_that_is_not_plain_and_inside_is_refused_with_its_field(world: World, path: str) -> None:
    answer = await world.client.post(FROM_TEMPLATE, json={**ASK, "files": {path: "x"}})
    assert (answer.status_code, answer.json()["field"]) == (422, "files")
    assert world.log.facts == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({f"{n}.txt": "" for n in range(MAX_FILES + 1)}, f"at most {MAX_FILES} are taken"),
        ({"a": "ä" * (MAX_FILES_BYTES // 2), "b": "x"}, f"at most {MAX_FILES_BYTES} are taken"),
        ({"a": "x", "a/b": "y"}, "cannot be a file and the folder of 'a/b'"),
    ],
)
def test_more_than_the_limits_is_refused(files: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RunFromTemplate.model_validate({**ASK, "files": files})
    fits = dict(list(files.items())[1:])
    assert RunFromTemplate.model_validate({**ASK, "files": fits}).files == fits


async def test_a_content_that_is_no_text_is_refused_with_its_path(world: World) -> None:
    answer = await world.client.post(FROM_TEMPLATE, json={**ASK, "files": {"a.txt": 7}})
    assert (answer.status_code, answer.json()["field"]) == (422, "files.a.txt")


async def test_a_run_may_switch_mechanisms_and_choose_a_slot_and_keeps_that_with_its_template(world: World) -> None:
    await world.start_run(overrides={"features": {"reask": False, "constrainedTurns": "never"}, "slot": "fast"})
    template = await template_of(world)
    assert (template.features.reask, template.features.constrained_turns, template.features.hold_to_request) == (False, "never", True)
    assert {node.preferred_instance for node in template.nodes} == {"fast"}


@pytest.mark.parametrize(
    ("features", "field"),
    [
        ({"reask": "perhaps"}, "overrides.features.reask"),
        ({"unheard": True}, "overrides.features.unheard"),
        ({"constrainedTurns": "x"}, "overrides.features.constrainedTurns"),
    ],
)
async def test_a_mechanism_that_does_not_exist_is_named(world: World, features: dict[str, Any], field: str) -> None:
    answer = await world.client.post(FROM_TEMPLATE, json={**ASK, "overrides": {"features": features}})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_other_files_or_mechanisms_make_another_request() -> None:
    asks = [
        {},
        {"files": {"a.txt": "1"}},
        {"files": {"a.txt": "2"}},
        {"overrides": {"features": {"reask": False}}},
        {"overrides": {"slot": "fast"}},
    ]
    assert len({RunFromTemplate.model_validate({**ASK, **more}).digest() for more in asks}) == len(asks)


def test_a_request_without_the_later_fields_has_the_digest_that_earlier_engines_stored() -> None:
    earlier: dict[str, Any] = {
        "message": "More.",
        "source_agent": "ui",
        "overrides": {
            "model_id": None,
            "temperature": None,
            "seed": None,
            "budgets": {"model_calls": None, "tokens": None, "tool_calls": None, "wall_s": None},
        },
        "project_id": 1,
    }
    ask = RunOnProject.model_validate({"message": "More.", "projectId": 1})
    assert ask.digest() == digest({"kind": "RunOnProject", **earlier})
    assert RunOnProject.model_validate({"message": "More.", "projectId": 1, "overrides": {}}).digest() == ask.digest()
