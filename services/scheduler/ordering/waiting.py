"""The calls that wait, indexed by model, pin and priority so that no decision scans them all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Priority(StrEnum):
    """Source: key-services 6.3; low is for background work: team generation, session summaries."""

    NORMAL = "normal"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Call:
    """One model call that asks for its turn. `seq` is its request's place in the log and breaks ties of time."""

    id: str
    model: str
    seq: int
    asked_s: float  # on the clock that decisions are asked by
    agent: str = ""  # run and agent, whose calls share a prompt prefix; empty: shares none
    pin: str | None = None  # the slot that it named; it is never moved to another
    priority: Priority = Priority.NORMAL

    @property
    def order(self) -> tuple[float, int]:
        return (self.asked_s, self.seq)


@dataclass(slots=True)
class Lane:
    """Calls that wait for one model under one pin and one priority, oldest first. Never empty while it is in `Waiting`."""

    model: str
    pin: str | None
    priority: Priority
    calls: OrderedDict[str, Call] = field(default_factory=OrderedDict[str, Call])
    by_agent: dict[str, OrderedDict[str, Call]] = field(default_factory=dict[str, OrderedDict[str, Call]])

    @property
    def head(self) -> Call:
        return next(iter(self.calls.values()))

    def first_of(self, agent: str) -> Call | None:
        own = self.by_agent.get(agent) if agent else None
        return next(iter(own.values())) if own else None

    def add(self, call: Call) -> None:
        _insert(self.calls, call)
        _insert(self.by_agent.setdefault(call.agent, OrderedDict()), call)

    def remove(self, call: Call) -> None:
        del self.calls[call.id]
        own = self.by_agent[call.agent]
        del own[call.id]
        if not own:
            del self.by_agent[call.agent]


def _insert(calls: OrderedDict[str, Call], call: Call) -> None:
    """Put a call where its age belongs. Calls come in order, except one that is queued again after a failure."""
    if not calls or next(reversed(calls.values())).order <= call.order:
        calls[call.id] = call
        return
    ordered = sorted([*calls.values(), call], key=lambda each: each.order)
    calls.clear()
    calls.update((each.id, each) for each in ordered)


class Waiting:
    """All calls that wait. Adding and removing one costs the same however many there are."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._lanes: dict[tuple[str, str | None, Priority], Lane] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._calls

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls.values())

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def lanes(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def lanes_of(self, model: str, slot: str, priority: Priority) -> list[Lane]:
        """What a slot may take of a model: the calls that are pinned to it and those that are free."""
        found = (self._lanes.get((model, pin, priority)) for pin in (None, slot))
        return [lane for lane in found if lane is not None]

    def add(self, call: Call) -> None:
        """Raises: ValueError: a call with this id waits already."""
        if call.id in self._calls:
            raise ValueError(f"call {call.id!r} waits already")
        self._calls[call.id] = call
        key = (call.model, call.pin, call.priority)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(*key)
        lane.add(call)

    def remove(self, call_id: str) -> Call | None:
        """Take a call out; None if it does not wait (it was dispatched or given up before)."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            key = (call.model, call.pin, call.priority)
            lane = self._lanes[key]
            lane.remove(call)
            if not lane.calls:
                del self._lanes[key]
        return call
