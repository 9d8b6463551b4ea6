"""The decision layer at work: asks a model that is loaded already, under a batch lease, within a bound (KS 6.10).

Off, failing or late, it never costs the caller more than that bound: the choice of the caller's own rule comes back. Each
decision is one fact, which becomes a row of `decision_logs`; writing it neither delays nor fails the decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from services.scheduler.arbiter import Status
from services.scheduler.arbiter.commands import Release, RequestLease
from services.scheduler.backends.base import Backend, ChatReply
from services.scheduler.decisions import Conclusion, Place, by_rule, chat_request, conclude, digest_of, find_place
from services.scheduler.office import Office
from shared.bodies import read
from shared.config import DecisionSettings
from shared.decision_requests import DecisionRequest
from shared.errors import Fault
from shared.eventlog import EventLog
from shared.events.content import Usage
from shared.events.decision import DecisionConcluded
from shared.events.lease import Priority
from shared.ids import new_id
from shared.subjects import Aggregate

AT_ONCE = 2  # decisions that ask a model; more would take its slot from runs
BACKLOG = 256  # facts and releases that wait for the log; beyond it a decision goes unrecorded

Work = Callable[[], Awaitable[None]]

logger = structlog.get_logger()


class Refused(Fault):
    """The lease was not granted at once."""

    code = "decision.busy"


@dataclass
class Asked:
    """What became of one question so far."""

    request: DecisionRequest
    decision_id: str = field(default_factory=new_id)
    lease_id: str = ""
    place: Place | None = None
    prompt_sha256: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass
class DecisionLayer:
    settings: DecisionSettings
    office: Office
    backends: Mapping[str, Backend]  # by slot
    log: EventLog
    clock_s: Callable[[], float] = time.monotonic
    _asking: int = 0
    _work: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def verb(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """`DecisionRequest` → `{choice, source, outcome, reason, confidence, decisionId}`; `off` has no id and leaves no row.

        Raises:
            BadInput: the question is wrong; its field is named.
        """
        request = read(DecisionRequest, raw)
        if not self.settings.enabled:
            return _answer(request.fallback, "rule", "off", "decision.enabled is false", None, None)
        asked, began = Asked(request), self.clock_s()
        conclusion = await self._conclusion(asked)
        self._in_background(partial(self._record, asked, conclusion, (self.clock_s() - began) * 1000))
        return _answer(
            conclusion.choice, conclusion.source, conclusion.outcome, conclusion.reason, conclusion.confidence, asked.decision_id
        )

    async def _conclusion(self, asked: Asked) -> Conclusion:
        """Whatever happens, a choice."""
        request = asked.request
        bound_s = min(self.settings.timeout_s, request.timeout_s or self.settings.timeout_s)
        place = find_place(self.office.state, self.office.probes.down, self.settings.model)
        if isinstance(place, str):
            return by_rule(request, "no_model", place)
        if self._asking >= AT_ONCE:
            return by_rule(request, "busy", f"{AT_ONCE} decisions are being made already")
        asked.place = place
        self._asking += 1
        try:
            async with asyncio.timeout(bound_s):
                reply = await self._under_lease(asked, place, bound_s)
        except TimeoutError:
            return by_rule(request, "timeout", f"no answer within {bound_s:g} s")
        except Refused as fault:
            return by_rule(request, "busy", fault.message)
        except Fault as fault:
            return by_rule(request, "failed", fault.message)
        except Exception as error:  # the outermost place of a decision: a bug here must not become its caller's
            logger.exception("decision_failed", decision=asked.decision_id, caller=request.caller)
            return by_rule(request, "failed", repr(error))
        finally:
            self._asking -= 1
        asked.usage = reply.usage
        return conclude(request, reply, self.settings.min_confidence)

    async def _under_lease(self, asked: Asked, place: Place, bound_s: float) -> ChatReply:
        """
        Raises:
            Refused: something goes before it.
            Fault: the model gave no whole answer.
        """
        lease_id = asked.lease_id = new_id()
        command = RequestLease(
            lease_id=lease_id,
            holder=f"decision {asked.request.caller}",
            priority=Priority.BATCH,
            slot=place.slot,
            models=(place.model,),
            resident_only=True,
            ttl=min(timedelta(seconds=bound_s) * 2, self.office.known.times.max_lease_ttl),
            wait=timedelta(),
        )
        taking = asyncio.ensure_future(self.office.do(command))
        try:
            await asyncio.shield(taking)  # a decision that is late must not cut one of the arbiter short
            found, ending = self.office.state.lease(lease_id), self.office.state.ending(lease_id)
            if found is None or found.status is not Status.GRANTED:
                raise Refused(ending.reason if ending is not None else "the lease was not granted at once")
            request = chat_request(asked.request, place.model, bound_s)
            asked.prompt_sha256 = digest_of(request)
            async with self.office.answers(place.slot, place.model):
                return await self.backends[place.slot].chat(request)
        finally:
            self._in_background(partial(self._give_back, taking, lease_id))

    async def _give_back(self, taking: asyncio.Future[Any], lease_id: str) -> None:
        with suppress(Fault):  # it was told already, and there is no lease then
            await taking
        if self.office.state.lease(lease_id) is not None:
            await self.office.do(Release(lease_id, "the decision was made"))

    async def _record(self, asked: Asked, conclusion: Conclusion, duration_ms: float) -> None:
        request, place = asked.request, asked.place
        fact = DecisionConcluded(
            at=self.office.clock.now(),
            caller=request.caller,
            question=request.question,
            options=request.options,
            fallback=request.fallback,
            choice=conclusion.choice,
            source=conclusion.source,
            outcome=conclusion.outcome,
            reason=conclusion.reason,
            confidence=conclusion.confidence,
            run_id=request.run_id,
            slot=place.slot if place else "",
            model=place.model if place else "",
            lease_id=asked.lease_id,
            prompt_sha256=asked.prompt_sha256,
            usage=asked.usage,
            duration_ms=duration_ms,
        )
        await self.log.append(Aggregate("decision", asked.decision_id), [fact], after=0)

    def _in_background(self, work: Work) -> None:
        if len(self._work) >= BACKLOG:
            logger.warning("decision_unrecorded", waiting=len(self._work))
            return
        task = asyncio.create_task(_logged(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def settled(self) -> None:
        """Wait for what is still being written."""
        while self._work:
            await asyncio.wait(set(self._work))

    async def close(self, patience_s: float = 1.0) -> None:
        """Wait so long for what is still being written, then leave it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.settled()
        late = list(self._work)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _logged(work: Work) -> None:
    try:
        await work()
    except Exception:  # the outermost place of a background task: its decision was made, and nobody waits for it
        logger.exception("decision_unrecorded")


def _answer(choice: str, source: str, outcome: str, reason: str, confidence: float | None, decision_id: str | None) -> dict[str, Any]:
    return {
        "choice": choice,
        "source": source,
        "outcome": outcome,
        "reason": reason,
        "confidence": confidence,
        "decisionId": decision_id,
    }
