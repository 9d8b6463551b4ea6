"""The poller: it tells changes, survives what drivers do, and shows what is known at /metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from services.scheduler.cards.matching import Configured
from services.scheduler.cards.reading import CardReading, Link, Reading
from services.scheduler.cards.telemetry import Measured, Pace, Telemetry, in_thread
from shared.errors import LogUnavailable
from shared.testing.clock import FakeClock
from tests.requirements import covers
from tests.support.waiting import until

CARD = Configured("tel", "card0")


def holding(used_mib: int | None, size_mib: int | None = 24_000) -> Reading:
    sources = {name: "test" for name, value in (("used_mib", used_mib), ("size_mib", size_mib)) if value is not None}
    return Reading(cards=(CardReading(name="x", node="card0", used_mib=used_mib, size_mib=size_mib, sources=sources),))


@dataclass
class Hardware:
    """Answers with what it holds; `stuck` keeps readings from returning, as a driver in trouble does."""

    now: Reading = field(default_factory=lambda: holding(100))
    error: Exception | None = None
    reads: int = 0
    going: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.going.set()

    def read(self) -> Reading:
        self.reads += 1
        answer = self.now
        self.going.wait()
        if self.error is not None:
            raise self.error
        return answer


@dataclass
class World:
    hardware: Hardware = field(default_factory=Hardware)
    clock: FakeClock = field(default_factory=FakeClock)
    told: list[Measured] = field(default_factory=list[Measured])
    telemetry: Telemetry = field(init=False)

    def __post_init__(self) -> None:
        self.telemetry = Telemetry(self.hardware, (CARD,), self.take, self.clock, Pace(interval_s=5, timeout_s=10, step_mib=64))

    @property
    def waits(self) -> bool:
        """Whether only the interval is waited for."""
        return [when for when, future in self.clock.sleepers if not future.done()] == [self.clock.at + timedelta(seconds=5)]

    async def take(self, measured: Measured) -> bool:
        self.told.append(measured)
        return True


@pytest.fixture
def world() -> World:
    return World()


@asynccontextmanager
async def running(telemetry: Telemetry) -> AsyncIterator[None]:
    task = asyncio.create_task(telemetry.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value(f"scheduler_card_{name}", {"card": "tel"})


@covers("cards.poll")
async def test_changes_are_told_at_the_interval_and_small_ones_are_not(world: World) -> None:
    async with asyncio.timeout(5), running(world.telemetry):
        for used, count in ((100, 1), (163, 1), (164, 2), (164, 2), (None, 3), (None, 3), (90, 4)):
            before = world.hardware.reads
            world.hardware.now = holding(used)
            world.clock.advance(5)
            await until(lambda before=before: world.hardware.reads > before and world.waits)
            assert len(world.told) == count, used
    assert [each.used_mib for each in world.told] == [100, 164, None, 90]
    assert {each.size_mib for each in world.told} == {24_000}


@covers("cards.poll")
async def test_small_changes_that_add_up_are_told(world: World) -> None:
    for used in range(100, 240, 20):
        world.hardware.now = holding(used)
        await world.telemetry.refresh()
    assert [each.used_mib for each in world.told] == [100, 180]


@covers("cards.poll", "cards.unknown")
async def test_a_card_of_which_nothing_is_known_is_never_told(world: World) -> None:
    world.hardware.now = Reading()
    await world.telemetry.refresh()
    assert world.told == []
    assert world.telemetry.statuses[0].problem.startswith("no card here is 'card0'")
    world.hardware.now = holding(None)
    await world.telemetry.refresh()
    assert world.told == [Measured("tel", None, 24_000)], "its size is something to know"


@covers("cards.poll")
async def test_a_driver_that_hangs_makes_the_card_unknown_until_it_answers(world: World) -> None:
    await world.telemetry.refresh()
    world.hardware.going.clear()
    world.hardware.now = holding(5_000)
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(world.telemetry.refresh())
        await until(lambda: world.hardware.reads == 2 and bool(world.clock.sleepers))
        world.clock.advance(10)
        await waiting
        assert world.told[-1] == Measured("tel", None, None)
        assert "has not answered for 10 s" in world.telemetry.reading.problems[0]
        await world.telemetry.refresh()
        assert "still does not answer" in world.telemetry.reading.problems[0]
        assert world.hardware.reads == 2, "no second thread is sent after the first"
        world.hardware.now = holding(6_000)
        world.hardware.going.set()

        async def is_back() -> bool:
            await world.telemetry.refresh()
            return world.told[-1].used_mib is not None

        await until(is_back)
    assert world.told[-1].used_mib == 6_000, "what was read before the trouble is long past"


@covers("cards.poll")
async def test_a_bug_in_a_reader_costs_figures_and_no_more(world: World) -> None:
    world.hardware.error = ZeroDivisionError("oops")
    (status,) = await world.telemetry.refresh()
    assert status.reading is None
    assert world.telemetry.reading.problems == ("reading the cards failed: ZeroDivisionError('oops')",)
    world.hardware.error = None
    await world.telemetry.refresh()
    assert [each.used_mib for each in world.told] == [100]


async def test_whoever_asks_gets_a_reading_that_began_after_the_question(world: World) -> None:
    world.hardware.going.clear()
    async with asyncio.timeout(5):
        first = asyncio.create_task(world.telemetry.refresh())
        await until(lambda: world.hardware.reads == 1)
        world.hardware.now = holding(9_000)
        second = asyncio.create_task(world.telemetry.refresh())
        world.hardware.going.set()
        statuses = await first, await second
    assert [each[0].used_mib for each in statuses] == [100, 9_000]


@covers("cards.poll")
@pytest.mark.parametrize("error", [LogUnavailable("the log is away"), ZeroDivisionError("a bug")])
async def test_whom_it_tells_may_fail_and_is_told_again_with_the_next_reading(world: World, error: Exception) -> None:
    tries: list[Measured] = []

    async def fails(measured: Measured) -> bool:
        tries.append(measured)
        raise error

    world.telemetry.on_change = fails
    before = REGISTRY.get_sample_value("scheduler_cards_untold_total") or 0
    async with asyncio.timeout(5), running(world.telemetry):
        await until(lambda: len(tries) == 1 and world.waits)
        with capture_logs() as logged:
            world.clock.advance(5)
            await until(lambda: len(tries) == 2 and world.waits)
        world.telemetry.on_change = world.take
        world.clock.advance(5)
        await until(lambda: bool(world.told))
    assert [each.used_mib for each in world.told] == [100]
    assert REGISTRY.get_sample_value("scheduler_cards_untold_total") == before + 2
    (line,) = logged
    assert line["event"] == "card_untold"
    assert bool(line.get("exc_info")) is not isinstance(error, LogUnavailable), "a bug is logged with where it happened"


@covers("cards.poll")
async def test_one_card_that_cannot_be_told_keeps_no_other_from_it(world: World) -> None:
    async def picky(measured: Measured) -> bool:
        if measured.card == "bad":
            raise ZeroDivisionError
        return await world.take(measured)

    other = CardReading(name="y", node="card1", used_mib=7, sources={"used_mib": "test"})
    world.hardware.now = Reading(cards=(other, *holding(100).cards))
    world.telemetry.configure((Configured("bad", "card1"), CARD))
    world.telemetry.on_change = picky
    await world.telemetry.refresh()
    assert [each.card for each in world.told] == ["tel"]


@covers("cards.poll")
async def test_what_was_of_no_use_now_is_told_again_though_it_did_not_change(world: World) -> None:
    async def not_now(measured: Measured) -> bool:
        await world.take(measured)
        return len(world.told) > 1

    world.telemetry.on_change = not_now
    for _ in range(3):
        await world.telemetry.refresh()
    assert [each.used_mib for each in world.told] == [100, 100]


@covers("cards.unknown")
async def test_what_is_in_use_is_asked_of_a_fresh_reading_and_never_guessed(world: World) -> None:
    world.telemetry.configure((CARD, Configured("elsewhere")))
    assert await world.telemetry.used_mib("tel") == 100
    world.hardware.now = holding(7_000)
    assert await world.telemetry.used_mib("tel") == 7_000
    reads = world.hardware.reads
    assert await world.telemetry.used_mib("elsewhere") is None
    assert world.hardware.reads == reads, "a card that is not here is not looked for"
    world.hardware.now = Reading()
    assert await world.telemetry.used_mib("tel") is None


@covers("cards.poll", "cards.unknown")
async def test_metrics_show_what_is_known_and_nothing_else(world: World) -> None:
    card = CardReading(name="x", node="card0", size_mib=24_000, used_mib=0, power_w=12.5, link=Link(speed_gts=8.0, width=4), processes=())
    world.hardware.now = Reading(cards=(card,))
    await world.telemetry.refresh()
    assert [gauge(name) for name in ("size_mib", "used_mib", "power_watts", "link_gts", "link_lanes", "processes")] == [
        24_000,
        0,
        12.5,
        8,
        4,
        0,
    ]
    assert (gauge("temperature_celsius"), gauge("busy_ratio"), gauge("problem")) == (None, None, 0)
    world.hardware.now = Reading()
    await world.telemetry.refresh()
    assert (gauge("used_mib"), gauge("power_watts"), gauge("problem")) == (None, None, 1)


async def test_a_card_that_is_configured_no_more_is_forgotten_and_told_anew_later(world: World) -> None:
    await world.telemetry.refresh()
    world.telemetry.configure(())
    assert gauge("size_mib") is None
    assert await world.telemetry.refresh() == ()
    world.telemetry.configure((CARD,))
    await world.telemetry.refresh()
    assert [each.used_mib for each in world.told] == [100, 100]


async def test_a_thread_gives_its_answer_or_its_error_and_outlives_its_loop() -> None:
    async with asyncio.timeout(5):
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(KeyError):
            await in_thread(lambda: {}["x"])
    going, ended = threading.Event(), threading.Event()

    def late() -> None:
        going.wait()
        ended.set()

    async def asks() -> None:
        in_thread(late)

    await asyncio.to_thread(lambda: asyncio.run(asks()))
    going.set()
    assert ended.wait(5)
