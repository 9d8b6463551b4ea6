"""A desk driven by hand, and random arrivals for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.simulate import Arrival
from services.scheduler.ordering.slots import Decision, Pause
from services.scheduler.ordering.waiting import Call, Priority


def call(name: str, model: str = "a", at_s: float = 0.0, agent: str = "", pin: str | None = None, low: bool = False) -> Call:
    return Call(name, model, int(at_s * 1000), at_s, agent, pin, Priority.LOW if low else Priority.NORMAL)


def decided(desk: Desk, slot: str, now_s: float) -> list[Decision]:
    """Ask and follow until there is nothing more to do now."""
    found: list[Decision] = []
    while (decision := desk.decide(slot, now_s)) is not None:
        found.append(decision)
        if isinstance(decision, Pause):
            break
        desk.follow(decision, now_s)
    return found


@st.composite
def arrivals(draw: st.DrawFn, most: int = 30, agents: bool = True) -> list[Arrival]:
    """Open calls and, if asked for, some of agents that ask again after their answers."""
    found: list[Arrival] = []
    for place in range(draw(st.integers(1, most))):
        model, answer_s = draw(st.sampled_from("abc")), draw(st.sampled_from([0.5, 1.0, 2.0, 7.0]))
        agent = draw(st.sampled_from(["", "", "one", "two"])) if agents else ""
        asked_s = None if agent else float(draw(st.integers(0, 60)))
        priority = draw(st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.LOW])) if agents else Priority.NORMAL
        found.append(Arrival(str(place), model, answer_s, asked_s, agent, priority=priority))
    return found
