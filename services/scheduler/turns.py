"""Where a model call is answered, and when it is its turn: one slot for all, or leased slots that share cards.

`OneSlot` serves an engine with one inference server and no configured slots, first come, first served. `LeasedSlots` takes a
run's lease before its first call on a slot (KS 6.1), and lets the desk decide whose turn it is and which model is loaded for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from services.scheduler.arbiter.commands import NeedModel
from services.scheduler.backends.base import Backend
from services.scheduler.backends.faults import BackendFault
from services.scheduler.model_names import same_model
from services.scheduler.office import Office
from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.places import places
from services.scheduler.ordering.slots import Decision, Dispatch, Leave, Load, Pause
from services.scheduler.ordering.waiting import Call
from services.scheduler.placement import place_node
from services.scheduler.run_leases import LeaseRefused, RunLeases
from shared.errors import Fault
from shared.events.envelope import Fact
from shared.events.run import LlmRequested
from shared.tenure import StoodDown

Queued = Callable[[int, str], Awaitable[None]]
"""Tells whoever waits its position, and why it waits."""


class NoSuchPlace(BackendFault):
    """The call names a slot or a model that there is not."""

    code = "llm.no_such_place"


@dataclass
class Slot:
    """One inference server, and how many calls it takes at a time."""

    name: str
    backend: Backend
    concurrency: int
    idle_timeout_s: float
    model: str | None = None
    waiting: int = 0
    _free: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.concurrency)

    @property
    def is_busy(self) -> bool:
        return self._free.locked()

    async def take(self) -> None:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def give_back(self) -> None:
        self._free.release()


@dataclass(frozen=True, slots=True)
class Turn:
    """A call's turn: where it is answered, and by which model (None: the server's choice)."""

    slot: Slot
    model: str | None
    reload: Callable[[], Awaitable[None]] | None = None
    """Has the model loaded again where its server turns out not to have it; None: nothing here can.

    Raises:
        LeaseRefused: it can't be.
    """


class Turns(Protocol):
    def turn(self, fact: Fact, request: LlmRequested, queued: Queued) -> AbstractAsyncContextManager[Turn]:
        """Wait for the call's turn, which lasts for the block.

        Raises:
            BackendFault: it cannot have one; the message says why.
        """
        ...

    async def forget(self, run_id: str) -> None:
        """A run is over."""
        ...

    def waiting(self, slot: str) -> int:
        """How many calls wait there."""
        ...

    def configured(self) -> None:
        """The slots' settings have changed."""
        ...


@dataclass
class OneSlot:
    slot: Slot

    @asynccontextmanager
    async def turn(self, fact: Fact, request: LlmRequested, queued: Queued) -> AsyncGenerator[Turn]:
        slot = self.slot
        if slot.is_busy:
            await queued(slot.waiting + 1, f"{slot.name} takes {slot.concurrency} call{'s' if slot.concurrency > 1 else ''} at a time")
        await slot.take()
        try:
            yield Turn(slot, request.model or slot.model)
        finally:
            slot.give_back()

    async def forget(self, run_id: str) -> None:
        return None

    def waiting(self, slot: str) -> int:
        return self.slot.waiting

    def configured(self) -> None:
        return None


@dataclass
class LeasedSlots:
    """Slots under the arbiter. The desk and the office are told the same things: what is loaded, and what is in flight."""

    office: Office
    leases: RunLeases
    slots: Mapping[str, Slot]
    desk: Desk
    now_s: Callable[[], float]
    _turns: dict[str, asyncio.Future[None]] = field(default_factory=dict[str, "asyncio.Future[None]"])
    _lease_of: dict[str, str] = field(default_factory=dict[str, str])  # call → the lease under which it asks
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])

    @asynccontextmanager
    async def turn(self, fact: Fact, request: LlmRequested, queued: Queued) -> AsyncGenerator[Turn]:
        name, wanted = self._place(request)
        model = wanted or self._resident(name)
        if model is None:
            raise NoSuchPlace(f"nothing is loaded on slot {name}: name a model, or load one there", field="model")
        lease_id = await self.leases.take(fact.scope, name, model, loads=wanted is not None)
        call = Call(request.call_id, model, fact.seq, self.now_s(), agent=f"{fact.scope}/{request.agent}", pin=name)
        turn = self._turns[call.id] = asyncio.get_running_loop().create_future()
        self._lease_of[call.id] = lease_id
        try:
            self.desk.asked(call)
            self._decide(name)
            if not turn.done() and (place := places(self.desk, self.now_s()).get(call.id)) is not None:
                await queued(max(place.position, 1), place.why)
            await turn
        except BaseException:
            if call.id in self.desk.slots[name].running:  # its turn came in the moment in which it was stopped
                self.desk.answered(call.id, name, self.now_s())
            else:
                self.desk.withdrawn(call.id)
            self._forget_call(call.id)
            self._decide(name)
            raise
        try:
            async with self.office.answers(name, model):
                yield Turn(self.slots[name], model, partial(self._reload, name, model, lease_id))
        finally:
            self.desk.answered(call.id, name, self.now_s())
            self._forget_call(call.id)
            self._decide(name)

    async def forget(self, run_id: str) -> None:
        self.desk.forget_agents(f"{run_id}/")
        await self.leases.end(run_id)

    def waiting(self, slot: str) -> int:
        return sum(call.pin == slot for call in self.desk.waiting)

    def configured(self) -> None:
        """Whoever has waited for room that there is now gets it at once; calls in flight beyond a smaller bound are answered."""
        for name, slot in list(self.desk.slots.items()):
            self.desk.configured(replace(slot, concurrency=self.office.known.slots[name].concurrency))
            self._decide(name)

    def _forget_call(self, call_id: str) -> None:
        self._turns.pop(call_id, None)
        self._lease_of.pop(call_id, None)

    # ---- where

    def _place(self, request: LlmRequested) -> tuple[str, str | None]:
        """The slot, and the model by the name that the slot has for it; None: what is loaded there."""
        known = self.office.known
        name = place_node(known, request.model, request.slot)
        if name is not None and name not in self.slots:
            raise NoSuchPlace(f"no slot is called {name!r}; the slots are {', '.join(sorted(self.slots))}", field="slot")
        if request.model is None:
            up = [each for each in known.order if each not in self.office.probes.down]
            return name or next(iter([*up, *known.order])), None
        where = [name] if name is not None else list(known.order)
        found = {each: model for each in where if (model := self._named(each, request.model)) is not None}
        if not found:
            raise NoSuchPlace(f"no slot lists the model {request.model!r}: see 'aetherium cards'", field="model")
        here = next((each for each, model in found.items() if self.office.state.slot(each).is_loaded(model)), next(iter(found)))
        return here, found[here]

    def _named(self, slot: str, model: str) -> str | None:
        state, spec = self.office.state.slot(slot), self.office.known.slots[slot]
        names = dict.fromkeys([*spec.models, *state.models, *state.listed])
        return next((each for each in names if same_model(each, model)), None)

    def _resident(self, slot: str) -> str | None:
        known, models = self.office.known, self.office.state.slot(slot).models
        return next((name for name, each in models.items() if each.state == "loaded" and not known.is_embedding(name)), None)

    # ---- when

    def _decide(self, name: str) -> None:
        """Take every decision that is due on a slot."""
        self._see(name)
        while (decision := self.desk.decide(name, self.now_s())) is not None:
            if isinstance(decision, Pause):
                asyncio.get_running_loop().call_later(max(0.0, decision.until_s - self.now_s()), self._decide, name)
                return
            self.desk.follow(decision, self.now_s())
            self._follow(decision)

    def _see(self, name: str) -> None:
        """Tell the desk of a model that came or went by another hand: a restore, an unload by a person."""
        slot = self.desk.slots[name]
        if slot.loading is not None or slot.running or (slot.resident is not None and self._is_there(name, slot.resident)):
            return
        resident = self._resident(name)
        if resident is not None and resident != slot.resident:
            self.desk.loaded(name, resident, self.now_s())
        elif resident is None and slot.resident is not None:
            self.desk.unloaded(name)

    def _follow(self, decision: Decision) -> None:
        match decision:
            case Dispatch(call=call):
                turn = self._turns.get(call.id)
                if turn is not None and not turn.done():
                    turn.set_result(None)
            case Load(slot=slot, model=model):
                self._loading[slot] = asyncio.create_task(self._bring_in(slot, model))
            case Leave() | Pause():
                pass

    async def _bring_in(self, slot: str, model: str) -> None:
        """Have a model loaded under the lease of a call that waits for it; the desk is told how it ended."""
        try:
            await self._load(slot, model, partial(self._waiting_lease, slot, model))
        except StoodDown:
            return  # the calls are not failed: they are asked again of the scheduler that is active now
        except Fault as fault:
            self._fail(slot, model, fault.message)
        finally:
            del self._loading[slot]
            if self._is_there(slot, model):
                self.desk.loaded(slot, model, self.now_s())
            else:
                self.desk.unloaded(slot)
        self._decide(slot)

    async def _reload(self, slot: str, model: str, lease_id: str) -> None:
        """What a server said to one call is no listing: the slot is looked at before anything is believed or done (KS 6.3)."""
        await self.office.probe(slot)
        lease = self.office.state.lease(lease_id)
        if not self._is_there(slot, model) and (lease is None or not lease.asked.rotates):
            raise LeaseRefused(f"{model} is no longer loaded on {slot}, and a run that names no model loads none", slot=slot)
        await self._load(slot, model, lambda: lease_id)

    def _waiting_lease(self, slot: str, model: str) -> str | None:
        """The lease of a call that waits for the model; None: nobody does any more."""
        waiting = [call.id for call in self.desk.waiting if call.model == model and call.pin == slot]
        return next((self._lease_of[each] for each in waiting if each in self._lease_of), None)

    async def _load(self, slot: str, model: str, lease: Callable[[], str | None]) -> None:
        tried = False
        while not self._is_there(slot, model):
            if (lease_id := lease()) is None:
                return
            before = self.office.changes
            if self._is_loading(slot, model):
                tried = True
            elif tried:
                reason = self.office.failures.get((slot, model), "the slot says that it is not there")
                raise LeaseRefused(f"{model} was not loaded on {slot}: {reason}", slot=slot)
            else:
                await self.office.do(NeedModel(lease_id, model))
                if self._is_loading(slot, model):
                    continue
            await self.office.changed_since(before)

    def _is_loading(self, slot: str, model: str) -> bool:
        found = self.office.state.slot(slot).models.get(model)
        return found is not None and found.state == "loading"

    def _is_there(self, slot: str, model: str) -> bool:
        return self.office.state.slot(slot).is_loaded(model)

    def _fail(self, slot: str, model: str, reason: str) -> None:
        for call in [call for call in self.desk.waiting if call.model == model and call.pin == slot]:
            turn = self._turns.get(call.id)
            if turn is not None and not turn.done():
                turn.set_exception(LeaseRefused(reason, slot=slot))
