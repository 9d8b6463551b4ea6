"""The arbiter at work: commands one after the other, their facts stored before anything is done, then what they ask for.

The rules are `arbiter`'s, which is pure. Here are its surroundings: the log, the inference servers, the clock, and those who
wait for an answer. A process that dies between a fact and what it asks for finds it again as `owed`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

import structlog

from services.scheduler.arbiter import Load, Notify, State, Unload, aggregate_of, decide_and_evolve, effects, fold, next_at, owed
from services.scheduler.arbiter.commands import (
    Command,
    FailLoad,
    FailUnload,
    FinishLoad,
    FinishUnload,
    LoseSlot,
    ObserveSlot,
    Seen,
    Sweep,
)
from services.scheduler.backends.faults import StateUnknown
from services.scheduler.freed import NOISE_MIB, Meter, settled_mib
from services.scheduler.placement import Probes
from services.scheduler.slots import Catalogue
from shared import subjects
from shared.clock import Clock
from shared.errors import Conflict, Fault
from shared.eventlog import EventLog, Write, read_together
from shared.events.envelope import Event, Fact
from shared.events.model import ModelLoadFailed
from shared.tenure import StoodDown

DOMAINS = ("lease", "model", "card")
PROBE_S = 5.0
RELIEVE_S = 10.0
SETTLE_S = 0.05  # the shortest pause between two looks at the clock

logger = structlog.get_logger()


class Server(Protocol):
    """What the arbiter needs of an inference server: to see, to load, to unload."""

    async def listing(self) -> tuple[Seen, ...]:
        """What it holds and could load.

        Raises:
            Fault: it did not say; its state is unknown then.
        """
        ...

    async def load(self, model: str, context_tokens: int | None) -> None:
        """Load a model, and return when it can answer.

        Raises:
            StateUnknown: the server vanished meanwhile.
            Fault: it refused or failed.
        """
        ...

    async def unload(self, model: str, instance: str | None) -> None: ...


class Tenure(Protocol):
    """Whether this process is the one that decides."""

    async def confirm(self, *, anew: bool = False) -> None:
        """Return if it is; `anew`: whatever was known a moment ago.

        Raises:
            StoodDown: another process decides now.
        """
        ...


class Undisputed:
    """The tenure of the only process there is."""

    async def confirm(self, *, anew: bool = False) -> None:
        return None


@dataclass
class Office:
    """The one arbiter of a box. `answering` counts the calls in flight by slot and model."""

    log: EventLog
    known: Catalogue
    servers: Mapping[str, Server]
    clock: Clock
    sweep_s: float = 5.0
    tenure: Tenure = field(default_factory=Undisputed)
    meter: Meter | None = None  # what the cards' telemetry reads
    probes: Probes = field(default_factory=Probes)
    answering: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict[tuple[str, str], int](int))
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # the log was read
    failures: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])  # why a model last failed to load
    changes: int = 0  # counted so that whoever waits for something to move misses nothing
    state: State = field(init=False)
    _seqs: dict[str, int] = field(default_factory=dict[str, int])
    _read_to: int = 0  # in the log; beyond it only this process's own facts are known
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _observers: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])
    _work: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __post_init__(self) -> None:
        self.state = State(self.known)

    # ---- decide

    async def do(self, command: Command) -> list[Event]:
        """The facts that follow from a command, stored; what they ask for is under way when this returns.

        Raises:
            BadRequest, UnknownLease, LeaseEnded: see `arbiter.commands`; nothing happened.
            StoodDown: another process decides now; what was stored last, that one carries out.
        """
        async with self._lock:
            while True:
                facts, after = decide_and_evolve(self.state, command, self.clock.now(), self.answering)
                if not facts:
                    return []
                await self.tenure.confirm()
                try:
                    await self._store(facts)
                except Conflict:  # somebody else decided meanwhile, who may hold the office now: else decide again on what they did
                    await self.tenure.confirm(anew=True)
                    await self._catch_up()
                    continue
                self.state = after
                break
        await self.tenure.confirm()  # a process that was stopped in between does not act on what it has stored
        self.failures |= {(fact.slot, fact.model): fact.reason for fact in facts if isinstance(fact, ModelLoadFailed)}
        self._carry_out(facts)
        self._has_moved()
        return facts

    async def _store(self, facts: Sequence[Event]) -> None:
        """In the order in which they were decided, over all their aggregates, together."""
        writes: list[Write] = []
        begun: set[str] = set()
        for event in facts:
            aggregate = aggregate_of(event)
            name = str(aggregate)
            writes.append(Write(aggregate, [event], None if name in begun else self._seqs.get(name, 0)))
            begun.add(name)
        for row in await self.log.commit(writes):
            self._note(row)

    def _note(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._seqs[str(fact.aggregate)] = fact.seq

    async def _catch_up(self) -> list[Event]:
        """Take in what the log holds and is not known here: another's facts may stand before our own last one. Gives them."""
        facts = await read_together(self.log, *map(subjects.of_domain, DOMAINS), after=self._read_to)
        fresh = [fact for fact in facts if fact.seq > self._seqs.get(str(fact.aggregate), 0)]
        self._read_to = max((fact.seq for fact in facts), default=self._read_to)
        events = [fact.event for fact in fresh]
        if events:
            self._note(fresh)
            self.state = fold(self.state, events)
            self._has_moved()  # whatever is decided next: somebody may wait for just this
        return events

    def _has_moved(self) -> None:
        self.changes += 1
        observers, self._observers = self._observers, set()
        for observer in observers:
            if not observer.done():
                observer.set_result(None)

    async def changed_since(self, count: int) -> None:
        """Wait until `changes` is beyond `count`."""
        while self.changes <= count:
            observer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._observers.add(observer)
            await observer

    # ---- carry out

    def _carry_out(self, facts: Sequence[Event]) -> None:
        for effect in effects(facts):
            if not isinstance(effect, Notify):  # who waits for news of a lease sees the change
                self._begin(effect)

    def _begin(self, effect: Load | Unload) -> None:
        task = asyncio.create_task(self._carried_out(effect))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _carried_out(self, effect: Load | Unload) -> None:
        with suppress(StoodDown):  # how it ended, the active scheduler sees on the server
            await (self._load(effect) if isinstance(effect, Load) else self._unload(effect))

    async def _load(self, wanted: Load) -> None:
        try:
            async with self._until(wanted.deadline_at):
                await self.servers[wanted.slot].load(wanted.model, wanted.context_tokens)
        except TimeoutError:
            await self.do(FailLoad(wanted.slot, wanted.model, "timed_out", "the load did not end in time", unknown=True))
        except Fault as fault:
            vanished = isinstance(fault, StateUnknown)
            await self.do(FailLoad(wanted.slot, wanted.model, fault.code, fault.message, unknown=vanished))
        else:
            await self.do(FinishLoad(wanted.slot, wanted.model, await self._seen(wanted.slot)))

    async def _unload(self, wanted: Unload) -> None:
        try:
            async with self._until(wanted.deadline_at):
                await self.servers[wanted.slot].unload(wanted.model, wanted.instance)
        except TimeoutError:
            await self.do(FailUnload(wanted.slot, wanted.model, "the unload did not end in time"))
        except Fault as fault:
            await self.do(FailUnload(wanted.slot, wanted.model, fault.message))
        else:
            await self.do(FinishUnload(wanted.slot, wanted.model, wanted.instance, await self._left_mib(wanted)))

    async def _left_mib(self, gone: Unload) -> int | None:
        """What is in use on the card after an unload, so that no memory is planned with that did not come back; None: unknown."""
        if self.meter is None:
            return None
        card = self.known.slots[gone.slot].card
        before, model = self.state.card(card).used_mib, self.state.slot(gone.slot).models.get(gone.model)
        size = model.mib if model is not None else None
        wanted = before - size + NOISE_MIB if before is not None and size is not None else None
        try:
            async with self._until(gone.deadline_at):
                return await settled_mib(self.meter, card, wanted, self.clock)
        except TimeoutError:
            return None

    def _until(self, deadline_at: datetime) -> asyncio.Timeout:
        return asyncio.timeout(max((deadline_at - self.clock.now()).total_seconds(), 0.0))

    async def _seen(self, slot: str) -> tuple[Seen, ...] | None:
        try:
            return await self.servers[slot].listing()
        except Fault as fault:
            logger.warning("slot_listing_failed", slot=slot, reason=fault.message)
            return None

    async def adopt(self, known: Catalogue, sweep_s: float) -> None:
        """Decide by these settings from here on. What was decided stands; what they make possible is done now."""
        async with self._lock:
            self.known, self.sweep_s = known, sweep_s
            self.state = replace(self.state, catalogue=known)
        await self.do(Sweep())
        self._has_moved()  # whoever waits sees for himself, and the sweep finds its new pace

    # ---- calls in flight

    @asynccontextmanager
    async def answers(self, slot: str, model: str) -> AsyncGenerator[None]:
        """While the block runs, the model is answering: it is not evicted."""
        self.answering[slot, model] += 1
        try:
            yield
        finally:
            self.answering[slot, model] -= 1
            self._has_moved()  # somebody may wait for it to fall silent

    # ---- time

    async def run(self) -> None:
        """Begin where the log left off, then probe and sweep; never returns."""
        async with self._lock:
            await self._catch_up()
        self.ready.set()
        try:
            await asyncio.gather(*(self.probe(slot) for slot in self.servers))
            for effect in owed(self.state):
                self._begin(effect)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sweep())
                tasks.create_task(self._relieve())
                for slot in self.servers:
                    tasks.create_task(self._watch(slot))
        finally:
            for task in self._work:
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)

    async def probe(self, slot: str) -> None:
        """Look at a slot. Anything but a listing makes its state unknown, never empty."""
        try:
            seen = await self.servers[slot].listing()
        except Fault as fault:
            self.probes = self.probes.after(slot, answered=False)
            await self.do(LoseSlot(slot, fault.message))
        else:
            self.probes = self.probes.after(slot, answered=True)
            await self.do(ObserveSlot(slot, seen))

    async def _watch(self, slot: str) -> None:
        while True:
            await self.clock.sleep(PROBE_S)
            await self.probe(slot)

    async def _relieve(self) -> None:
        """Carry out what a predecessor stored in its last moment, after this one had read the log."""
        while True:
            await self.clock.sleep(RELIEVE_S)
            async with self._lock:
                self._carry_out(await self._catch_up())

    async def _sweep(self) -> None:
        while True:
            before = self.changes
            await self.do(Sweep())
            due = next_at(self.state, self.clock.now())
            left_s = self.sweep_s if due is None else min(self.sweep_s, (due - self.clock.now()).total_seconds())
            waiting = asyncio.create_task(self.changed_since(before))
            sleeping = asyncio.create_task(self.clock.sleep(max(left_s, SETTLE_S)))
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (waiting, sleeping):
                task.cancel()
