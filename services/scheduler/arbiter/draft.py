"""A decision in the making: the facts decided so far, and the state that they make. Seen from outside, `decide` is pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from services.scheduler.arbiter.evolve import evolve
from services.scheduler.arbiter.planning import context_for
from services.scheduler.arbiter.state import Answering, Lease, Model, State, Status
from services.scheduler.slots import Slot
from services.scheduler.vram import Need
from shared.events import card, lease, model
from shared.events.envelope import Event
from shared.events.model import Purpose

QUIET = frozenset({lease.LeaseRequested, lease.LeaseQueued, lease.LeaseGranted, lease.LeaseRenewed, lease.LeasePreemptRequested})
"""Facts of leases that let nobody else on the card go on; what more a grant does is in `grant`."""


@dataclass(slots=True)
class Draft:
    state: State
    now: datetime
    answering: Answering
    facts: list[Event] = field(default_factory=list[Event])
    touched: set[str] = field(default_factory=set[str])  # cards on which something may now be possible
    arrived: list[str] = field(default_factory=list[str])  # leases that were just asked for
    changed: set[str] = field(default_factory=set[str])  # cards that hold other models than before

    def add(self, fact: lease.LeaseFact | model.ModelFact | card.CardFact, *, quiet: bool = False) -> None:
        self.facts.append(fact)
        self.state = evolve(self.state, fact)
        kind = type(fact)
        if not fact.TYPE.startswith("lease."):
            self.changed.add(fact.card)
            self.touched.add(fact.card)
        elif not quiet and kind not in QUIET and self.is_unsettled(fact.card):
            self.touched.add(fact.card)

    def is_unsettled(self, card: str) -> bool:
        """Whether anybody on the card waits for others there: a lease, a hold or a restore that is under way."""
        on, known = self.state.card(card), self.state.catalogue
        if on.holds or any(each.status is not Status.GRANTED or each.preemption is not None for each in on.leases.values()):
            return True
        restores = (self.state.slot(spec.name).restore for spec in known.on_card(card))
        return any(restore is not None and restore.under_way for restore in restores)

    def touch_run(self, each: Lease) -> None:
        """A run that is under way no longer waits for holds and runs that come before it, on its other cards too."""
        if each.asked.run_id is not None:
            self.touched |= {other.asked.card for other in self.state.of_run(each.asked.run_id) if not other.is_live}

    # ---- leases

    def about(self, each: Lease) -> dict[str, Any]:
        """The fields that all facts of a lease begin with."""
        asked = each.asked
        return {
            "at": self.now,
            "slot": asked.slot,
            "card": asked.card,
            "lease_id": asked.lease_id,
            "holder": asked.holder,
            "priority": asked.priority,
        }

    def grant(self, each: Lease) -> None:
        asked = each.asked
        self.add(
            lease.LeaseGranted(
                **self.about(each),
                models=asked.models,
                run_id=asked.run_id,
                expires_at=self.now + timedelta(seconds=asked.ttl_s),
                waited_s=(self.now - asked.at).total_seconds(),
            )
        )
        self.touch_run(each)
        if any(other.preemption is not None for other in self.state.card(asked.card).leases.values()):
            self.touched.add(asked.card)  # who was asked to release for it may go on

    def refuse(self, each: Lease, code: str, reason: str) -> None:
        """Refuse a lease, and end those that were asked for together with it (KS 6.1: a refusal releases all of them).

        Siblings end first: a crash in between leaves the refusal to be decided again.
        """
        if each.asked.group:
            self._end_siblings(each, f"{each.asked.slot} was refused: {reason}")
        is_news = each.order == self.state.count and not each.queued  # nobody has waited behind it yet
        self.add(lease.LeaseRefused(**self.about(each), code=code, reason=reason), quiet=is_news)

    def release(self, each: Lease, reason: str) -> None:
        self.add(lease.LeaseReleased(**self.about(each), run_id=each.asked.run_id, reason=reason))

    def expire(self, each: Lease, reason: str) -> None:
        if not each.is_live:
            self._end_siblings(each, f"{each.asked.slot} was not to be had in time")
        self.add(lease.LeaseExpired(**self.about(each), waiting=not each.is_live, run_id=each.asked.run_id, reason=reason))

    def lose(self, each: Lease, reason: str) -> None:
        self.add(lease.LeaseLost(**self.about(each), run_id=each.asked.run_id, reason=reason))

    def preempt(self, each: Lease, by: str, by_holder: str, reason: str) -> None:
        self.add(lease.LeasePreempted(**self.about(each), by=by, by_holder=by_holder, reason=reason))

    def ask_to_release(self, leases: Iterable[Lease], by: str, by_holder: str) -> None:
        """Cooperative preemption: the grace runs from the first time that somebody asked."""
        deadline_at = self.now + self.state.catalogue.times.preempt_grace
        for each in leases:
            if each.preemption is None:
                reason = f"{by_holder} needs card {each.asked.card}: release by {deadline_at:%H:%M:%S} UTC"
                self.add(
                    lease.LeasePreemptRequested(**self.about(each), by=by, by_holder=by_holder, deadline_at=deadline_at, reason=reason)
                )

    def _end_siblings(self, each: Lease, reason: str) -> None:
        group = each.asked.group
        siblings = [other for other in self.state.leases() if group and other.asked.group == group and other.id != each.id]
        for other in sorted(siblings, key=lambda other: other.order):
            if other.is_live:
                self.release(other, reason)
            else:
                self.add(lease.LeaseRefused(**self.about(other), code="sibling_refused", reason=reason))

    # ---- models

    def load(self, need: Need, spec: Slot, purpose: Purpose, whose: Lease | None, reason: str) -> None:
        own = spec.models.get(need.name)
        asked = whose.asked if whose is not None else None
        self.add(
            model.ModelLoading(
                at=self.now,
                slot=spec.name,
                card=spec.card,
                model=need.name,
                mib=need.mib,
                context_tokens=context_for(self.state, whose, need.name) if whose else own.context_tokens if own else None,
                purpose=purpose,
                lease_id=asked.lease_id if asked else None,
                holder=asked.holder if asked else "",
                run_id=asked.run_id if asked else None,
                card_mib=self.state.size_of(spec.card),
                deadline_at=self.now + self.state.catalogue.times.load_timeout,
                reason=reason,
            )
        )

    def unload(self, each: Model, slot: str, purpose: Purpose, whose: Lease | None, reason: str, instance: str | None = None) -> None:
        asked = whose.asked if whose is not None else None
        self.add(
            model.ModelUnloading(
                at=self.now,
                slot=slot,
                card=self.state.catalogue.slots[slot].card,
                model=each.name,
                instance=instance,
                context_tokens=each.context_tokens,
                purpose=purpose,
                lease_id=asked.lease_id if asked else None,
                holder=asked.holder if asked else "",
                run_id=asked.run_id if asked else None,
                deadline_at=self.now + self.state.catalogue.times.unload_timeout,
                reason=reason,
            )
        )

    def lose_slot(self, slot: str, reason: str) -> None:
        spec = self.state.catalogue.slots[slot]
        self.add(model.SlotUnknown(at=self.now, slot=slot, card=spec.card, reason=reason))
