"""Guided turns: one action a turn, sampled under a JSON schema (features O28). Pure.

Small models break JSON at the first quote inside a program, so a long text is not part of the action: it is
asked for in a turn of its own, as one fenced block.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from shared.ids import canonical

FINISH = "finish"
LONG_TEXT = "long-text"
COMMAND = "command-line"

_FENCE = re.compile(r"```[\w+.-]*[ \t]*\n?")
_FENCE_END = re.compile(r"(?:^|\n)```")
_SHORT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 160}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as guided turns see it: the arguments of an action, and the one that holds a long text."""

    name: str
    description: str
    arguments: Mapping[str, dict[str, Any]]
    long_text: str | None = None
    command: str | None = None

    @property
    def path(self) -> str | None:
        """The argument that names a file, if there is one."""
        return "path" if "path" in self.arguments else None

    @property
    def asked_apart(self) -> str | None:
        """The long text, where it is asked for in a turn of its own."""
        return None if self.long_text in self.arguments else self.long_text


@dataclass(frozen=True, slots=True)
class Action:
    """What the model chose; `reply` is set when it chose to finish."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """Equal for equal actions, whatever the order in which they were written."""
        return canonical([self.tool, self.arguments]).decode()

    @property
    def reply(self) -> str | None:
        return str(self.arguments.get("reply", "")) if self.tool == FINISH else None


def tools_of(schemas: Iterable[Mapping[str, Any]], *, text_apart: bool = True) -> tuple[Tool, ...]:
    """Tools from their OpenAI schemas; only required arguments are asked of a small model."""
    return tuple(_tool(schema["function"], text_apart=text_apart) for schema in schemas)


def _tool(function: Mapping[str, Any], *, text_apart: bool) -> Tool:
    parameters = cast(dict[str, Any], function["parameters"])
    required = cast(list[str], parameters.get("required", []))
    properties = {name: cast(dict[str, Any], parameters["properties"][name]) for name in required}
    by_format = {schema.get("format"): name for name, schema in properties.items()}
    long_text = by_format.get(LONG_TEXT)
    return Tool(
        name=function["name"],
        description=function["description"],
        arguments={name: schema for name, schema in properties.items() if not text_apart or name != long_text},
        long_text=long_text,
        command=by_format.get(COMMAND),
    )


def introduction(tools: Sequence[Tool]) -> str:
    """The part of the system prompt that says how to act."""
    lines = ["Call one tool per turn. Answer with one JSON object:"]
    for tool in tools:
        example = orjson.dumps({"tool": tool.name, **{name: "..." for name in tool.arguments}}).decode()
        more = f" You are asked for its {tool.asked_apart} next." if tool.asked_apart else ""
        lines.append(f"{example} {tool.description}{more}")
    lines.append('{"tool":"finish","reply":"..."} Ends the job, only when all of it is done.')
    if any(tool.command for tool in tools):
        lines.append("In commands, name all files of a kind by a pattern, such as docs/*.txt, and save output with > file.")
    lines.append("Do every part of the request, in its order. Use real results, never guess what a file or command says.")
    return "\n".join(lines)


def action_schema(
    tools: Sequence[Tool],
    *,
    may_finish: bool,
    barred: Collection[str] = (),
    narrow: Mapping[str, Sequence[str]] | None = None,
    path_only: Collection[str] = (),
) -> dict[str, Any]:
    """The `response_format` of a turn: exactly one call of an offered tool, or the finish where it is due.

    `barred` tools are left out; `narrow` gives the only paths that a tool may name; a `path_only` tool takes
    nothing but its path here, and is asked for the rest later.
    """
    options = [one for tool in tools if tool.name not in barred for one in _options(tool, narrow or {}, tool.name in path_only)]
    if may_finish or not options:
        options.append(_object(FINISH, {"reply": {"type": "string"}}))
    schema = options[0] if len(options) == 1 else {"anyOf": options}
    return {"type": "json_schema", "json_schema": {"name": "action", "strict": True, "schema": schema}}


def _options(tool: Tool, narrow: Mapping[str, Sequence[str]], path_only: bool) -> list[dict[str, Any]]:
    arguments = {name: _plain(schema) for name, schema in tool.arguments.items() if not path_only or name == tool.path}
    if tool.name in narrow and tool.path:
        if not narrow[tool.name]:
            return []  # there is no file that it could name
        arguments[tool.path] = {"enum": list(narrow[tool.name])}
    return [_object(tool.name, arguments)]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "string":
        return {key: value for key, value in schema.items() if key in ("type", "items", "enum", "properties", "required")}
    is_long = schema.get("format") in (COMMAND, LONG_TEXT) or schema.get("maxLength", 0) > 200
    return {"type": "string"} if is_long else dict(_SHORT)


def _object(tool: str, arguments: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"tool": {"const": tool}, **arguments},
        "required": ["tool", *arguments],
        "additionalProperties": False,
    }


def read_action(text: str) -> Action | None:
    """The action that a reply holds; None when it is not one whole JSON object."""
    try:
        said = orjson.loads(text.strip())
    except orjson.JSONDecodeError:
        return None
    if not isinstance(said, dict):
        return None
    fields = cast(dict[str, Any], said)
    name = fields.pop("tool", None)
    return Action(name, {key: _mended(value) for key, value in fields.items()}) if isinstance(name, str) else None


def _mended(value: Any) -> Any:
    """`\\b` and `\\f` of a regular expression, which JSON reads as control characters, as they were meant."""
    return value.replace("\x08", "\\b").replace("\x0c", "\\f") if isinstance(value, str) else value


def fenced_text(reply: str) -> str:
    """The content of the first fenced block, or of the whole reply where there is none; ends with a newline."""
    opening = _FENCE.search(reply)
    body = reply[opening.end() :] if opening else reply.strip("\n")
    body = _FENCE_END.split(body, maxsplit=1)[0].rstrip()
    return f"{body}\n" if body.strip() else ""
