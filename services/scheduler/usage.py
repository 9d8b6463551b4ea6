"""Where a card's time went: seconds per run and agent, which sum to its wall time (S23). Pure, a fold over facts.

Between two facts a card is used by the calls in flight and by the loads and unloads under way on it, in equal parts.
Where there are none it is held by those whose leases are live, or by a hold; else it is idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from shared.events import card, lease, llm, model, run
from shared.events.envelope import Fact

Kind = Literal["gpu", "swap", "held", "idle"]


@dataclass(frozen=True, slots=True)
class Who:
    """A line of the account. `kind`: answering calls, models coming and going, reserved and unused, or nobody's.

    `holder` is who took the lease where it is no run, such as `restore` for the engine itself.
    """

    kind: Kind
    run_id: str | None = None
    agent: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class CardUsage:
    """Seconds by line, from the first fact about the card on; the lines sum to `wall_s`."""

    card: str
    wall_s: float
    seconds: Mapping[Who, float]

    def of_run(self, run_id: str, kind: Kind) -> float:
        return sum(seconds for who, seconds in self.seconds.items() if who.run_id == run_id and who.kind == kind)


IDLE = Who("idle")


@dataclass(slots=True)
class _Meter:
    """What is going on, by card."""

    began: dict[str, datetime] = field(default_factory=dict[str, datetime])
    cards: dict[str, str] = field(default_factory=dict[str, str])  # slot → card
    changes: dict[tuple[str, str], Who] = field(default_factory=dict[tuple[str, str], Who])  # (slot, model) → for whom
    unloads: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])  # those of them that go
    calls: dict[str, tuple[str, Who]] = field(default_factory=dict[str, tuple[str, Who]])  # call → (slot, whose)
    leases: dict[str, tuple[str, Who]] = field(default_factory=dict[str, tuple[str, Who]])  # live ones → (card, whose)
    holds: dict[str, Who] = field(default_factory=dict[str, Who])
    agents: dict[str, str] = field(default_factory=dict[str, str])  # call → agent

    def users(self, name: str) -> list[Who]:
        """Who shares the card right now; nobody = idle."""
        active = [who for slot, who in self.calls.values() if self.cards.get(slot) == name]
        active += [who for (slot, _), who in self.changes.items() if self.cards.get(slot) == name]
        if active:
            return active
        reserved = [who for place, who in self.leases.values() if place == name]
        reserved += [self.holds[name]] if name in self.holds else []
        return reserved or [IDLE]


def usage(facts: Iterable[Fact], until: datetime | None = None) -> dict[str, CardUsage]:
    """The account of every card that the facts name, to the last fact or to `until`.

    Of other domains `llm.*` tell when calls were in flight, `run.llm_requested` of which agent.
    """
    meter = _Meter()
    spent: dict[str, dict[Who, float]] = defaultdict(lambda: defaultdict(float))
    last: datetime | None = None
    for fact in facts:
        if last is not None:
            _charge(meter, spent, last, fact.time)
        last = fact.time if last is None else max(last, fact.time)
        _note(meter, fact)
    if last is None:
        return {}
    end = last if until is None else max(last, until)
    _charge(meter, spent, last, end)
    return {name: CardUsage(name, (end - began).total_seconds(), dict(spent[name])) for name, began in meter.began.items()}


def _charge(meter: _Meter, spent: Mapping[str, dict[Who, float]], since: datetime, until: datetime) -> None:
    """Share out the time that passed; clocks of two writers may differ, and time that runs backwards is none."""
    passed = (until - since).total_seconds()
    if passed <= 0:
        return
    for name in meter.began:
        users = meter.users(name)
        for who in users:
            spent[name][who] += passed / len(users)


def _note(meter: _Meter, fact: Fact) -> None:
    event = fact.event
    if isinstance(event, lease.LeaseFact | model.ModelFact):
        meter.cards[event.slot] = event.card
    if isinstance(event, lease.LeaseFact | model.ModelFact | card.CardFact):
        meter.began.setdefault(event.card, fact.time)
    match event:
        case lease.LeaseFact():
            _note_lease(meter, event)
        case model.ModelFact():
            _note_model(meter, event)
        case card.CardHeld():
            meter.holds[event.card] = Who("held", holder=event.holder)
        case card.CardReleased():
            meter.holds.pop(event.card, None)
        case run.LlmRequested():
            meter.agents[event.call_id] = event.agent
        case llm.LlmDispatched():
            meter.calls[event.call_id] = event.slot, Who("gpu", fact.scope, meter.agents.get(event.call_id, ""))
        case llm.LlmCompleted() | llm.LlmFailed():
            meter.calls.pop(event.call_id, None)
            meter.agents.pop(event.call_id, None)
        case _:
            pass


def _note_lease(meter: _Meter, event: lease.LeaseFact) -> None:
    if isinstance(event, lease.LeaseGranted):
        meter.leases[event.lease_id] = event.card, Who("held", event.run_id, holder="" if event.run_id else event.holder)
    elif type(event) in lease.ENDINGS:
        meter.leases.pop(event.lease_id, None)


def _note_model(meter: _Meter, event: model.ModelFact) -> None:
    match event:
        case model.ModelLoading() | model.ModelUnloading():
            holder = "" if event.run_id else event.holder or event.purpose
            meter.changes[event.slot, event.model] = Who("swap", event.run_id, holder=holder)
            if isinstance(event, model.ModelUnloading):
                meter.unloads.add((event.slot, event.model))
        case model.ModelLoaded() | model.ModelLoadFailed() | model.ModelUnloaded():
            meter.changes.pop((event.slot, event.model), None)
            meter.unloads.discard((event.slot, event.model))
        case model.SlotUnknown():
            for place in [place for place in meter.unloads if place[0] == event.slot]:  # a load may still come back
                meter.unloads.discard(place)
                meter.changes.pop(place, None)
        case _:
            pass
