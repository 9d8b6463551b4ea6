"""Reads the cards at an interval and tells what changed.

Each reading has a thread of its own: a driver in trouble can keep a read from ever returning, and must then hold up neither
the scheduler nor its end. Until it returns the cards are unknown, and no second thread is sent after it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from services.scheduler.cards import metrics
from services.scheduler.cards.matching import CardStatus, Configured, match
from services.scheduler.cards.reading import Reading
from shared.clock import Clock
from shared.errors import Fault

logger = structlog.get_logger()

Answer = TypeVar("Answer")


class Reader(Protocol):
    """What `Machine` is."""

    def read(self) -> Reading: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A card's memory is another than last told. `used_mib` None: nobody knows, so what was told before holds no more."""

    card: str
    used_mib: int | None
    size_mib: int | None = None  # as the hardware has it


@dataclass(frozen=True, slots=True)
class Pace:
    """How often, how long, and from which difference on. Smaller changes are noise of the driver's own buffers."""

    interval_s: float = 5.0
    timeout_s: float = 10.0
    step_mib: int = 64


@dataclass
class Telemetry:
    """The configured cards, as they were last read. One task runs `run`; anybody may ask for `refresh`."""

    machine: Reader
    configured: Sequence[Configured]
    on_change: Callable[[Measured], Awaitable[bool]]  # False: it was of no use now, tell it again with the next reading
    clock: Clock
    pace: Pace = Pace()
    reading: Reading = field(default_factory=Reading)
    statuses: tuple[CardStatus, ...] = ()
    _told: dict[str, Measured] = field(default_factory=dict[str, Measured])
    _problems: dict[str, str] = field(default_factory=dict[str, str])
    _pending: asyncio.Future[Reading] | None = None
    _is_late: bool = False
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Read now and at every interval; never returns, and no fault of a driver or of whom it tells ends it."""
        while True:
            await self.refresh()
            await self.clock.sleep(self.pace.interval_s)

    async def refresh(self) -> tuple[CardStatus, ...]:
        """Read now, tell what changed, and give the cards as they are: after an unload, say, before its room is used."""
        async with self._lock:
            reading = await self._read()
            self.reading = reading
            self.statuses = tuple(match(self.configured, reading.cards))
            metrics.show(self.statuses)
            self._log_problems()
            for status in self.statuses:
                await self._tell(status)
            return self.statuses

    async def used_mib(self, card: str) -> int | None:
        """What is in use on a card by a reading that begins now; None: it has no hardware here, or nobody can tell."""
        if not any(each.name == card and each.device is not None for each in self.configured):
            return None
        return next((status.used_mib for status in await self.refresh() if status.card.name == card), None)

    def configure(self, configured: Sequence[Configured]) -> None:
        """Other cards from the next reading on."""
        for gone in {card.name for card in self.configured} - {card.name for card in configured}:
            metrics.forget(gone)
            self._told.pop(gone, None)
            self._problems.pop(gone, None)
        self.configured = configured

    async def _read(self) -> Reading:
        """A reading that began after it was asked for; an empty one with its reason where none came."""
        if self._pending is not None and self._is_late:
            if not self._pending.done():
                return self._missing("the driver still does not answer; its log (dmesg) may say why")
            self._pending = None  # what it found is long past
        self._is_late = False
        if self._pending is None:
            self._pending = in_thread(self.machine.read)
        began = time.monotonic()
        await self._answered(self._pending)
        if not self._pending.done():
            self._is_late = True
            return self._missing(f"the driver has not answered for {self.pace.timeout_s:g} s; its log (dmesg) may say why")
        pending, self._pending = self._pending, None
        metrics.READ_S.set(time.monotonic() - began)
        try:
            return pending.result()
        except Exception as error:  # a bug in a reader costs the cards' figures, and nothing else
            logger.exception("cards_unread")
            return self._missing(f"reading the cards failed: {error!r}")

    async def _answered(self, pending: asyncio.Future[Reading]) -> None:
        """Wait for the reading, or until its time is up."""
        alarm = asyncio.ensure_future(self.clock.sleep(self.pace.timeout_s))
        try:
            await asyncio.wait({pending, alarm}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()

    def _missing(self, problem: str) -> Reading:
        metrics.UNREAD.inc()
        return Reading(problems=(problem,))

    async def _tell(self, status: CardStatus) -> None:
        name, used = status.card.name, status.used_mib
        now = Measured(name, used, status.reading.size_mib if status.reading else None)
        told = self._told.get(name)
        if told is None and used is None and now.size_mib is None:
            return  # nothing was ever known
        if told is not None and told.size_mib == now.size_mib and _is_near(told.used_mib, used, self.pace.step_mib):
            return
        try:
            was_taken = await self.on_change(now)
        except Fault as fault:
            self._untold(name, fault.message)
        except Exception:  # the outermost place of a telling: a bug there costs this figure, and not the engine
            logger.exception("card_untold", card=name)
            metrics.UNTOLD.inc()
        else:
            if was_taken:
                self._told[name] = now

    def _untold(self, name: str, reason: str) -> None:
        """Told again with the next reading, like anything that is not in `_told`."""
        logger.warning("card_untold", card=name, reason=reason)
        metrics.UNTOLD.inc()

    def _log_problems(self) -> None:
        """Say what is wrong once, and again when it is something else."""
        now = {status.card.name: status.problem for status in self.statuses if status.problem}
        now |= {"": "; ".join(self.reading.problems)} if self.reading.problems else {}
        for name, problem in now.items():
            if self._problems.get(name) != problem:
                logger.warning("card_problem", tag="[GPU-CARDS]", card=name, problem=problem)
        self._problems = now


def in_thread(work: Callable[[], Answer]) -> asyncio.Future[Answer]:
    """Run `work` in a daemon thread. Unlike an executor's, it keeps no process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is known, though nobody may ask

    def settle(result: Answer | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # pyright: ignore[reportArgumentType]

    def body() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, name="cards", daemon=True).start()
    return answer


def _is_near(told: int | None, now: int | None, step: int) -> bool:
    if told is None or now is None:
        return told is now
    return abs(told - now) < step or told == now
