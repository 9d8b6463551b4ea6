"""Templates: the shipped ones, a user's own, and broken files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.gateway import templates
from shared.errors import NotFound
from tests.unit.gateway.conftest import World


def own(folder: Path, file: str, **fields: object) -> None:
    folder.mkdir(exist_ok=True)
    template = {"id": "mine", "name": "Mine", "nodes": [{"id": "a", "name": "A", "system_prompt": "Do it."}]}
    (folder / file).write_text(json.dumps({**template, **fields}))


def test_the_shipped_template_can_run_a_script() -> None:
    template = templates.read(Path("nowhere")).get("quick-script")
    coder = template.node("coder")
    assert template.topology == "single"
    assert coder.mcp_servers == ("workspace", "shell")
    assert coder.tools == ("read_file", "write_file", "edit_file", "list_files", "search_files", "run_shell")


def test_a_users_template_is_added_and_overrides_by_id(tmp_path: Path) -> None:
    own(tmp_path / "t", "a.json")
    own(tmp_path / "t", "b.json", id="quick-script", name="My script")
    library = templates.read(tmp_path / "t")
    assert library.get("mine").name == "Mine"
    assert library.get("quick-script").name == "My script"
    assert not library.broken


def test_an_unknown_template_names_those_that_exist() -> None:
    with pytest.raises(NotFound, match=r"no template 'nope'.*quick-script"):
        templates.read(Path("nowhere")).get("nope")


async def test_a_broken_file_is_reported_and_hides_no_other(world: World) -> None:
    folder = world.gateway.user_templates
    own(folder, "good.json")
    own(folder, "typo.json", topologie="single")
    (folder / "text.json").write_text("not json")
    body = (await world.client.get("/api/templates")).json()
    assert {row["id"] for row in body["templates"]} >= {"mine", "quick-script"}
    reasons = {row["file"]: row["reason"] for row in body["broken"]}
    assert set(reasons) == {"typo.json", "text.json"}
    assert "topologie" in reasons["typo.json"]


async def test_a_template_is_shown_in_the_form_of_its_file(world: World) -> None:
    body = (await world.client.get("/api/templates/quick-script")).json()
    assert body["nodes"][0]["id"] == "coder"
    assert (await world.client.get("/api/templates/nope")).status_code == 404
