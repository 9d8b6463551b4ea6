"""The conversations of runs: one row per fact that holds a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from services.recorder.projections.base import Change, Json, PerFact, key_text
from shared.events.content import BlobRef, Usage
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.events.run import LlmRequested, MessageAdded, ToolRequested
from shared.events.tool import ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted
from shared.transcript import message_of

ASKED = """
INSERT INTO call_agents (run_id, call_id, agent) VALUES (%(run_id)s, %(call_id)s, %(agent)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET agent = EXCLUDED.agent
"""

SAID = """
INSERT INTO conversation (seq, run_id, agent, role, content, blob_sha256, blob_size, tool_calls, call_id,
    prompt_tokens, completion_tokens, cached_tokens, at)
VALUES (%(seq)s, %(run_id)s,
    coalesce(%(agent)s, (SELECT agent FROM call_agents WHERE run_id = %(run_id)s AND call_id = %(call_id)s), ''),
    %(role)s, %(content)s, %(blob_sha256)s, %(blob_size)s, %(tool_calls)s, %(call_id)s,
    %(prompt_tokens)s, %(completion_tokens)s, %(cached_tokens)s, %(at)s)
"""


def changes(fact: Fact) -> Iterable[Change]:
    match fact.event:
        case LlmRequested(call_id=call_id, agent=agent) | ToolRequested(call_id=call_id, agent=agent):
            yield Change(ASKED, {"run_id": key_text(fact.scope), "call_id": key_text(call_id), "agent": agent})
        case MessageAdded() as event:
            yield _said(fact, agent=event.agent, call_id=event.tool_call_id)
        case LlmCompleted() as event:
            yield _said(fact, call_id=event.call_id, blob=event.content_blob, usage=event.usage)
        case ToolCompleted() as event:
            yield _said(fact, call_id=event.call_id, blob=event.content_blob)
        case ToolDenied(call_id=call_id) | ToolFailed(call_id=call_id) | ToolInterrupted(call_id=call_id):
            yield _said(fact, call_id=call_id)
        case _:
            pass


def _said(fact: Fact, *, call_id: str | None, agent: str | None = None, blob: BlobRef | None = None, usage: Usage | None = None) -> Change:
    message = message_of(fact)
    tool_calls = message.get("tool_calls")
    values: Mapping[str, Any] = {
        "seq": fact.seq,
        "run_id": key_text(fact.scope),
        "agent": agent,
        "role": message["role"],
        "content": message["content"],
        "blob_sha256": blob and blob.sha256,
        "blob_size": blob and blob.size,
        "tool_calls": Json(tool_calls) if tool_calls else None,
        "call_id": call_id and key_text(call_id),
        "prompt_tokens": usage and usage.prompt_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "at": fact.time,
    }
    return Change(SAID, values)


CONVERSATION = PerFact("conversation", changes)
