"""One agent's conversation: which facts it consists of, and what the model was last asked with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from services.orchestrator.durable.context import Ask, Offer, Run
from shared.events.content import MessageRef, Sampling
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.template import Node
from shared.transcript import message_of, reference

CHARS_PER_TOKEN = 4  # KS 6.2: the estimate until a server has counted


@dataclass
class Conversation:
    """Appends only, so that the prompt of each call is a prefix of the next one's."""

    node: Node
    offer: Offer
    last_call: Fact | None = None
    fresh: list[MessageRef] = field(default_factory=list[MessageRef])
    tokens: int = 0  # estimate of the next prompt

    async def say(self, run: Run, key: str, role: str, content: str) -> None:
        """Add a message of the engine's: system, or user."""
        self.take(await run.message(key, self.node.id, role, content))

    async def answer(self, run: Run, key: str, call_id: str, content: str) -> None:
        """Answer a tool call that was not run, so that no call is left without its result."""
        self.take(await run.message(key, self.node.id, "tool", content, answers=call_id))

    def take(self, fact: Fact, form: Literal["native", "text"] = "native") -> None:
        """Add a message that a fact holds; `text` for a result that no native call asked for."""
        self.fresh.append(reference(fact, form))
        content = message_of(fact).get("content") or ""
        self.tokens += len(str(content)) // CHARS_PER_TOKEN

    async def ask(
        self,
        run: Run,
        key: str,
        turn: int,
        *,
        response_format: dict[str, Any] | None = None,
        tools: bool = True,
        stop: tuple[str, ...] = (),
    ) -> Fact:
        """The model's next turn; its answer becomes part of the conversation.

        Raises:
            ModelCallFailed, BudgetExhausted: as `Run.llm`.
        """
        override = run.submission.sampling
        sampling = Sampling(
            temperature=override.temperature if override.temperature is not None else self.node.temperature,
            seed=override.seed,
            top_p=override.top_p,
            max_tokens=override.max_tokens or self.node.max_tokens,
        )
        answer = await run.llm(
            key,
            Ask(
                agent=self.node.id,
                turn=turn,
                adds=tuple(self.fresh),
                extends=self.last_call,
                tools_seq=self.offer.seq if tools and self.offer.tools else None,
                sampling=sampling,
                model=run.submission.model or self.node.model,
                slot=self.node.preferred_instance,
                response_format=response_format,
                stop=stop,
                estimate_tokens=self.tokens,
            ),
        )
        self.last_call = run.request_at(key)
        assert isinstance(answer.event, LlmCompleted)
        if answer.event.usage.total:
            self.tokens = answer.event.usage.total
        self.fresh = [reference(answer)]
        return answer
