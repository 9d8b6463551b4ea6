"""The audit of tool calls: one row per call, with what it was asked, how it ended and what it changed.

Arguments and results in the log have already lost their secrets. A result is kept to its first
`RESULT_CHARS` characters, but whole where the tool is elevated: those are the calls that audits ask about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.recorder.projections.base import Change, Json, PerFact, key_text
from shared.events.content import FileChange
from shared.events.envelope import Fact
from shared.events.run import ToolRequested
from shared.events.tool import ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted, ToolStarted

RESULT_CHARS = 2000

REQUESTED = """
INSERT INTO tool_audit (run_id, call_id, agent, tool, arguments, arguments_sha256, verdict, is_error, files,
    changes, requested_at, requested_seq)
VALUES (%(run_id)s, %(call_id)s, %(agent)s, %(tool)s, %(arguments)s, %(arguments_sha256)s, 'requested', false, '{}', '[]', %(at)s, %(seq)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    agent = EXCLUDED.agent, tool = EXCLUDED.tool, arguments = EXCLUDED.arguments, arguments_sha256 = EXCLUDED.arguments_sha256,
    requested_at = EXCLUDED.requested_at, requested_seq = EXCLUDED.requested_seq
"""

STARTED = """
INSERT INTO tool_audit (run_id, call_id, tool, server, tier, owner, verdict, is_error, files, changes, started_at)
VALUES (%(run_id)s, %(call_id)s, %(tool)s, %(server)s, %(tier)s, %(owner)s, 'started', false, '{}', '[]', %(at)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    server = EXCLUDED.server, tier = EXCLUDED.tier, owner = EXCLUDED.owner, verdict = 'started', started_at = EXCLUDED.started_at
"""

ENDED = """
INSERT INTO tool_audit (run_id, call_id, tool, verdict, is_error, layer, code, result, result_chars, result_sha256,
    files, changes, duration_ms, ended_at, ended_seq)
VALUES (%(run_id)s, %(call_id)s, %(tool)s, %(verdict)s, %(is_error)s, %(layer)s, %(code)s, left(%(result)s, %(head)s),
    %(result_chars)s, %(result_sha256)s, %(files)s, %(changes)s, %(duration_ms)s, %(at)s, %(seq)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    verdict = EXCLUDED.verdict, is_error = EXCLUDED.is_error, layer = EXCLUDED.layer, code = EXCLUDED.code,
    result = CASE WHEN tool_audit.tier = 'elevated' THEN %(result)s ELSE EXCLUDED.result END,
    result_chars = EXCLUDED.result_chars, result_sha256 = EXCLUDED.result_sha256, files = EXCLUDED.files,
    changes = EXCLUDED.changes, duration_ms = EXCLUDED.duration_ms, ended_at = EXCLUDED.ended_at, ended_seq = EXCLUDED.ended_seq
"""


def changes(fact: Fact) -> Iterable[Change]:
    match fact.event:
        case ToolRequested() as event:
            asked = {
                "agent": event.agent,
                "tool": event.tool,
                "arguments": Json(event.arguments),
                "arguments_sha256": event.arguments_blob and event.arguments_blob.sha256,
            }
            yield Change(REQUESTED, _call(fact, event.call_id) | asked)
        case ToolStarted() as event:
            claim = {"tool": event.tool, "server": event.server, "tier": event.tier, "owner": event.owner}
            yield Change(STARTED, _call(fact, event.call_id) | claim)
        case ToolCompleted() | ToolDenied() | ToolFailed() | ToolInterrupted():
            yield Change(ENDED, _ended(fact, fact.event))
        case _:
            pass


def _call(fact: Fact, call_id: str) -> dict[str, Any]:
    return {"run_id": key_text(fact.scope), "call_id": key_text(call_id), "at": fact.time, "seq": fact.seq}


def _ended(fact: Fact, event: ToolCompleted | ToolDenied | ToolFailed | ToolInterrupted) -> dict[str, Any]:
    values = _call(fact, event.call_id) | {"tool": event.tool, "verdict": event.TYPE.partition(".")[2], "head": RESULT_CHARS}
    values |= {"is_error": True, "layer": None, "code": None, "result_sha256": None, "duration_ms": None} | _files(())
    match event:
        case ToolCompleted():
            blob = event.content_blob
            values |= {"is_error": event.is_error, "duration_ms": event.duration_ms, "result_sha256": blob and blob.sha256}
            values |= _result(event.content) | _files(event.changes)
        case ToolDenied():
            values |= {"layer": event.layer} | _result(event.message)
        case ToolFailed():
            values |= {"code": event.code, "duration_ms": event.duration_ms} | _result(event.message) | _files(event.changes)
        case ToolInterrupted():
            values |= _result(event.message)
    return values


def _result(text: str) -> dict[str, Any]:
    return {"result": text, "result_chars": len(text)}


def _files(changed: tuple[FileChange, ...]) -> dict[str, Any]:
    kept = [change.model_dump(include={"path", "before_sha256", "after_sha256"}) for change in changed]
    return {"files": [change.path for change in changed], "changes": Json(kept)}


TOOL_AUDIT = PerFact("tool_audit", changes)
