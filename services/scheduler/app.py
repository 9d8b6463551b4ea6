"""Composition root of the scheduler: `python -m services.scheduler.app`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import structlog

from services.scheduler import capabilities, managed, slot_checks
from services.scheduler.arbiter.commands import MeasureCard
from services.scheduler.backends.choose import choose
from services.scheduler.backends.faults import BackendFault
from services.scheduler.calls import Calls
from services.scheduler.cards.machine import Machine
from services.scheduler.cards.matching import Configured
from services.scheduler.cards.telemetry import Measured, Reader, Telemetry
from services.scheduler.counter import Counter
from services.scheduler.decision_layer import DecisionLayer
from services.scheduler.live import Live
from services.scheduler.office import Office
from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.slots import Slot as Place
from services.scheduler.relay_places import RelayPlaces
from services.scheduler.reload import Reload
from services.scheduler.run_leases import RunLeases
from services.scheduler.slots import catalogue
from services.scheduler.turns import LeasedSlots, OneSlot, Slot, Turns
from shared import config, process, rpc, subjects
from shared.clock import SystemClock
from shared.config import Settings
from shared.eventlog import NatsEventLog
from shared.events import run, tool
from shared.inbox import NatsInbox
from shared.process import Process
from shared.scheduler_settings import SchedulerSettings
from shared.tenure import NatsRegister, StoodDown, Tenure

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Floor:
    """Where calls are answered, and the arbiter over it."""

    office: Office
    leases: RunLeases
    slots: dict[str, Slot]
    turns: Turns

    @property
    def first(self) -> Slot:
        """The slot that a call goes to when it names none."""
        return next((self.slots[name] for name in self.office.known.order if name in self.slots), next(iter(self.slots.values())))


async def main(own: Process) -> None:
    """Stand by until no other scheduler is active, be the active one, and stand by again should another take over."""
    for problem in slot_checks.problems(own.settings.scheduler):
        logger.warning("slot_setting", problem=str(problem))
    tenure = Tenure(NatsRegister(own.bus, "scheduler"), own.owner, SystemClock())
    serves = asyncio.Event()

    async def missing() -> dict[str, str]:
        return {} if serves.is_set() or tenure.stands_by else {"scheduler": "neither active nor standing by yet"}

    server = await process.serve_health(own, missing)
    try:
        while True:
            await tenure.take()
            try:
                await serve(own, tenure, serves)
            except* StoodDown:
                logger.warning("work_left_to_the_active_scheduler")
            finally:
                serves.clear()
    finally:
        await tenure.release()
        if server is not None:
            server.close()


async def serve(own: Process, tenure: Tenure, serves: asyncio.Event) -> None:
    """Be the active scheduler; `serves` is set once it answers.

    Raises:
        ExceptionGroup: of `StoodDown`, once another is.
    """
    settings = own.settings.scheduler
    floor = await compose(own.settings, own.log, tenure)
    cards = card_telemetry(settings, floor.office)
    calls = Calls(own.log, floor.turns, Live(own.bus))
    inbox = NatsInbox(own.bus, own.log, "scheduler", (subjects.every(run.LlmRequested.TYPE),), poisoned=calls.give_up)
    decisions = DecisionLayer(own.settings.decision, floor.office, {name: slot.backend for name, slot in floor.slots.items()}, own.log)
    verbs = {**_verbs(floor, own.settings.inference.turns), **Counter(floor.office).verbs}
    more = {"relay_places": RelayPlaces(floor.office).verb, "decide": decisions.verb}
    service = await rpc.serve(own.bus, "scheduler", {**verbs, **more})
    after = await own.log.last_seq()
    serves.set()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_end_with(tenure))
            tasks.create_task(floor.office.run())
            tasks.create_task(floor.leases.keep())
            tasks.create_task(_reload(settings, floor).run())
            if cards is not None:
                tasks.create_task(cards.run())
            tasks.create_task(calls.watch_ends(after=after))
            tasks.create_task(read_ahead(own.log, after=after))
            tasks.create_task(inbox.run(calls.handle))
    finally:
        if own.bus.client.is_connected:
            await service.stop()
        await decisions.close()
        for slot in floor.slots.values():
            await slot.backend.close()


async def _end_with(tenure: Tenure) -> None:
    """
    Raises:
        StoodDown: another scheduler is active; whatever runs beside this is cancelled.
    """
    await tenure.hold()
    await tenure.confirm()


async def compose(settings: Settings, log: NatsEventLog, tenure: Tenure) -> Floor:
    """The configured slots; without any, one for the inference server that was found or named."""
    inference, chosen = settings.inference, settings.scheduler
    servers = await managed.servers(chosen)
    office = Office(log, catalogue(chosen), servers, SystemClock(), chosen.lease_sweep_s, tenure)
    leases = RunLeases(office, log)
    if servers:
        slots = {
            name: Slot(name, server.backend, chosen.slots[name].concurrency, inference.idle_timeout_s) for name, server in servers.items()
        }
        desk = Desk([Place(name, slot.concurrency) for name, slot in slots.items()])
        return Floor(office, leases, slots, LeasedSlots(office, leases, slots, desk, time.monotonic))
    key = inference.api_key.get_secret_value() if inference.api_key else None
    backend = await choose(inference.url, inference.kind, key)
    only = Slot("primary", backend, inference.concurrency, inference.idle_timeout_s, inference.model)
    return Floor(office, leases, {only.name: only}, OneSlot(only))


def _verbs(floor: Floor, turns: capabilities.Turns) -> dict[str, Any]:
    async def slots(_: dict[str, object]) -> dict[str, object]:
        rows: list[dict[str, object]] = []
        for slot in floor.slots.values():
            health = await slot.backend.healthy()
            rows.append(
                {
                    "name": slot.name,
                    "backend": slot.backend.name,
                    "state": health.state,
                    "reason": health.reason,
                    "waiting": floor.turns.waiting(slot.name),
                }
            )
        return {"slots": rows, "at": time.time()}

    async def profile(ask: dict[str, object]) -> dict[str, object]:
        slot = floor.slots.get(str(ask.get("slot") or "")) or floor.first
        name = str(ask.get("model") or slot.model or "")
        if not name:
            try:
                name = next((model.id for model in await slot.backend.models()), "")
            except BackendFault as fault:
                logger.warning("models_unknown", reason=fault.message)
        known = capabilities.profile(name, turns)
        return {"model": known.model, "guided": known.guided, "source": known.source}

    return {"slots": slots, "profile": profile}


def _reload(settings: SchedulerSettings, floor: Floor) -> Reload:
    async def apply(changed: SchedulerSettings) -> None:
        await floor.office.adopt(catalogue(changed), changed.lease_sweep_s)
        floor.turns.configured()

    return Reload(config.file_of(), settings, lambda: config.load().scheduler, apply, SystemClock())


def card_telemetry(settings: SchedulerSettings, office: Office, machine: Reader | None = None) -> Telemetry | None:
    """What tells the arbiter of the cards, and what it asks after an unload; None where no card is said to be on this machine."""
    if not any(each.device for each in settings.cards.values()):
        return None

    async def measured(card: Measured) -> bool:
        await office.do(MeasureCard(card.card, card.used_mib, card.size_mib))
        return card.used_mib is None or not office.state.is_changing(card.card)  # while models come or go it is not taken

    cards = [Configured(name, each.device, each.size_mib) for name, each in settings.cards.items()]
    office.meter = reading = Telemetry(machine or Machine(), cards, measured, office.clock)
    return reading


async def read_ahead(log: NatsEventLog, *, after: int) -> None:
    """Keep what the next prompts are made of: each such fact is part of one, and reading it then would delay the call; never ends."""
    async for fact in log.follow(*map(subjects.every, (run.MessageAdded.TYPE, tool.ToolCompleted.TYPE)), after=after):
        log.keep(fact)


if __name__ == "__main__":
    process.run("scheduler", main)
