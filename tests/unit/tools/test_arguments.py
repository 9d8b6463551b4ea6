"""The catalogue that a model is offered, and what is said to one that calls it wrongly."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from services.tools.servers import SERVERS, Ports, build_servers
from services.tools.servers.arguments import BadArguments, fitted
from services.tools.servers.base import CatalogueError, Tier, ToolSpec, catalogue, declare
from tests.requirements import covers
from tests.unit.tools.doubles import ScriptedRuntime


async def specs() -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in await catalogue(build_servers(Ports(ScriptedRuntime())))}


async def test_the_catalogue_holds_the_tools_of_every_registered_server() -> None:
    found = await specs()
    assert list(found) == ["read_file", "write_file", "edit_file", "list_files", "search_files", "run_shell"]
    assert len({spec.server for spec in found.values()}) == len(SERVERS)


async def test_tiers_and_annotations_say_what_may_be_repeated() -> None:
    found = await specs()
    assert {name for name, spec in found.items() if spec.read_only} == {"read_file", "list_files", "search_files"}
    assert {name for name, spec in found.items() if not spec.idempotent} == {"edit_file", "run_shell"}
    assert {name for name, spec in found.items() if spec.tier is Tier.ELEVATED} == {"run_shell"}
    assert found["run_shell"].destructive


async def test_the_openai_schema_is_compact_and_closed() -> None:
    function = (await specs())["read_file"].openai()["function"]
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File path relative to the workspace."},
            "start_line": {"type": "integer", "minimum": 1, "description": "First line to read, from 1."},
            "end_line": {"type": "integer", "minimum": 1, "description": "Last line to read; left out, reads to the end."},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    assert "title" not in json.dumps([spec.openai() for spec in (await specs()).values()])


def _tool(path: Annotated[str, Field(description="p")]) -> str:
    """Do."""
    return path


def _tool_without_words(path: Annotated[str, Field(description="p")]) -> str:
    return path


def _tool_with_a_bare_parameter(path: str) -> str:
    """Do."""
    return path


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (_tool_without_words, {"meta": {"aetherium/tier": "standard"}}, "no description"),
        (_tool_with_a_bare_parameter, {"meta": {"aetherium/tier": "standard"}}, "parameter 'path'"),
        (_tool, {}, "no tier"),
        (_tool, {"meta": {"aetherium/tier": "root"}}, "no tier"),
        (_tool, {"meta": {"aetherium/tier": "standard"}, "annotations": None}, "no complete annotations"),
        (_tool, {"meta": {"aetherium/tier": "standard"}, "annotations": ToolAnnotations(read_only_hint=True)}, "no complete annotations"),
    ],
)
async def test_a_tool_that_is_not_fully_declared_stops_the_start_and_is_named(function: Any, options: dict[str, Any], words: str) -> None:
    server = MCPServer("odd", log_level="WARNING")
    whole = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False)
    given: dict[str, Any] = {"annotations": whole, **options}
    server.add_tool(function, name="half_made", **given)
    with pytest.raises(CatalogueError, match=words) as error:
        await catalogue([server])
    assert "half_made" in str(error.value)


async def test_two_tools_of_one_name_stop_the_start() -> None:
    servers = [MCPServer("one", log_level="WARNING"), MCPServer("two", log_level="WARNING")]
    for server in servers:
        declare(server, tier=Tier.STANDARD)(_tool)
    with pytest.raises(CatalogueError, match="two tools are called '_tool': in 'one' and 'two'"):
        await catalogue(servers)


@covers("tool.arguments")
@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("read_file", {"file_path": "a"}, "read_file has no argument 'file_path'. Did you mean 'path'?"),
        ("read_file", {"path": "a", "startline": 1}, "read_file has no argument 'startline'. Did you mean 'start_line'?"),
        ("write_file", {"path": "a", "content": "", "mode": "w"}, "write_file has no argument 'mode'. Its arguments are path, content."),
        ("write_file", {"path": "a"}, "write_file needs 'content'."),
        ("edit_file", {}, "edit_file needs 'path' and 'old' and 'new'."),
        ("read_file", {"path": "a", "start_line": "two"}, "'start_line' of read_file must be a whole number, not \"two\"."),
        ("read_file", {"path": "a", "start_line": 0}, "'start_line' of read_file must be at least 1, not 0."),
        ("run_shell", {"command": "ls", "timeout_s": 9000}, "'timeout_s' of run_shell must be at most 600, not 9000."),
        ("write_file", {"path": "a", "content": {"x": 1}}, "'content' of write_file must be text, not {\"x\": 1}."),
        ("read_file", {"path": None}, "'path' of read_file must be text, not null."),
        ("read_file", {"path": "a", "start_line": True}, "'start_line' of read_file must be a whole number, not true."),
    ],
)
async def test_a_wrong_call_is_answered_with_one_sentence_and_a_right_call(tool: str, arguments: dict[str, Any], sentence: str) -> None:
    spec = (await specs())[tool]
    with pytest.raises(BadArguments) as refusal:
        fitted(spec, arguments)
    assert str(refusal.value) == f"{sentence} A right call: {tool}({json.dumps(spec.example)})"
    assert fitted(spec, spec.example) == spec.example


async def test_only_what_the_schema_declares_is_converted() -> None:
    found = await specs()
    assert fitted(found["read_file"], {"path": "1", "start_line": "3", "end_line": None}) == {"path": "1", "start_line": 3}
    for text in ('{"port": 8080, "debug": true}', "123", "true", "null", '["a"]'):
        assert fitted(found["write_file"], {"path": "a", "content": text})["content"] == text


async def test_lists_and_objects_are_unwrapped_where_they_are_declared() -> None:
    server = MCPServer("tags", log_level="WARNING")

    def tag(
        tags: Annotated[list[str], Field(description="t")],
        options: Annotated[dict[str, int] | None, Field(description="o")] = None,
        loud: Annotated[bool, Field(description="l")] = False,
    ) -> str:
        """Tag."""
        return f"{tags}{options}{loud}"

    declare(server, tier=Tier.STANDARD)(tag)
    spec = (await catalogue([server]))[0]
    assert fitted(spec, {"tags": '["config"]', "options": '{"a": 1}', "loud": "true"}) == {
        "tags": ["config"],
        "options": {"a": 1},
        "loud": True,
    }
    with pytest.raises(BadArguments, match=r"'tags' of tag must be a list, not \"config\""):
        fitted(spec, {"tags": "config"})
