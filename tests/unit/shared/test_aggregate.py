from __future__ import annotations

from collections.abc import Sequence

from shared.aggregate import Decider
from shared.events.envelope import Event, Fact
from shared.events.tool import ToolCompleted, ToolStarted
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog

TOOLS = Aggregate("tool", "r")


def started(call_id: str, owner: str = "me") -> ToolStarted:
    return ToolStarted(call_id=call_id, tool="t", server="s", owner=owner)


async def test_a_decision_sees_the_facts_of_its_own_call_only() -> None:
    decider, seen = Decider(MemoryLog(), TOOLS), list[list[str]]()

    def claim(facts: Sequence[Fact], call_id: str) -> Sequence[Event]:
        seen.append([fact.type for fact in facts])
        return () if facts else (started(call_id),)

    for call_id in ("a", "b", "a"):
        await decider.decide(call_id, lambda facts, call_id=call_id: claim(facts, call_id))
    assert seen == [[], [], ["tool.started"]]


async def test_after_a_conflict_it_decides_again_on_what_the_other_writer_stored() -> None:
    log = MemoryLog()
    mine, other = Decider(log, TOOLS), Decider(log, TOOLS)
    await mine.decide("a", lambda _: (started("a"),))
    await other.decide("b", lambda _: (started("b", "other"),))  # reads a, then stores b: mine is behind
    stored = await mine.decide("b", lambda facts: () if facts else (started("b"),))
    assert stored == []
    (ended,) = await mine.decide("b", lambda facts: (ToolCompleted(call_id="b", tool="t", content=f"{len(facts)}"),))
    assert (ended.seq, getattr(ended.event, "content", "")) == (3, "1")
