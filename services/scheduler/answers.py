"""From a backend's reply to the fact that is the assistant's turn: calls read, named, and bounded. Pure."""

from __future__ import annotations

from services.scheduler.backends.base import ChatReply
from services.scheduler.dialects.calls import ParsedCall, Reading
from services.scheduler.dialects.salvage import read_reply
from shared.events.content import ToolCall
from shared.events.llm import LlmCompleted
from shared.events.run import LlmRequested
from shared.ids import place_id
from shared.prompt import Prompt
from shared.text import clean, clean_json, cut

MAX_CONTENT = 60_000  # characters of an answer that a conversation carries on
MAX_RAW = 60_000


def read(run_id: str, request: LlmRequested, prompt: Prompt, reply: ChatReply) -> LlmCompleted:
    """The completed fact; `raw` keeps what the model wrote wherever the reading differs from it."""
    schemas = {str(tool["function"]["name"]): tool["function"]["parameters"] for tool in prompt.tools}
    # Where no tools were offered there are no calls to find: JSON is then the answer itself.
    reading = read_reply(clean(reply.content), reply.tool_calls, list(schemas), schemas, cut=reply.is_cut) if schemas else _plain(reply)
    visible = reading.visible if not reading.problem else f"{reading.visible}\n{reading.problem}".strip()
    calls = tuple(_call(run_id, request, place, call) for place, call in enumerate(reading.calls, 1))
    reasoning = "\n".join(part for part in (reply.reasoning, reading.reasoning) if part)
    differs = bool(reading.calls) or reading.visible != reply.content
    return LlmCompleted(
        call_id=request.call_id,
        content=cut(visible, MAX_CONTENT),
        tool_calls=calls,
        reasoning=cut(clean(reasoning), MAX_CONTENT),
        raw=cut(clean(reply.content), MAX_RAW) if differs and reply.content else None,
        finish_reason=reply.finish_reason,
        model=reply.model,
        usage=reply.usage,
        first_token_ms=reply.first_token_ms,
        duration_ms=reply.duration_ms,
    )


def _plain(reply: ChatReply) -> Reading:
    text = clean(reply.content)
    if not text.lstrip().startswith("<think>"):
        return Reading(visible=text)
    return read_reply(text, (), (), {})


def _call(run_id: str, request: LlmRequested, place: int, call: ParsedCall) -> ToolCall:
    # The engine's own id, from the call's place: servers reuse theirs, and a replay must find it again.
    return ToolCall(
        call_id=place_id("call", run_id, request.key, str(place)),
        name=call.name,
        arguments=clean_json(call.arguments),
        source=call.source,
        error=call.error,
        repairs=call.repairs,
    )
