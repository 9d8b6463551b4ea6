"""After an unload: memory that came back, came back late, or did not, because somebody else took it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.app import card_telemetry
from services.scheduler.arbiter.commands import EndRun
from services.scheduler.cards.reading import CardReading, Reading
from services.scheduler.freed import BOUND, PAUSE_S, settled_mib
from services.scheduler.office import Office
from services.scheduler.slots import catalogue
from shared.scheduler_settings import CardSettings, SchedulerSettings
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryLog
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.scheduler.arbiter.world import box
from tests.unit.scheduler.test_office import FakeServer, at_rest, at_work, ended, granted, run_lease, servers


@dataclass
class Dial:
    """Reads as it is told to, the last figure for ever; each reading takes no time."""

    figures: Iterator[int | None]
    now: int | None = None
    reads: int = 0

    async def used_mib(self, card: str) -> int | None:
        self.reads += 1
        self.now = next(self.figures, self.now)
        return self.now


class Racing(FakeClock):
    """Whoever sleeps wakes at once, later."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@asynccontextmanager
async def passing(clock: FakeClock) -> AsyncGenerator[None]:
    """Time passes while somebody pauses between two readings, and stands still while a reading is under way."""

    async def pass_on() -> None:
        while True:
            await asyncio.sleep(0)
            if any(when == clock.at + timedelta(seconds=PAUSE_S) for when, _ in clock.sleepers):
                clock.advance(PAUSE_S)

    task = asyncio.create_task(pass_on())
    try:
        yield
    finally:
        task.cancel()


async def settled(*figures: int | None, wanted: int | None = None) -> tuple[int | None, float]:
    clock = Racing()
    began = clock.now()
    found = await settled_mib(Dial(iter(figures)), "gpu0", wanted, clock)
    return found, (clock.now() - began).total_seconds()


@covers("cards.freed")
@pytest.mark.parametrize(
    ("figures", "wanted", "found", "seconds"),
    [
        ((2_000,), 2_000, 2_000, 0.0),  # back at once
        ((9_000, 9_000, 2_000), 2_000, 2_000, 0.5),  # back late
        ((9_000,), 2_000, 9_000, 1.0),  # it does not come back
        ((9_000, 4_000), None, 4_000, 1.25),  # nobody knows how much should come back
        ((None,), 2_000, None, 0.0),  # nobody can tell
        ((9_000, None), 2_000, None, 0.25),
    ],
)
async def test_memory_is_waited_for_until_it_is_back_or_stands_still(
    figures: tuple[int | None, ...], wanted: int | None, found: int | None, seconds: float
) -> None:
    assert await settled(*figures, wanted=wanted) == (found, seconds)


@covers("cards.freed")
@given(st.lists(st.none() | st.integers(0, 24_000), min_size=1, max_size=80), st.none() | st.integers(0, 24_000))
def test_the_wait_is_bounded_and_ends_with_a_figure_that_was_read(figures: list[int | None], wanted: int | None) -> None:
    found, seconds = asyncio.run(settled(*figures, wanted=wanted))
    assert seconds <= BOUND.total_seconds()
    assert found in figures


# ---- at work


@dataclass
class Card:
    """A card whose memory is its servers' models and what another program holds."""

    made: dict[str, FakeServer]
    outside: Callable[[], int | None]
    size_mib: int = 24_000

    def read(self) -> Reading:
        sizes = {name: each.mib or 0 for name, each in box().slots["primary"].models.items()}
        outside = self.outside()
        models = sum(sizes[name] for name in self.made["primary"].loaded)
        used = None if outside is None else models + outside
        sources = {"size_mib": "test"} | ({"used_mib": "test"} if used is not None else {})
        return Reading(cards=(CardReading(name="x", node="card0", used_mib=used, size_mib=self.size_mib, sources=sources),))


def here() -> SchedulerSettings:
    return box(cards={"gpu0": CardSettings(size_mib=24_000, device="card0"), "gpu1": CardSettings(size_mib=16_000)})


@covers("cards.unknown", "lease.plan")
async def test_a_figure_that_nobody_knows_any_more_is_unknown_to_the_arbiter_too() -> None:
    made, outside = servers(), [3_000]
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(at_rest(office, made))
        cards = card_telemetry(here(), office, Card(made, lambda: outside[-1] if outside else None))
        assert cards is not None
        await cards.refresh()
        assert (office.state.card("gpu0").used_mib, office.state.card("gpu0").outside_mib) == (11_500, 3_000)
        outside.clear()
        await cards.refresh()
        on = office.state.card("gpu0")
        assert (on.used_mib, on.outside_mib, on.size_mib) == (None, None, 24_000)
        outside.append(2_000)
        await cards.refresh()
        assert office.state.card("gpu0").outside_mib == 2_000


@covers("cards.freed", "lease.plan")
@pytest.mark.parametrize(("taken", "fits"), [(600, True), (6_000, False)])
async def test_what_another_program_took_during_an_unload_is_planned_with_and_never_waited_for(taken: int, fits: bool) -> None:
    """The other program grows while the standard set is unloaded for a model of 20,000 MiB on a card of 24,000."""
    made, clock = servers(), FakeClock()
    async with asyncio.timeout(5), at_work(MemoryLog(clock=clock), clock, made) as office, passing(clock):
        await until(at_rest(office, made))
        cards = card_telemetry(here(), office, Card(made, lambda: 600 if "std" in made["primary"].loaded else taken))
        assert cards is not None
        await cards.refresh()
        await office.do(run_lease("a", "big"))
        await until(lambda: granted(office, "a")() or ended(office, "a")())
        ending = office.state.ending("a")
        assert (ending is None) is fits
        assert "load big" in made["primary"].asked if fits else "load big" not in made["primary"].asked
        if ending is not None:
            assert "6000 MiB by programs outside the engine" in ending.reason
        await office.do(EndRun("run-a"))


@covers("cards.freed")
async def test_a_measurement_during_a_load_is_told_again_after_it() -> None:
    made = servers()
    going = asyncio.Event()

    class Slow(FakeServer):
        async def load(self, model: str, context_tokens: int | None) -> None:
            await going.wait()
            await super().load(model, context_tokens)

    made["primary"] = Slow("primary", dict(made["primary"].loaded))
    async with asyncio.timeout(5), at_work(MemoryLog(), FakeClock(), made) as office:
        await until(lambda: office.state.is_changing("gpu0"))
        cards = card_telemetry(here(), office, Card(made, lambda: 8_000 if "std" not in made["primary"].loaded else 0))
        assert cards is not None
        await cards.refresh()
        assert office.state.card("gpu0").used_mib is None
        going.set()
        await until(at_rest(office, made))
        await cards.refresh()  # reads the same figure as before: the model now holds what another program did
        assert (office.state.card("gpu0").used_mib, office.state.card("gpu0").outside_mib) == (8_500, 0)


def test_without_a_card_on_this_machine_nothing_is_read() -> None:
    known = catalogue(box())
    office = Office(MemoryLog(), known, {}, FakeClock())
    assert card_telemetry(box(), office) is None
    assert office.meter is None
