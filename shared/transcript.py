"""How facts read as chat messages: the one place where a conversation becomes a prompt.

The scheduler sends what this module builds, the orchestrator digests it, and an audit rebuilds it, so
all three agree byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import orjson

from shared.events.content import MessageRef
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.events.run import MessageAdded
from shared.events.tool import ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted
from shared.ids import short_digest

Message = dict[str, Any]


def message_of(fact: Fact, form: str = "native") -> Message:
    """The chat message that a fact holds, in the OpenAI form; `text` turns a tool's result into a user message.

    Raises:
        ValueError: the fact holds no message.
    """
    if form == "text":
        return _as_text(message_of(fact))
    match fact.event:
        case MessageAdded(tool_call_id=str() as call_id) as said:
            return _tool_result(call_id, said.content)
        case MessageAdded() as said:
            return {"role": said.role, "content": said.content}
        case LlmCompleted() as answer:
            return _assistant(answer)
        case ToolCompleted() as done:
            return _tool_result(done.call_id, done.content)
        case ToolDenied() | ToolFailed() | ToolInterrupted() as ended:
            return _tool_result(ended.call_id, ended.message)
        case _:
            raise ValueError(f"fact {fact.seq} ({fact.type}) holds no message")


def _as_text(message: Message) -> Message:
    role = "user" if message["role"] == "tool" else message["role"]
    return {"role": role, "content": message.get("content") or ""}


def _assistant(answer: LlmCompleted) -> Message:
    message: Message = {"role": "assistant", "content": answer.content}
    calls = [call for call in answer.tool_calls if call.error is None]
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
            }
            for call in calls
        ]
    return message


def _tool_result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def reference(fact: Fact, form: Literal["native", "text"] = "native") -> MessageRef:
    """A reference to the message of a fact, with the digest of how it reads."""
    return MessageRef(seq=fact.seq, digest=short_digest(message_of(fact, form)), form=form)


def extend_digest(prefix: str, adds: Sequence[MessageRef]) -> str:
    """The digest of a prompt from that of its prefix and the messages added: a hash chain.

    Sequences are left out on purpose: equal conversations have equal digests in every run.
    """
    chain = prefix
    for ref in adds:
        chain = hashlib.sha256(f"{chain}{ref.digest}".encode()).hexdigest()[:16]
    return chain


def prompt_bytes(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> bytes:
    """A prompt as canonical bytes: what `LlmCompleted.prompt_sha256` is taken over."""
    return orjson.dumps({"messages": list(messages), "tools": list(tools)}, option=orjson.OPT_SORT_KEYS)
