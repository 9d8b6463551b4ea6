"""Answers model calls: rebuilds the prompt, waits for the slot, asks the backend, reads and records the reply."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from services.scheduler import answers, retries
from services.scheduler.backends.base import ChatReply, ChatRequest, Delta
from services.scheduler.backends.faults import BackendFault, ModelNotLoaded
from services.scheduler.turns import Turn, Turns
from shared import subjects, telemetry
from shared.aggregate import Decider, Deciders
from shared.ends import Ends
from shared.eventlog import EventLog
from shared.events import run
from shared.events.envelope import Event, Fact
from shared.events.llm import LlmCompleted, LlmDispatched, LlmFailed, LlmQueued, LlmRetried
from shared.inbox import Delivery
from shared.prompt import Prompt, rebuild
from shared.transcript import Message

logger = structlog.get_logger()

Live = Callable[[str, str, Delta], None]
"""Tells whoever watches a run what a call of it is writing: run, call, piece."""

CACHED_PROMPTS = 64


class PromptCache(OrderedDict[int, list[Message]]):
    """The messages of the latest calls, so that the next call of a conversation reads only what it adds."""

    def __setitem__(self, seq: int, messages: list[Message]) -> None:
        super().__setitem__(seq, messages)
        if len(self) > CACHED_PROMPTS:
            self.popitem(last=False)


@dataclass
class Calls:
    """The model calls of this process."""

    log: EventLog
    turns: Turns
    live: Live
    clock: Callable[[], float] = time.monotonic
    _deciders: Deciders = field(init=False)
    ends: Ends = field(init=False)
    _prompts: PromptCache = field(default_factory=PromptCache)

    def __post_init__(self) -> None:
        self._deciders = Deciders(self.log, "llm")
        self.ends = Ends(self.log)

    async def handle(self, delivery: Delivery) -> bool:
        """Answer one `llm_requested`. A model call has no effect outside, so one that was lost is made again."""
        fact = delivery.fact
        assert isinstance(fact.event, run.LlmRequested)
        decider = self._deciders.of(fact.scope)
        if await self._is_settled(decider, fact.event.call_id, delivery):
            return True
        with telemetry.span("scheduler.call", fact.traceparent, run=fact.scope, call=fact.event.call_id):
            prompt = await rebuild(self.log, fact, self._prompts)
            call = Call(self, fact, fact.event, prompt, decider)
            await call.end((await self.ends.stoppable(fact.scope, call.ending())).result())
        return True

    async def give_up(self, delivery: Delivery, reason: str) -> None:
        """End a call that the scheduler itself fails at, time and again."""
        fact = delivery.fact
        assert isinstance(fact.event, run.LlmRequested)
        failed = LlmFailed(call_id=fact.event.call_id, code="llm.poison", message=f"the scheduler fails at this call: {reason}")
        decider = self._deciders.of(fact.scope)
        await decider.decide(failed.call_id, lambda facts: () if has_ended(facts, failed) else (failed,), cause=fact)

    async def _is_settled(self, decider: Decider, call_id: str, delivery: Delivery) -> bool:
        """Whether a call has been answered, or its run is over.

        Asked of each request: a server that was killed hands out again as if for the first time.
        """
        fact, again = delivery.fact, delivery.recovered or delivery.attempt > 1
        if again:  # another process may have answered it
            facts = await self.log.read(subjects.Aggregate("llm", fact.scope).filter, after=fact.seq)
            facts = [each for each in facts if getattr(each.event, "call_id", None) == call_id]
        else:
            facts = await decider.known(call_id)
        return any(isinstance(each.event, LlmCompleted | LlmFailed) for each in facts) or await self.ends.is_over(fact, again=again)

    async def watch_ends(self, *, after: int) -> None:
        """Stop the calls of runs that were interrupted or have ended; never returns."""
        async with asyncio.TaskGroup() as forgetting:
            await self.ends.watch(after=after, forget=lambda run_id: forgetting.create_task(self.turns.forget(run_id)))


@dataclass
class Call:
    """One model call under way."""

    calls: Calls
    fact: Fact
    request: run.LlmRequested
    prompt: Prompt
    decider: Decider

    async def ending(self) -> Event:
        """The fact that ends the call; being cancelled is an ending too."""
        began = self.calls.clock()
        try:
            async with self.calls.turns.turn(self.fact, self.request, self._queued) as turn:
                ending = await self._answered(began, turn)
                # Stored while the model still counts as answering: the log must not show it evicted in the middle of a call.
                await self.end(ending)
                return ending
        except BackendFault as fault:  # there was no turn
            return self._failed(fault.code, fault.message, fault.fragment, began, fault.verdict)
        except asyncio.CancelledError:
            return self._failed("llm.cancelled", "the run was stopped", "", began)

    async def end(self, ending: Event) -> None:
        """Store what ends the call, unless something has ended it."""
        await self.decider.decide(self.request.call_id, lambda facts: () if has_ended(facts, ending) else (ending,), cause=self.fact)

    async def _answered(self, began: float, turn: Turn) -> Event:
        queued_ms = (self.calls.clock() - began) * 1000
        try:
            reply = await self._attempts(began, turn)
        except BackendFault as fault:
            return self._failed(fault.code, fault.message, fault.fragment, began, fault.verdict)
        except asyncio.CancelledError:
            if not self.calls.ends.saw_end_of(self.fact.scope):
                raise  # this process stops: another asks again
            return self._failed("llm.cancelled", "the run was stopped", "", began)
        read = answers.read(self.fact.scope, self.request, self.prompt, reply)
        return read.model_copy(
            update={"slot": turn.slot.name, "queued_ms": queued_ms, "prompt_sha256": hashlib.sha256(self.prompt.as_bytes()).hexdigest()}
        )

    async def _queued(self, position: int, reason: str) -> None:
        await self._record(LlmQueued(call_id=self.request.call_id, position=position, reason=reason))

    async def _attempts(self, began: float, turn: Turn) -> ChatReply:
        attempt = 1
        while True:
            left_s = self.request.timeout_s - (self.calls.clock() - began)
            try:
                return await self._attempt(attempt, max(left_s, 0.001), turn)
            except BackendFault as fault:
                again = retries.after_failure(fault, attempt, left_s)
                if again is None:
                    raise
                if again.counts:
                    attempt += 1
                    await self._record(LlmRetried(call_id=self.request.call_id, code=fault.code, reason=fault.message))
                if isinstance(fault, ModelNotLoaded) and turn.reload is not None:
                    await _within(left_s, turn.reload(), fault)
                else:
                    await asyncio.sleep(again.pause_s)

    async def _attempt(self, attempt: int, left_s: float, turn: Turn) -> ChatReply:
        """Ask the backend. That the call was sent is recorded while it runs: the call need not wait for it."""
        slot, model, sampling = turn.slot, turn.model, self.request.sampling
        dispatched = LlmDispatched(call_id=self.request.call_id, slot=slot.name, model=model or "", attempt=attempt)
        recorded = asyncio.create_task(self._record(dispatched))
        try:
            return await slot.backend.chat(
                ChatRequest(
                    messages=self.prompt.messages,
                    model=model,
                    tools=self.prompt.tools,
                    temperature=sampling.temperature,
                    seed=sampling.seed,
                    top_p=sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    response_format=self.request.response_format,
                    stop=self.request.stop,
                    timeout_s=left_s,
                    idle_timeout_s=slot.idle_timeout_s,
                ),
                lambda delta: self.calls.live(self.fact.scope, self.request.call_id, delta),
            )
        finally:
            await recorded

    async def _record(self, event: Event) -> None:
        await self.decider.decide(self.request.call_id, lambda _: (event,), cause=self.fact)

    def _failed(self, code: str, message: str, fragment: str, began: float, verdict: str = "final") -> LlmFailed:
        logger.warning("call_failed", run=self.fact.scope, call=self.request.call_id, code=code, reason=message[:300])
        return LlmFailed(
            call_id=self.request.call_id,
            code=code,
            message=message[:2000],
            verdict=verdict,  # pyright: ignore[reportArgumentType]  pydantic takes the string
            fragment=fragment[:4000],
            duration_ms=(self.calls.clock() - began) * 1000,
        )


async def _within(left_s: float, waiting: Awaitable[None], fault: BackendFault) -> None:
    """
    Raises:
        BackendFault: the caller's time was over before; it is told what it waited for.
    """
    try:
        async with asyncio.timeout(left_s):
            await waiting
    except TimeoutError:
        raise fault from None


def has_ended(facts: Sequence[Fact], ending: Event) -> bool:
    call_id = getattr(ending, "call_id", None)
    return any(isinstance(fact.event, LlmCompleted | LlmFailed) and fact.event.call_id == call_id for fact in facts)
