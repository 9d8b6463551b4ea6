"""The leases of runs: taken before a run's first call on a slot, kept alive while it lives, ended together when it is over (KS 6.1).

A run that names a model takes a lease whose models take turns, so that calls of several models share a slot in the order that
the desk decides. A run that names none takes what is loaded, and loads nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import structlog

from services.scheduler.arbiter import Status
from services.scheduler.arbiter.commands import EndRun, LeaseEnded, Renew, RequestLease, UnknownLease
from services.scheduler.backends.faults import BackendFault
from services.scheduler.office import Office
from shared import subjects
from shared.ends import FACTS
from shared.eventlog import EventLog
from shared.events.lease import Priority
from shared.ids import derived_id

logger = structlog.get_logger()


class LeaseRefused(BackendFault):
    """The run does not get its place on the slot; the message has the arithmetic, or says who has it."""

    code = "lease.refused"


@dataclass
class RunLeases:
    """What runs hold. One lease a run, slot and model; asked for again after one that ended while its run went on."""

    office: Office
    log: EventLog
    _asked: defaultdict[str, dict[tuple[str, str], int]] = field(
        default_factory=lambda: defaultdict[str, dict[tuple[str, str], int]](dict[tuple[str, str], int])
    )

    async def take(self, run_id: str, slot: str, model: str, *, loads: bool) -> str:
        """The run's lease there, once it is granted. `loads` False: the model is there, and nothing is loaded for it (S12).

        Raises:
            LeaseRefused: it was refused, or ended while it waited.
        """
        place = (slot, model)
        asked = self._asked[run_id]
        lease_id = _lease_id(run_id, *place, asked.setdefault(place, 0))
        if self.office.state.ending(lease_id) is not None:  # it ran out, or was ended; the run goes on
            asked[place] += 1
            lease_id = _lease_id(run_id, *place, asked[place])
        if self.office.state.lease(lease_id) is None:
            await self.office.do(
                RequestLease(
                    lease_id=lease_id,
                    holder=f"run {run_id[:8]}",
                    priority=Priority.RUN,
                    slot=slot,
                    models=(model,),
                    resident_only=not loads,
                    rotates=loads,
                    run_id=run_id,
                )
            )
        await self._granted(lease_id)
        return lease_id

    async def _granted(self, lease_id: str) -> None:
        while True:
            before = self.office.changes
            found, ended = self.office.state.lease(lease_id), self.office.state.ending(lease_id)
            if found is not None and found.status is Status.GRANTED:
                return
            if ended is not None:
                raise LeaseRefused(f"the lease on {ended.asked.slot} was {ended.how}: {ended.reason}", slot=ended.asked.slot)
            await self.office.changed_since(before)

    async def end(self, run_id: str) -> None:
        """The run is over, however it ended."""
        self._asked.pop(run_id, None)
        await self.office.do(EndRun(run_id))

    async def keep(self) -> None:
        """Take over the leases of living runs, end those of dead ones, and renew in time; never returns."""
        await self.office.ready.wait()
        await self.sweep()
        while True:
            await self.office.clock.sleep(self.office.known.times.lease_ttl.total_seconds() / 3)
            for each in [each for each in self.office.state.leases() if each.priority is Priority.RUN and each.status is Status.GRANTED]:
                try:
                    await self.office.do(Renew(each.id))
                except (LeaseEnded, UnknownLease) as fault:
                    logger.info("lease_gone", lease=each.id, reason=fault.message)

    async def sweep(self) -> None:
        """End the leases of runs that ended while no scheduler was there to see it."""
        for run_id in {each.asked.run_id for each in self.office.state.leases() if each.asked.run_id is not None}:
            newest = await self.log.last(subjects.Aggregate("run", run_id).filter)
            if newest is None or isinstance(newest.event, FACTS):
                await self.office.do(EndRun(run_id, "the run was over before"))


def _lease_id(run_id: str, slot: str, model: str, count: int) -> str:
    return derived_id("lease", run_id, slot, model, str(count))
