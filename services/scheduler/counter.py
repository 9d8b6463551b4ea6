"""What others may ask the arbiter: leases, holds, and who waits for what; in JSON, for `api/inference` and the CLI (S14).

A caller polls or waits: a request that must queue is answered at once with its place, and `wait` answers when that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from services.scheduler.arbiter import Lease, Status, explain, waiting
from services.scheduler.arbiter.commands import HoldCard, Release, ReleaseHold, Renew, RequestLease, UnknownLease
from services.scheduler.office import Office
from shared.bodies import read
from shared.events.lease import Priority
from shared.ids import derived_id, new_id
from shared.lease_requests import MAX_WAIT_S, Ending, HoldEnding, HoldRequest, LeaseRef, LeaseRequest, Renewal

Json = Mapping[str, Any]


@dataclass
class Counter:
    """Answers for the arbiter. `verbs` are served as `aetherium.rpc.scheduler.<verb>`."""

    office: Office

    @property
    def verbs(self) -> dict[str, Any]:
        return {
            "lease_request": self.request,
            "lease": self.lease,
            "lease_renew": self.renew,
            "lease_release": self.release,
            "leases": self.leases,
            "queue": self.queue,
            "cards": self.cards,
            "models": self.models,
            "hold": self.hold,
            "hold_release": self.release_hold,
        }

    # ---- leases

    async def request(self, raw: Json) -> Json:
        """Ask for a slot. The same key gives the same lease; another request under it is refused."""
        asked = read(LeaseRequest, raw)
        lease_id = derived_id("lease", asked.key) if asked.key else new_id()
        command = RequestLease(
            lease_id=lease_id,
            holder=asked.holder,
            priority=Priority(asked.priority),
            slot=asked.slot,
            models=asked.models,
            resident_only=asked.resident_only,
            services=asked.services,
            services_mib=asked.services_mib,
            context_tokens=asked.context_tokens,
            key=asked.key,
            ttl=_span(asked.ttl_s),
            wait=_span(asked.wait_s),
        )
        await self.office.do(command)
        return self._view(lease_id)

    async def lease(self, raw: Json) -> Json:
        """A lease as it is; with `waitS`, as soon as its state is another than `seen`."""
        asked = read(LeaseRef, raw)
        with suppress(TimeoutError):  # nothing new: the caller asks again
            async with asyncio.timeout(min(asked.wait_s, MAX_WAIT_S)):
                while self._view(asked.lease_id)["state"] == asked.seen:
                    await self.office.changed_since(self.office.changes)
        return self._view(asked.lease_id)

    async def renew(self, raw: Json) -> Json:
        asked = read(Renewal, raw)
        await self.office.do(Renew(asked.lease_id, _span(asked.ttl_s)))
        return self._view(asked.lease_id)

    async def release(self, raw: Json) -> Json:
        asked = read(Ending, raw)
        await self.office.do(Release(asked.lease_id, asked.reason))
        return self._view(asked.lease_id)

    async def leases(self, _: Json) -> Json:
        return {"leases": [self._open_view(each) for each in self.office.state.leases()]}

    async def queue(self, _: Json) -> Json:
        """Everybody who waits, card by card in the order in which they are served."""
        rows = waiting(self.office.state, self.office.answering)
        return {
            "queue": [
                {
                    "leaseId": row.lease_id,
                    "holder": row.holder,
                    "priority": str(row.priority),
                    "slot": row.slot,
                    "card": row.card,
                    "position": row.position,
                    "code": row.code,
                    "reason": row.reason,
                    "waitsFor": list(row.waits_for),
                }
                for row in rows
            ]
        }

    # ---- cards

    async def cards(self, _: Json) -> Json:
        state = self.office.state
        return {"cards": [self._card(name) for name in sorted(state.catalogue.cards)]}

    def _card(self, name: str) -> Json:
        state = self.office.state
        card, on = state.catalogue.cards[name], state.card(name)
        slots = [self._slot(spec.name) for spec in state.catalogue.on_card(name)]
        holds = [{"holdId": each.hold_id, "holder": each.holder, "held": each.held, "reason": each.reason} for each in on.holds.values()]
        return {
            "card": name,
            "sizeMib": card.size_mib or on.size_mib,
            "usedMib": on.used_mib,
            "outsideMib": on.outside_mib,
            "slots": slots,
            "holds": holds,
        }

    def _slot(self, name: str) -> Json:
        slot = self.office.state.slot(name)
        models = [
            {"model": each.name, "state": each.state, "mib": each.mib, "contextTokens": each.context_tokens, "ours": each.ours}
            for each in slot.models.values()
        ]
        state = "down" if name in self.office.probes.down else "known" if slot.known else "unknown"
        return {"slot": name, "state": state, "reason": "" if slot.known else slot.reason, "models": models}

    async def models(self, _: Json) -> Json:
        """What each slot lists, and whether it is there."""
        state = self.office.state
        rows = [
            {"model": model, "slot": name, "resident": state.slot(name).is_loaded(model)}
            for name, spec in state.catalogue.slots.items()
            if not spec.is_hidden
            for model in sorted({*spec.models, *state.slot(name).listed, *state.slot(name).models})
        ]
        return {"models": rows}

    async def hold(self, raw: Json) -> Json:
        asked = read(HoldRequest, raw)
        hold_id = asked.hold_id or new_id()
        await self.office.do(HoldCard(hold_id, asked.holder, asked.card, asked.reason, _span(asked.ttl_s)))
        return {"holdId": hold_id, **self._card(asked.card)}

    async def release_hold(self, raw: Json) -> Json:
        asked = read(HoldEnding, raw)
        await self.office.do(ReleaseHold(asked.hold_id, asked.reason))
        return {"holdId": asked.hold_id, "state": "released"}

    # ---- views

    def _view(self, lease_id: str) -> dict[str, Any]:
        """
        Raises:
            UnknownLease: nobody asked for it, or it ended too long ago.
        """
        found = self.office.state.lease(lease_id)
        if found is not None:
            return self._open_view(found)
        ended = self.office.state.ending(lease_id)
        if ended is None:
            raise UnknownLease(f"no lease {lease_id!r} is known: request one", field="leaseId")
        return {
            **_about(lease_id, ended.asked.holder, ended.asked.priority, ended.asked.slot, ended.asked.card),
            "models": [need.name for need in ended.asked.models],
            "state": ended.how,
            "reason": ended.reason,
            "endedAt": ended.at.isoformat(),
        }

    def _open_view(self, each: Lease) -> dict[str, Any]:
        asked = each.asked
        view: dict[str, Any] = {
            **_about(each.id, asked.holder, asked.priority, asked.slot, asked.card),
            "models": [need.name for need in asked.models],
            "state": each.status.value,
            "expiresAt": each.expires_at.isoformat() if each.expires_at else None,
            "runGuid": asked.run_id,
        }
        if each.preemption is not None:
            view |= {"state": "release_wanted", "releaseBy": each.preemption.deadline_at.isoformat(), "wantedBy": each.preemption.by_holder}
        why = explain(self.office.state, each.id, self.office.answering) if each.status is not Status.GRANTED else None
        if why is not None:
            view |= {"position": why.position, "code": why.code, "reason": why.reason, "waitsFor": list(why.waits_for)}
        return view


def _about(lease_id: str, holder: str, priority: Priority, slot: str, card: str) -> dict[str, Any]:
    return {"leaseId": lease_id, "holder": holder, "priority": str(priority), "slot": slot, "card": card}


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
