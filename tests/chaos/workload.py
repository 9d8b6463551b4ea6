"""What the runs do while processes die: scripted conversations whose effects can be counted.

An effect is a line that a shell command appends to `effects.txt` in the run's own workspace. Each line is
unique in its run, so one that stands there twice was done twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import yaml

TEMPLATE_ID = "chaos"
EFFECTS = "effects.txt"

TEMPLATE: dict[str, Any] = {
    "id": TEMPLATE_ID,
    "name": "Chaos",
    "topology": "single",
    "nodes": [
        {
            "id": "worker",
            "name": "Worker",
            "system_prompt": "You append lines to a file, one command at a time.",
            "mcp_servers": ["workspace", "shell"],
            "tools": ["read_file", "write_file", "list_files", "search_files", "run_shell"],
            "max_tokens": 512,
        }
    ],
    "circuit_breaker": {"max_turns_per_agent": 12},
    "features": {"hold_to_request": False, "reask": False},
}


def _append(name: str, before_s: float, after_s: float) -> dict[str, Any]:
    """A command that is slow on both sides of its effect, so that a kill can land on either."""
    line = f"turn-${{turn}}-{name}"
    return {"name": "run_shell", "arguments": {"command": f"sleep {before_s}; echo {line} >> {EFFECTS}; sleep {after_s}"}}


_LOOKS: list[dict[str, Any]] = [
    {"name": "list_files", "arguments": {}},
    {"name": "search_files", "arguments": {"pattern": "turn"}},
    {"name": "search_files", "arguments": {"pattern": "line"}},
]
_SLOWLY = {"first_token_delay_s": 0.15, "delay_s": 0.03}

# Each kind of run with its turns. Several calls in one turn: those that read run beside each other, the rest in order.
KINDS: dict[str, list[dict[str, Any]]] = {
    "appends": [
        {"content": "First lines.", "tool_calls": [_append("a", 0.3, 0.3), _append("b", 0.2, 0)], **_SLOWLY},
        {"content": "More lines.", "tool_calls": [_append("a", 0, 0.1), _append("b", 0.1, 0), _append("c", 0, 0)], **_SLOWLY},
        {"content": "One more line.", "tool_calls": [_append("a", 0.4, 0.3)], **_SLOWLY},
        {"content": "All lines were appended, each of them once.", **_SLOWLY},
    ],
    "looks": [
        {"content": "Let me look.", "tool_calls": _LOOKS, **_SLOWLY},
        {"content": "Now a line.", "tool_calls": [_append("a", 0.3, 0.3)], **_SLOWLY},
        {"content": "Look again.", "tool_calls": [*_LOOKS, {"name": "run_shell", "arguments": {"command": "cat effects.txt"}}], **_SLOWLY},
        {"content": "And a last line.", "tool_calls": [_append("a", 0.05, 0), _append("b", 0, 0.1)], **_SLOWLY},
        {"content": "I looked and wrote.", **_SLOWLY},
    ],
    "files": [
        {
            "content": "A file first.",
            "tool_calls": [
                {"name": "write_file", "arguments": {"path": "notes.txt", "content": "a line that stays\n"}},
                _append("a", 0.05, 0.05),
            ],
            **_SLOWLY,
        },
        {"content": "Read it.", "tool_calls": [{"name": "read_file", "arguments": {"path": "notes.txt"}}, *_LOOKS], **_SLOWLY},
        {"content": "Done with files.", "tool_calls": [_append("a", 0.1, 0)], **_SLOWLY},
        {"content": "The file is there.", **_SLOWLY},
    ],
    "thinks": [
        {
            "content": "A long answer before the first line, word after word.",
            "tool_calls": [_append("a", 0, 0)],
            **_SLOWLY,
            "delay_s": 0.15,
        },
        {
            "content": "Another long answer, and the end of it comes late.",
            "reasoning": "Is this the end of it?",
            **_SLOWLY,
            "delay_s": 0.15,
        },
    ],
}


def message(kind: str, number: int) -> str:
    """What run `number` is asked; the kind in it selects the conversation."""
    return f"Do the {kind} work, number {number}."


def expected_lines(kind: str) -> set[str]:
    """The effects of a run that nothing interrupted."""
    return {
        str(call["arguments"]["command"]).partition("echo ")[2].partition(" >>")[0].replace("${turn}", str(place))
        for place, turn in enumerate(KINDS[kind])
        for call in turn.get("tool_calls", ())
        if "echo " in str(call["arguments"].get("command"))
    }


def lines_in(workspace: Path) -> list[str]:
    file = workspace / EFFECTS
    return file.read_text().splitlines() if file.exists() else []


def install(data_dir: Path) -> Path:
    """Put the template where users' templates are; gives the scripted model's file."""
    templates = data_dir / "templates"
    templates.mkdir(parents=True, exist_ok=True)
    (templates / f"{TEMPLATE_ID}.json").write_bytes(orjson.dumps(TEMPLATE))
    script = data_dir / "script.yaml"
    conversations = [{"match": f"Do the {kind} work", "turns": turns} for kind, turns in KINDS.items()]
    script.write_text(yaml.safe_dump({"model": "scripted", "conversations": conversations}))
    return script
