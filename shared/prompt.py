"""The exact prompt of a model call, rebuilt from the log.

A request names the earlier call that it extends and the facts that it adds, so a prompt is a walk along
`extends` to where the conversation began. The scheduler builds what it sends here, with a cache; the
gateway and audits rebuild it here without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.errors import BadInput
from shared.events.content import MessageRef
from shared.events.envelope import Fact
from shared.events.run import LlmRequested, ToolsOffered
from shared.transcript import Message, message_of, prompt_bytes

Cache = MutableMapping[int, list[Message]]
"""The messages of a call, by the sequence of its `llm_requested`. Its lists are never changed in place."""


class FactSource(Protocol):
    """Where facts are looked up: the log, or facts already read."""

    async def get(self, seq: int) -> Fact: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model was asked with: messages and tool schemas in the OpenAI form."""

    messages: list[Message]
    tools: list[dict[str, Any]]

    def as_bytes(self) -> bytes:
        """The bytes that `LlmCompleted.prompt_sha256` is taken over."""
        return prompt_bytes(self.messages, self.tools)


async def rebuild(log: FactSource, fact: Fact, cache: Cache | None = None) -> Prompt:
    """The prompt of the call that `fact`, an `LlmRequested`, asks for.

    Raises:
        BadInput: the fact asks for no model call, or refers to one that holds no message.
        NotFound: a fact that it refers to is not in the log.
    """
    request = _request(fact)
    messages, tools = await asyncio.gather(_messages(log, fact, cache), _tools(log, request))
    return Prompt(messages, tools)


async def _messages(log: FactSource, fact: Fact, cache: Cache | None) -> list[Message]:
    if cache is not None and fact.seq in cache:
        return cache[fact.seq]
    base: list[Message] = []
    adds: list[MessageRef] = []
    here = fact
    while True:
        request = _request(here)
        adds[:0] = request.adds
        if request.extends is None:
            break
        if cache is not None and request.extends in cache:
            base = cache[request.extends]
            break
        if request.extends >= here.seq:
            raise BadInput(f"call at {here.seq} extends {request.extends}, which is not before it", field="extends")
        here = await log.get(request.extends)
    messages = [*base, *await _added(log, adds)]
    if cache is not None:
        cache[fact.seq] = messages
    return messages


async def _added(log: FactSource, adds: Sequence[MessageRef]) -> list[Message]:
    facts = await asyncio.gather(*(log.get(ref.seq) for ref in adds))
    try:
        return [message_of(fact, ref.form) for fact, ref in zip(facts, adds, strict=True)]
    except ValueError as error:
        raise BadInput(f"a prompt refers to what is no message: {error}", field="adds") from error


async def _tools(log: FactSource, request: LlmRequested) -> list[dict[str, Any]]:
    if request.tools_seq is None:
        return []
    offered = (await log.get(request.tools_seq)).event
    if not isinstance(offered, ToolsOffered):
        raise BadInput(f"fact {request.tools_seq} offers no tools", field="tools_seq")
    return list(offered.tools)


def _request(fact: Fact) -> LlmRequested:
    if not isinstance(fact.event, LlmRequested):
        raise BadInput(f"fact {fact.seq} ({fact.type}) asks for no model call", field="seq")
    return fact.event
