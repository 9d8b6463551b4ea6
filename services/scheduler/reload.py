"""Changes of the settings' file taken up while the scheduler runs (S4).

The file is looked at every second. A signal would need to be sent to a process that `aetherium up` starts and restarts under a
number that nobody knows, and editors replace a file rather than write it, which watches of one inode miss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from services.scheduler import slot_checks
from services.scheduler.changes import change
from shared.clock import Clock
from shared.config import BadSetting
from shared.scheduler_settings import SchedulerSettings

LOOK_S = 1.0

logger = structlog.get_logger()

Stamp = tuple[int, int, int]


@dataclass
class Reload:
    """`read` gives the section as the file now has it, `apply` puts one in force; `running` is what is in force."""

    file: Path
    running: SchedulerSettings
    read: Callable[[], SchedulerSettings]
    apply: Callable[[SchedulerSettings], Awaitable[None]]
    clock: Clock
    _seen: Stamp | None = None
    _read: Stamp | None = None
    _said: tuple[str, ...] = field(default=())

    async def run(self) -> None:
        """Follow the file; never returns."""
        while True:
            await self.look()
            await self.clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the file if it is not as it was read last, once it has been left alone from one look to the next: a save takes a moment."""
        stamp = _stamp(self.file)
        settled, self._seen = stamp == self._seen, stamp
        if settled and stamp != self._read:
            self._read = stamp
            if stamp is None:
                logger.error(
                    "settings_refused", file=str(self.file), reason="the file is gone", instead="the settings in use stay: put it back"
                )
            else:
                await self._take_up()

    async def _take_up(self) -> None:
        try:
            wanted = self.read()
        except BadSetting as wrong:
            logger.error("settings_refused", file=str(self.file), reason=wrong.message, instead="the settings in use stay: mend the file")
            return
        found = change(self.running, wanted)
        if found.needs_restart and found.needs_restart != self._said:
            logger.warning("settings_need_restart", settings=found.needs_restart, what_to_do="restart the scheduler to take them up")
        self._said = found.needs_restart
        if not found.taken:
            return
        for problem in set(slot_checks.problems(found.settings)) - set(slot_checks.problems(self.running)):
            logger.warning("slot_setting", problem=str(problem))
        await self.apply(found.settings)
        self.running = found.settings
        logger.info("settings_taken_up", settings=found.taken)


def _stamp(file: Path) -> Stamp | None:
    """What tells one state of a file from another; None: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
