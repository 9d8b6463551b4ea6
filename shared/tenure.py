"""Which of several processes is the active one: an office that one holds for a while at a time, in a JetStream KV bucket.

The holder writes anew, every second, a record that only follows its own last one (compare-and-set by revision). A process that stands
by takes the office when it has seen the same revision for longer than the holder trusts it. Neither reads the other's clock: the holder
counts from before it wrote, the other from when it saw what was written, so the first has always given up before the second begins.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol

import nats.errors
import orjson
import structlog

from shared.bus import Bus, JetStreamError
from shared.clock import Clock
from shared.errors import Conflict, Fault, LogUnavailable, Verdict
from shared.ids import new_id

BUCKET = "TENURES"
TTL_S = 4.0
RENEW_S = 1.0
LOOK_S = 0.5
MARGIN_S = 0.5  # beyond what the holder trusts; with the rest, a dead holder is relieved within 5.5 s
LEAVE_S = 2.0
ASK_S = 2.0
WRONG_LAST_SEQUENCE, NO_MESSAGE, STREAM_MISSING = 10071, 10037, 10059

logger = structlog.get_logger()


class StoodDown(Fault):
    """Another process holds the office now: whatever this one was about to do, that one decides."""

    code = "tenure.stood_down"
    verdict = Verdict.RETRY


@dataclass(frozen=True, slots=True)
class Record:
    """Who holds an office: `owner` by name (empty: it was given up), `boot` the very process. It is trusted for `ttl_s`."""

    owner: str
    boot: str
    ttl_s: float


class Register(Protocol):
    """The place of one office's record, with a revision that grows."""

    async def read(self) -> tuple[int, Record | None]:
        """The revision and the record; 0 and None when there has been none.

        Raises:
            LogUnavailable: it did not say.
        """
        ...

    async def write(self, record: Record, *, after: int) -> int:
        """Replace the record of revision `after`; the new one's revision.

        Raises:
            Conflict: another was written since.
            LogUnavailable: it did not say; it may be written.
        """
        ...


@dataclass
class Tenure:
    """One process's claim to an office. `owner` is the same after a restart, which so goes on at once."""

    register: Register
    owner: str
    clock: Clock
    now_s: Callable[[], float] = time.monotonic
    ttl_s: float = TTL_S
    boot: str = field(default_factory=new_id)
    stands_by: bool = False  # another holds the office, and this one waits for it
    _revision: int = 0
    _until_s: float = float("-inf")
    _is_held: bool = False
    _is_new: bool = True  # nothing was read yet: an earlier process of this name is dead
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_certain(self) -> bool:
        """Whether the office is held beyond doubt: nobody can have taken it yet."""
        return self._is_held and self.now_s() < self._until_s

    async def take(self) -> None:
        """Wait until the office is free, and take it."""
        seen: tuple[int, float] | None = None
        while True:
            try:
                revision, record = await self.register.read()
                if record is not None and not self._is_free(record, revision, seen):
                    if seen is None or seen[0] != revision:
                        if seen is None:
                            logger.info("standing_by", holder=record.owner)
                            self.stands_by = True
                        seen = revision, self.now_s()
                elif await self._write(revision):
                    logger.info("in_office", owner=self.owner, after=record.owner if record else "")
                    self.stands_by = False
                    return
            except LogUnavailable:
                seen = None  # nor can the holder write: it has its whole time once the log is back
            await self.clock.sleep(LOOK_S)

    def _is_free(self, record: Record, revision: int, seen: tuple[int, float] | None) -> bool:
        is_own = record.boot == self.boot or (self._is_new and record.owner == self.owner)
        self._is_new = False
        lapsed = seen is not None and seen[0] == revision and self.now_s() - seen[1] >= record.ttl_s + MARGIN_S
        return not record.owner or is_own or lapsed

    async def hold(self) -> None:
        """Renew for as long as the office is held; returns when it is lost."""
        while self._is_held:
            await self.clock.sleep(RENEW_S)
            with suppress(LogUnavailable, StoodDown):
                await self._renew()

    async def confirm(self, *, anew: bool = False) -> None:
        """Return if the office is held; `anew`: for what the register says now. Waits while the log is away.

        Raises:
            StoodDown: it is not.
        """
        while anew or not self.is_certain:
            try:
                await self._renew()
                return
            except LogUnavailable:
                await self.clock.sleep(LOOK_S)

    async def release(self) -> None:
        """Give the office up, so that the next need not wait for it to lapse."""
        if not self._is_held:
            return
        self._is_held = False
        with suppress(Conflict, LogUnavailable, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.register.write(Record("", self.boot, self.ttl_s), after=self._revision)

    async def _renew(self) -> None:
        async with self._lock:
            if self._is_held and not await self._write(self._revision):
                self._is_held = False
                logger.warning("stood_down", owner=self.owner)
            if not self._is_held:
                raise StoodDown(
                    f"{self.owner} holds this office no more: ask again, and the process that does will answer", owner=self.owner
                )

    async def _write(self, after: int) -> bool:
        asked_s = self.now_s()
        try:
            revision = await self.register.write(Record(self.owner, self.boot, self.ttl_s), after=after)
        except Conflict:
            revision, record = await self.register.read()
            if record is None or record.boot != self.boot:
                return False  # otherwise it is ours, and the answer to an earlier try was lost
        self._revision, self._until_s, self._is_held = revision, asked_s + self.ttl_s, True
        return True


@dataclass(frozen=True, slots=True)
class NatsRegister:
    """A key of the bucket, in the layout that NATS' own KV tools read."""

    bus: Bus
    key: str

    @property
    def _subject(self) -> str:
        return f"$KV.{BUCKET}.{self.key}"

    async def read(self) -> tuple[int, Record | None]:
        try:
            answer = await self.bus.api(f"STREAM.MSG.GET.KV_{BUCKET}", {"last_by_subj": self._subject}, timeout_s=ASK_S)
        except JetStreamError as error:
            if error.err_code == STREAM_MISSING:
                await self._ensure()
            elif error.err_code != NO_MESSAGE:
                raise LogUnavailable(f"the bucket {BUCKET} cannot be read: {error.message}") from error
            return 0, None
        message = answer["message"]
        return int(message["seq"]), Record(**orjson.loads(base64.b64decode(message["data"])))

    async def write(self, record: Record, *, after: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(after)}
        try:
            reply = await self.bus.ask(self._subject, orjson.dumps(asdict(record)), timeout_s=ASK_S, headers=headers)
        except (TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"the bucket {BUCKET} did not answer: {error!r}") from error
        answer = orjson.loads(reply.data)
        if (problem := answer.get("error")) is None:
            return int(answer["seq"])
        if problem.get("err_code") == WRONG_LAST_SEQUENCE:
            raise Conflict(f"{self.key} was written by another since revision {after}")
        raise LogUnavailable(f"the bucket {BUCKET} refused a record: {problem.get('description')}")

    async def _ensure(self) -> None:
        config = {
            "name": f"KV_{BUCKET}",
            "subjects": [f"$KV.{BUCKET}.>"],
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        try:
            await self.bus.api(f"STREAM.CREATE.KV_{BUCKET}", config)
        except JetStreamError as error:
            raise LogUnavailable(f"the bucket {BUCKET} cannot be made: {error.message}") from error
