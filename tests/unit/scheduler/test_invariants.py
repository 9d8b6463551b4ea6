"""Each rule that `leases verify` checks is broken once, and a log of the arbiter's own breaks none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from services.scheduler.arbiter import aggregate_of
from services.scheduler.invariants import violations
from shared.events import card, lease, llm, model
from shared.events.envelope import Event, Fact
from shared.events.lease import ModelNeed, Priority
from shared.subjects import Aggregate
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, START, started


class Log:
    """Facts as somebody else may have written them, on the slot `primary` of the card `gpu0`."""

    def __init__(self) -> None:
        self.now: datetime = START
        self.facts: list[Fact] = []

    def add(self, event: Event, scope: str | None = None) -> Log:
        aggregate = aggregate_of(event) if scope is None else Aggregate(event.TYPE.partition(".")[0], scope)
        seq = len(self.facts) + 1
        self.facts.append(Fact(seq, f"id-{seq}", self.now, "test", aggregate, event))
        return self

    def wait(self, seconds: float) -> Log:
        self.now += timedelta(seconds=seconds)
        return self

    def place(self) -> dict[str, Any]:
        return {"at": self.now, "slot": "primary", "card": "gpu0"}

    def _lease(self, lease_id: str, priority: Priority) -> dict[str, Any]:
        return {**self.place(), "lease_id": lease_id, "holder": lease_id, "priority": priority}

    def ask(self, lease_id: str, priority: Priority, name: str = "m", mib: int = 10, **more: Any) -> Log:
        until = self.now + timedelta(seconds=600)
        models = (ModelNeed(name=name, mib=mib),)
        return self.add(lease.LeaseRequested(**self._lease(lease_id, priority), models=models, wait_until=until, **more))

    def admit(self, lease_id: str, priority: Priority, name: str = "m", mib: int = 10, card_mib: int | None = None) -> Log:
        loads = (ModelNeed(name=name, mib=mib),)
        return self.add(lease.LeaseAdmitted(**self._lease(lease_id, priority), loads=loads, card_mib=card_mib))

    def grant(self, lease_id: str, priority: Priority) -> Log:
        return self.add(lease.LeaseGranted(**self._lease(lease_id, priority), expires_at=self.now + timedelta(seconds=120)))

    def live(self, lease_id: str, priority: Priority, name: str = "m") -> Log:
        return self.ask(lease_id, priority, name).grant(lease_id, priority)

    def want_release(self, lease_id: str, priority: Priority, by: str) -> Log:
        deadline_at = self.now + timedelta(seconds=30)
        fields = self._lease(lease_id, priority)
        return self.add(lease.LeasePreemptRequested(**fields, by=by, by_holder=by, deadline_at=deadline_at))

    def preempt(self, lease_id: str, priority: Priority, by: str) -> Log:
        return self.add(lease.LeasePreempted(**self._lease(lease_id, priority), by=by, by_holder=by))

    def release(self, lease_id: str, priority: Priority) -> Log:
        return self.add(lease.LeaseReleased(**self._lease(lease_id, priority)))

    def see(self, name: str, *, ours: bool = True, mib: int = 10) -> Log:
        seen = model.ObservedModel(name=name, state="loaded", mib=mib, ours=ours)
        return self.add(model.ModelsObserved(**self.place(), models=(seen,)))

    def load(self, name: str, mib: int = 10, card_mib: int | None = None) -> Log:
        fields = self.place()
        return self.add(model.ModelLoading(**fields, model=name, mib=mib, card_mib=card_mib, purpose="lease", deadline_at=self.now))

    def unload(self, name: str) -> Log:
        return self.add(model.ModelUnloading(**self.place(), model=name, purpose="lease", deadline_at=self.now))

    def unknown(self) -> Log:
        return self.add(model.SlotUnknown(**self.place(), reason="status 502"))

    def restored(self) -> Log:
        return self.add(model.SlotRestored(**self.place()))

    def call(self, name: str) -> Log:
        return self.add(llm.LlmDispatched(call_id="c1", slot="primary", model=name), scope="run-1")

    def held(self, hold_id: str = "h1") -> Log:
        return self.add(card.CardHeld(at=self.now, card="gpu0", hold_id=hold_id, holder=hold_id))

    def rules(self) -> list[str]:
        return [each.rule for each in violations(self.facts, frozenset({"embed"}))]


BROKEN: dict[str, Callable[[Log], Log]] = {
    "evict.not_loading": lambda log: log.load("m").unload("m"),
    "evict.not_answering": lambda log: log.see("m").call("m").unload("m"),
    "evict.own_only": lambda log: log.see("m", ours=False).unload("m"),
    "evict.not_embedding": lambda log: log.see("embed").unload("embed"),
    "evict.not_leased": lambda log: log.see("m").live("r", RUN).unload("m"),
    "unknown.untouched": lambda log: log.see("m").unknown().unload("m"),
    "loads.one_by_one": lambda log: log.load("a").load("b"),
    "loads.fit": lambda log: log.see("a", mib=80).load("b", mib=30, card_mib=100),
    "leases.fit": lambda log: log.ask("a", RUN, "a", 80).grant("a", RUN).ask("b", RUN, "b", 30).admit("b", RUN, "b", 30, card_mib=100),
    "interactive.displaces_nobody": lambda log: log.live("j", BATCH).ask("c", INTERACTIVE).want_release("j", BATCH, by="c"),
    "batch.displaces_nobody": lambda log: log.live("c", INTERACTIVE).ask("j", BATCH).preempt("c", INTERACTIVE, by="j"),
    "run.never_displaced": lambda log: log.live("r", RUN).ask("s", RUN).preempt("r", RUN, by="s"),
    "batch.has_its_grace": lambda log: (
        log.live("j", BATCH).ask("r", RUN).want_release("j", BATCH, by="r").wait(29).preempt("j", BATCH, by="r")
    ),
    "batch.waits_for_run": lambda log: log.live("r", RUN).ask("j", BATCH, "n").admit("j", BATCH, "n"),
    "interactive.yields": lambda log: log.live("r", RUN).live("c", INTERACTIVE),
    "interactive.resident_only": lambda log: log.ask("c", INTERACTIVE, "n").admit("c", INTERACTIVE, "n"),
    "run.evicts_interactive": lambda log: log.live("c", INTERACTIVE).live("r", RUN),
    "hold.respected": lambda log: log.held().live("r", RUN),
    "hold.waits": lambda log: log.live("r", RUN).held(),
    "hold.one": lambda log: log.held("h1").held("h2"),
    "grant.resident": lambda log: log.ask("r", RUN).load("m").grant("r", RUN),
    "lease.granted_once": lambda log: log.live("r", RUN).grant("r", RUN),
    "lease.ends_once": lambda log: log.live("r", RUN).release("r", RUN).release("r", RUN),
    "lease.asked_once": lambda log: log.ask("r", RUN).ask("r", RUN),
    "restore.waits": lambda log: log.live("r", RUN).restored(),
    "queue.answered": lambda log: log.ask("r", RUN).wait(700).see("m"),
    "grace.ended": lambda log: log.live("j", BATCH).ask("r", RUN).want_release("j", BATCH, by="r").wait(100).see("m"),
}


@covers("lease.verify")
@pytest.mark.parametrize("rule", BROKEN)
def test_a_log_that_breaks_a_rule_is_told_which(rule: str) -> None:
    assert BROKEN[rule](Log()).rules() == [rule]


@covers("lease.verify")
def test_a_violation_names_the_fact_and_says_what_is_wrong() -> None:
    (found,) = violations(Log().see("m").live("r", RUN).unload("m").facts)
    assert found.seq == 4
    assert found.message == "m is unloaded from slot primary under run lease r of r"


@covers("lease.verify")
def test_the_same_acts_in_their_right_order_break_no_rule() -> None:
    log = Log().see("m").live("j", BATCH).ask("r", RUN, "n").want_release("j", BATCH, by="r").wait(30).preempt("j", BATCH, by="r")
    log.admit("r", RUN, "n", card_mib=15).unload("m").add(model.ModelUnloaded(at=log.now, slot="primary", card="gpu0", model="m"))
    log.load("n", card_mib=15).add(model.ModelLoaded(at=log.now, slot="primary", card="gpu0", model="n", mib=10)).grant("r", RUN)
    assert log.rules() == []


@covers("lease.verify")
def test_a_slice_of_a_log_is_checked_for_what_it_shows() -> None:
    """A slice that begins in the middle never saw some leases asked for: they are left out and not held to be wrong."""
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    world.pass_time(30)
    world.end_run("run-run")
    world.pass_time(5)
    for start in range(len(world.facts)):
        assert violations(world.facts[start:], frozenset({"embed"})) == [], f"from fact {start}"


@covers("lease.verify")
def test_facts_of_other_domains_and_no_facts_at_all_are_no_problem() -> None:
    assert violations([]) == []
    log = Log().see("m").call("m").add(llm.LlmCompleted(call_id="c1"), scope="run-1").unload("m")
    assert log.rules() == [], "the call had ended"


@covers("lease.verify", "lease.loads")
def test_a_copy_that_went_is_counted_no_more() -> None:
    """Two copies of 30 MiB and one of them goes: then 60 MiB more fit on a card of 100."""
    log = Log()
    seen = model.ObservedModel(name="a", state="loaded", mib=30, ours=True, instances=("a", "a:2"))
    log.add(model.ModelsObserved(**log.place(), models=(seen,)))
    log.add(model.ModelUnloaded(**log.place(), model="a", instance="a:2"))
    assert log.load("b", mib=60, card_mib=100).rules() == []
    assert log.load("c", mib=60, card_mib=100).rules() == ["loads.one_by_one", "loads.fit"]
