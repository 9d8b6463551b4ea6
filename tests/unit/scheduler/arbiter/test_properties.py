"""Random days on a box: whatever is asked in whatever order, the log keeps every rule and everything comes to an end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from services.scheduler.arbiter import Lease, Load, State, Status, Unload, decide, explain, fold, owed
from services.scheduler.arbiter.commands import (
    BadRequest,
    Command,
    EndRun,
    FailLoad,
    FailUnload,
    FinishLoad,
    HoldCard,
    LeaseEnded,
    LoseSlot,
    MeasureCard,
    NeedModel,
    Release,
    ReleaseHold,
    Renew,
    RequestGroup,
    RequestLease,
    Sweep,
)
from services.scheduler.slots import catalogue
from shared.events import llm, model
from shared.events.envelope import Event
from shared.scheduler_settings import CardSettings, ModelSettings, SlotSettings
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, box

MODELS = {"primary": ("std", "mid", "big", "huge", "tiny", "embed"), "beside": ("std", "mid", "tiny"), "secondary": ("coder", "vision")}
SECONDS = st.sampled_from([0.5, 5.0, 29.0, 31.0, 119.0, 121.0, 700.0])
SLOTS = st.sampled_from(sorted(MODELS))
RUNS = st.sampled_from(["run-a", "run-b", "run-c"])


def crowded() -> World:
    """Three slots on two cards, of which two share one; little fits beside anything."""
    plain = box()
    slots = {
        "primary": plain.slots["primary"],
        "beside": SlotSettings(
            card="gpu0",
            models={name: ModelSettings(mib=each) for name, each in {"std": 8_000, "mid": 9_000, "tiny": 1_000}.items()},
            standard_set=("tiny",),
            restore_delay_s=60,
        ),
        "art": SlotSettings(card="gpu0"),
        "secondary": SlotSettings(card="gpu1", models={"coder": ModelSettings(), "vision": ModelSettings(mib=7_000)}, max_models=1),
    }
    cards = {"gpu0": CardSettings(size_mib=24_000, reserve_mib=200), "gpu1": CardSettings(size_mib=16_000)}
    return World(catalogue(box(slots=slots, cards=cards)), auto=False)


def as_order(each: Load | Unload, world: World) -> Event:
    """What a backend is told by something that is owed: the fact that decided it, as the log has it."""
    kind = model.ModelLoading if isinstance(each, Load) else model.ModelUnloading
    events = [fact.event for fact in reversed(world.facts) if isinstance(fact.event, kind)]
    return next(event for event in events if (event.slot, event.model) == (each.slot, each.model))


def orders(facts: Sequence[Event]) -> list[Event]:
    """What the backends are told to do."""
    return [each for each in facts if isinstance(each, model.ModelLoading | model.ModelUnloading)]


class Box(RuleBasedStateMachine):
    leases: Bundle[str] = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.world = crowded()
        self.world.put("primary", "embed")
        self.owed: list[Event] = []  # what the backends have yet to do
        self.calls: dict[str, tuple[str, str]] = {}
        self.count = 0
        self.probe_all()

    def do(self, command: Command) -> None:
        try:
            self.owed += orders(self.world.do(command))
        except (BadRequest, LeaseEnded) as fault:
            if not fault.details["field"]:
                raise

    def name(self) -> str:
        self.count += 1
        return f"L{self.count}"

    # ---- who asks

    @rule(target=leases, data=st.data(), slot=SLOTS, run_id=RUNS, resident=st.booleans(), rotates=st.booleans())
    def run_asks(self, data: st.DataObject, slot: str, run_id: str, resident: bool, rotates: bool) -> str:
        models = tuple(data.draw(st.lists(st.sampled_from(MODELS[slot]), min_size=1, max_size=2, unique=True)))
        lease_id = self.name()
        context = data.draw(st.sampled_from([None, None, 4096, 8192]))
        ask = RequestLease(lease_id, run_id, RUN, slot, models, resident, rotates and not resident, run_id=run_id, context_tokens=context)
        self.do(ask)
        return lease_id

    @rule(target=leases, data=st.data(), slots=st.permutations(["primary", "beside", "secondary"]), run_id=RUNS)
    def run_asks_for_several(self, data: st.DataObject, slots: list[str], run_id: str) -> str:
        parts = tuple(
            RequestLease(self.name(), run_id, RUN, slot, (data.draw(st.sampled_from(MODELS[slot])),), run_id=run_id) for slot in slots[:2]
        )
        self.do(RequestGroup(self.name(), parts))
        return parts[0].lease_id

    @rule(target=leases, data=st.data(), slot=SLOTS)
    def client_asks(self, data: st.DataObject, slot: str) -> str:
        lease_id = self.name()
        self.do(RequestLease(lease_id, "client", INTERACTIVE, slot, (data.draw(st.sampled_from(MODELS[slot])),)))
        return lease_id

    @rule(target=leases, data=st.data(), slot=SLOTS, wait=st.sampled_from([None, 0.0, 100.0]))
    def job_asks(self, data: st.DataObject, slot: str, wait: float | None) -> str:
        lease_id, most = self.name(), timedelta(seconds=wait) if wait is not None else None
        self.do(RequestLease(lease_id, "job", BATCH, slot, (data.draw(st.sampled_from(MODELS[slot])),), key=lease_id, wait=most))
        return lease_id

    @rule(target=leases, mib=st.sampled_from([0, 4_000, 12_000]))
    def service_asks(self, mib: int) -> str:
        lease_id = self.name()
        self.do(RequestLease(lease_id, "painter", BATCH, "art", services=("comfyui",), services_mib=mib))
        return lease_id

    @rule(lease_id=leases, ttl=st.sampled_from([None, 10.0, 600.0]))
    def renew(self, lease_id: str, ttl: float | None) -> None:
        self.do(Renew(lease_id, timedelta(seconds=ttl) if ttl is not None else None))

    @rule(lease_id=consumes(leases))
    def release(self, lease_id: str) -> None:
        self.do(Release(lease_id))

    @rule(run_id=RUNS)
    def run_ends(self, run_id: str) -> None:
        self.do(EndRun(run_id))
        assert self.world.state.of_run(run_id) == []

    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        turns = [(each.id, need.name) for each in self.world.state.leases() if each.asked.rotates for need in each.asked.models]
        if turns:
            self.do(NeedModel(*data.draw(st.sampled_from(turns))))

    # ---- cards

    @rule(card=st.sampled_from(["gpu0", "gpu1"]), ttl=st.sampled_from([None, 60.0]), release=st.booleans())
    def hold(self, card: str, ttl: float | None, release: bool) -> None:
        held = f"hold-{card}" in self.world.state.card(card).holds
        if held and release:
            self.do(ReleaseHold(f"hold-{card}"))
        elif not held or ttl is not None:
            self.do(HoldCard(f"hold-{card}", "games", card, ttl=timedelta(seconds=ttl) if ttl is not None else None))

    @rule(card=st.sampled_from(["gpu0", "gpu1"]), outside=st.sampled_from([0, 0, 600, 6_000, None]))
    def measure(self, card: str, outside: int | None) -> None:
        slots = [self.world.state.slot(spec.name) for spec in self.world.known.on_card(card)]
        models = sum(each.mib or 3_000 for slot in slots for each in slot.models.values())
        self.do(MeasureCard(card, None if outside is None else models + outside))

    # ---- backends

    @rule()
    def backends_catch_up(self) -> None:
        while self.owed:
            self._work(0)

    @precondition(lambda self: self.owed)
    @rule(data=st.data(), how=st.sampled_from(["works", "works", "fails", "vanishes", "lies", "is silent"]))
    def backend(self, data: st.DataObject, how: str) -> None:
        place = data.draw(st.integers(0, len(self.owed) - 1))
        if how == "works":
            self._work(place)
            return
        event = self.owed.pop(place)
        if how == "is silent":
            return
        if isinstance(event, model.ModelUnloading):
            self.do(FailUnload(event.slot, event.model, "it is in use"))
        elif isinstance(event, model.ModelLoading) and how == "lies":
            self.do(FinishLoad(event.slot, event.model, self.world.listing(event.slot)))
        elif isinstance(event, model.ModelLoading):
            self.do(FailLoad(event.slot, event.model, "broken", "it broke", unknown=how == "vanishes"))

    def _work(self, place: int) -> None:
        self.owed += orders(self.world.finish(self.owed.pop(place)))

    @rule(slot=SLOTS, answers=st.sampled_from([True, True, True, False]))
    def probe(self, slot: str, answers: bool) -> None:
        if answers:
            self.owed += orders(self.world.probe(slot))
        else:
            self.do(LoseSlot(slot, "status 502"))

    @rule(slot=SLOTS, name=st.sampled_from(["stranger", "tiny", "std", "tiny:2"]), mib=st.sampled_from([None, 3_000]))
    def somebody_loads(self, slot: str, name: str, mib: int | None) -> None:
        self.world.put(slot, name, mib=mib)
        self.owed += orders(self.world.probe(slot))

    @rule(slot=SLOTS, data=st.data())
    def somebody_unloads(self, slot: str, data: st.DataObject) -> None:
        there = sorted(set(self.world.loaded.get(slot, {})) - {name for place, name in self.calls.values() if place == slot})
        if there:
            self.world.take(slot, data.draw(st.sampled_from(there)))
            self.owed += orders(self.world.probe(slot))

    # ---- calls

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        places = [place for each in self.world.state.leases() if each.status is Status.GRANTED for place in self._usable(each)]
        if places:
            call_id, place = f"call-{self.name()}", data.draw(st.sampled_from(sorted(set(places))))
            self.calls[call_id] = place
            self.world.answering[place] = self.world.answering.get(place, 0) + 1
            self.world.note(llm.LlmDispatched(call_id=call_id, slot=place[0], model=place[1]), scope="run-a")

    def _usable(self, each: Lease) -> list[tuple[str, str]]:
        slot = self.world.state.slot(each.asked.slot)
        return [(each.asked.slot, need.name) for need in each.asked.models if slot.known and slot.is_loaded(need.name)]

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def call_ends(self, data: st.DataObject) -> None:
        self._end_call(data.draw(st.sampled_from(sorted(self.calls))))

    def _end_call(self, call_id: str) -> None:
        place = self.calls.pop(call_id)
        self.world.answering[place] -= 1
        self.world.note(llm.LlmCompleted(call_id=call_id), scope="run-a")
        self.do(Sweep())

    # ---- the process

    @rule()
    def scheduler_restarts(self) -> None:
        """A new process: its state is the log's, calls of the old one are gone, and what is owed is done again after a look."""
        for call_id in sorted(self.calls):
            self.world.note(llm.LlmFailed(call_id=call_id, code="llm.lost", message="the scheduler ended"), scope="run-a")
        self.calls.clear()
        self.world.answering.clear()
        self.world.state = fold(State(self.world.known), [fact.event for fact in self.world.facts])
        self.owed = []
        self.probe_all()
        known = [each for each in self.owed if isinstance(each, model.ModelLoading | model.ModelUnloading)]
        self.owed = known + [again for each in owed(self.world.state) if (again := as_order(each, self.world)) not in known]

    # ---- time

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        """And settling is complete: the same moment again gives nothing new (a restore begins with the second sweep)."""
        self.world.now += timedelta(seconds=seconds)
        self.do(Sweep())
        self.do(Sweep())
        assert decide(self.world.state, Sweep(), self.world.now, self.world.answering) == []

    # ---- what must hold

    @invariant()
    def everybody_who_waits_is_told_why(self) -> None:
        for each in self.world.state.leases():
            if not each.is_live:
                assert each.queued
                told = explain(self.world.state, each.id, self.world.answering)
                assert told is not None
                assert told.reason
                assert told.position >= 1

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self._finish_the_day()
        facts = [fact.event for fact in self.world.facts]
        assert fold(State(self.world.known), facts) == self.world.state
        assert self.world.violations() == []

    def _finish_the_day(self) -> None:
        """Everybody goes home: calls end, holders release, backends answer, and time passes."""
        for call_id in sorted(self.calls):
            self._end_call(call_id)
        for run_id in ("run-a", "run-b", "run-c"):
            self.do(EndRun(run_id))
        for card in ("gpu0", "gpu1"):
            self.do(ReleaseHold(f"hold-{card}"))
        for _ in range(60):
            self.probe_all()
            self.backends_catch_up()
            self.world.now += timedelta(seconds=200)
            self.do(Sweep())
            if not self.owed and self._is_quiet():
                break
        assert list(self.world.state.leases()) == [], "a lease is stranded"
        assert all(not on.holds for on in self.world.state.cards.values())
        for name in MODELS:
            slot = self.world.state.slot(name)
            assert slot.known, slot
            assert not slot.is_changing, (name, slot)
            assert slot.restore is None, (name, slot)

    def _is_quiet(self) -> bool:
        slots = [self.world.state.slot(name) for name in MODELS]
        return not any(self.world.state.leases()) and all(slot.known and not slot.is_changing and slot.restore is None for slot in slots)

    def probe_all(self) -> None:
        self.owed += orders(self.world.probe(*MODELS))


Box.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
TestRandomDays = Box.TestCase
