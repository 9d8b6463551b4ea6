"""A card in simulated time, driven by a policy over recorded arrivals: what another policy would have done, compared.

Rules, those of the recorded arrivals' README: a load takes the same time for every model, the first one counts as a swap, and it
waits for the calls in flight; a slot answers `concurrency` calls of its model at once; an agent asks its next call a pause after its
last answer, whenever that is. A wait is from asking to dispatch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.estimates import Estimates, Mean
from services.scheduler.ordering.fair import fair
from services.scheduler.ordering.references import Policy
from services.scheduler.ordering.slots import Decision, Dispatch, Leave, Load, Pause, Slot
from services.scheduler.ordering.waiting import Call, Priority

SLOT = "card"
THINK_S = 0.5


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recorded call: asked at a time of its own or, without one, `pause_s` after its agent's call before it was answered."""

    id: str
    model: str
    answer_s: float
    asked_s: float | None = None
    agent: str = ""
    pause_s: float = THINK_S
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the arrivals under one policy."""

    swaps: int
    makespan_s: float  # until the last answer
    waits_s: tuple[float, ...]  # ascending
    decisions: tuple[tuple[float, Decision], ...] = field(repr=False)
    asked: int = 0  # how often there was something to decide, also where the answer was "nothing now"

    @property
    def mean_wait_s(self) -> float:
        return sum(self.waits_s) / len(self.waits_s) if self.waits_s else 0.0

    @property
    def max_wait_s(self) -> float:
        return self.waits_s[-1] if self.waits_s else 0.0

    @property
    def p95_wait_s(self) -> float:
        """By nearest rank."""
        return self.waits_s[ceil(0.95 * len(self.waits_s)) - 1] if self.waits_s else 0.0


def simulate(arrivals: Sequence[Arrival], policy: Policy = fair, *, concurrency: int = 1, load_s: float = 8.0) -> Outcome:
    """What a policy does with recorded arrivals on one slot.

    Raises:
        ValueError: the policy left calls waiting for ever.
    """
    run = _Run(arrivals, policy, concurrency, load_s)
    run.to_the_end()
    if len(run.desk.waiting):
        raise ValueError(f"the policy leaves {len(run.desk.waiting)} calls waiting for ever")
    return Outcome(run.swaps, run.now_s, tuple(sorted(run.waits_s)), tuple(run.decisions), run.asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class _Answered:
    call: Call


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: str


class _Run:
    """One simulation under way: what will happen, in order of time, and what has."""

    def __init__(self, arrivals: Sequence[Arrival], policy: Policy, concurrency: int, load_s: float) -> None:
        self.desk = Desk([Slot(SLOT, concurrency)], policy, Estimates(load=Mean(load_s)))
        self.now_s, self.swaps, self.asked, self._load_s = 0.0, 0, 0, load_s
        self.waits_s: list[float] = []
        self.decisions: list[tuple[float, Decision]] = []
        self._events: list[tuple[float, int, _Asked | _Answered | _Loaded | None]] = []
        self._count = 0
        self._seqs = {arrival.id: seq for seq, arrival in enumerate(arrivals)}
        self._arrivals = {arrival.id: arrival for arrival in arrivals}
        self._following = dict(_followers(arrivals))
        followers = set(self._following.values())
        for arrival in arrivals:
            if arrival.asked_s is not None:
                self._at(arrival.asked_s, _Asked(arrival))
            elif arrival.id not in followers:
                self._at(0.0, _Asked(arrival))

    def to_the_end(self) -> None:
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] <= now_s:
                self._happen(now_s, heapq.heappop(self._events)[2])
            self._decide(now_s)

    def _at(self, when_s: float, event: _Asked | _Answered | _Loaded | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, event))

    def _happen(self, now_s: float, event: _Asked | _Answered | _Loaded | None) -> None:
        match event:
            case _Asked(arrival):
                self.desk.asked(Call(arrival.id, arrival.model, self._seqs[arrival.id], now_s, arrival.agent, None, arrival.priority))
            case _Answered(call):
                self.now_s = now_s
                self.desk.answered(call.id, SLOT, now_s)
                follower = self._following.get(call.id)
                if follower is not None:
                    self._at(now_s + self._arrivals[follower].pause_s, _Asked(self._arrivals[follower]))
            case _Loaded(model):
                self.desk.loaded(SLOT, model, now_s)
            case None:
                pass

    def _decide(self, now_s: float) -> None:
        self.asked += 1
        while (decision := self.desk.decide(SLOT, now_s)) is not None:
            self.asked += 1
            self.decisions.append((now_s, decision))
            self.desk.follow(decision, now_s)
            match decision:
                case Dispatch(call=call):
                    self.waits_s.append(now_s - call.asked_s)
                    self._at(now_s + self._arrivals[call.id].answer_s, _Answered(call))
                case Load(model=model):
                    self.swaps += 1
                    self._at(now_s + self._load_s, _Loaded(model))
                case Leave():
                    pass
                case Pause(until_s=until_s):
                    self._at(until_s, None)
                    return


def _followers(arrivals: Iterable[Arrival]) -> Iterable[tuple[str, str]]:
    """Pairs of calls of one agent, the second without a time of its own: it is asked when the first is answered."""
    last: dict[str, str] = {}
    for arrival in arrivals:
        if arrival.asked_s is None:
            if arrival.agent in last:
                yield last[arrival.agent], arrival.id
            last[arrival.agent] = arrival.id
