"""The rules of loading that hold for every server: one load at a time, no second copy, and nothing believed that no listing shows.

Source: integrations, "LM Studio"; feature S5. Which model to load or unload is the arbiter's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import structlog

from services.scheduler.backends.faults import (
    BackendFault,
    BackendRefused,
    LoadedSmaller,
    ModelLoadFailed,
    ModelUnknown,
    NoRoom,
    NotManaged,
    OutOfMemory,
    Overloaded,
    StateUnknown,
)
from services.scheduler.backends.management import Can, Dialect, Loaded, Row
from services.scheduler.model_names import base_of

logger = structlog.get_logger()

POLL_S = 0.5
LOAD_S = 600.0
UNLOAD_S = 60.0

# Answers after which the server's state is what it was: it said no. Whatever else goes wrong leaves it unknown.
_SAID_NO = (BackendRefused, ModelLoadFailed, OutOfMemory, Overloaded, ModelUnknown, NoRoom, NotManaged, StateUnknown)


class Managed:
    """A `Management` over one server's dialect. Loads and unloads of a server come one after another."""

    def __init__(
        self, dialect: Dialect, *, poll_s: float = POLL_S, load_timeout_s: float = LOAD_S, unload_timeout_s: float = UNLOAD_S
    ) -> None:
        self._dialect = dialect
        self._poll_s = poll_s
        self._load_timeout_s, self._unload_timeout_s = load_timeout_s, unload_timeout_s
        self._turn = asyncio.Lock()
        self._loads: dict[tuple[str, int | None], asyncio.Task[Loaded]] = {}

    @property
    def url(self) -> str:
        return self._dialect.url

    async def close(self) -> None:
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self._dialect.close()

    async def can(self) -> Can:
        try:
            return await self._dialect.can()
        except BackendFault as fault:
            raise self._unknown(fault) from fault

    async def listing(self) -> tuple[Row, ...]:
        """See `Management.listing`."""
        try:
            return await self._dialect.listing()
        except (StateUnknown, NotManaged):
            raise
        except BackendFault as fault:
            raise self._unknown(fault) from fault

    # ---- load

    async def load(self, model: str, context_tokens: int | None = None) -> Loaded:
        """See `Management.load`. Callers that want the same share one load, which a caller that leaves does not end."""
        key = (model, context_tokens)
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = asyncio.create_task(self._load(model, context_tokens))
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: tuple[str, int | None], done: asyncio.Task[Loaded]) -> None:
        self._loads.pop(key, None)
        if not done.cancelled() and (error := done.exception()) is not None:  # looked at: every caller may have left
            logger.warning("model_not_loaded", server=self.url, model=key[0], reason=str(error)[:300])

    async def _load(self, model: str, context_tokens: int | None) -> Loaded:
        async with self._in_turn(f"load of {model!r}", self._load_timeout_s):
            can = await self.can()
            if not can.load:
                raise NotManaged(f"{self.url} loads no models when asked. Load {model!r} there, or start it with that model.")
            rows = await self._settled()
            found = _loaded(rows, model)
            if found:
                return Loaded(self._fitting(found, model, context_tokens), was_loaded=True)
            row = self._row_of(rows, model, can)
            self._check_room(rows, row, model, can)
            before = frozenset(each.id for each in rows if each.state != "not-loaded")
            instance = await self._ask(row, model, context_tokens)
            return await self._without_copies(model, before, await self._landed(model, instance))

    async def _settled(self) -> tuple[Row, ...]:
        """The listing once nothing loads, whoever began it: two loads at once would both count the same free memory."""
        while True:
            rows = await self.listing()
            if all(row.state != "loading" for row in rows):
                return rows
            await asyncio.sleep(self._poll_s)

    def _fitting(self, found: Sequence[Row], model: str, wanted: int | None) -> Row:
        """The loaded instance with the most context, if that is enough."""
        row = max(found, key=lambda each: each.context_tokens or 0)
        if wanted is None or row.context_tokens is None or row.context_tokens >= wanted:
            return next((each for each in found if each.id == model and each.context_tokens == row.context_tokens), row)
        message = f"{model!r} is loaded with {row.context_tokens} tokens of context, and {wanted} are wanted. Unload it first."
        raise LoadedSmaller(message, server=self.url, context=row.context_tokens, wanted=wanted)

    def _row_of(self, rows: Sequence[Row], model: str, can: Can) -> Row | None:
        row = next((each for each in rows if each.is_called(model)), None)
        if row is None and can.lists_all:
            known = ", ".join(sorted({each.model for each in rows})) or "none"
            raise ModelUnknown(f"{self.url} has no model {model!r}. It has: {known}.", server=self.url, model=model)
        return row

    def _check_room(self, rows: Sequence[Row], row: Row | None, model: str, can: Can) -> None:
        """Refuse what would make the server evict a model of its own choice: that choice is not its to make."""
        running = [each for each in rows if each.state != "not-loaded" or each.asleep]
        if can.max_models is None or len(running) < can.max_models or row in running:
            return
        names = ", ".join(each.id for each in running)
        message = f"{self.url} holds {names}, and no more than {can.max_models} at once. Unload one before {model!r} is loaded."
        raise NoRoom(message, server=self.url, max_models=can.max_models, loaded=[each.id for each in running])

    async def _ask(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        try:
            return await self._dialect.load(row, model, context_tokens)
        except _SAID_NO:
            raise
        except BackendFault as fault:
            message = f"What became of the load of {model!r} is not known: {fault.message}"
            raise StateUnknown(message, server=self.url, cause=fault.code) from fault

    async def _landed(self, model: str, instance: str | None) -> list[Row]:
        """The loaded instances of a model, after its load was asked for. An answer alone is not believed."""
        doubts = 0
        while True:
            mine = [row for row in await self.listing() if _is_copy(row, model) or row.id == instance]
            loaded = [row for row in mine if row.state == "loaded"]
            if loaded:
                return loaded
            if all(row.state != "loading" for row in mine):
                failed = next((row.failed for row in mine if row.failed), "")
                if failed:
                    message = f"{self.url} could not load {model!r}: {failed}. Look into the server's log, or choose another model."
                    raise ModelLoadFailed(message, server=self.url, upstream=failed)
                doubts += 1
                if doubts > 1:
                    message = f"{self.url} answered that it loaded {model!r}, and does not list it as loaded. Look into the server's log."
                    raise StateUnknown(message, server=self.url, cause="did_not_land")
            await asyncio.sleep(self._poll_s)

    async def _without_copies(self, model: str, before: frozenset[str], loaded: list[Row]) -> Loaded:
        """Unload what was stacked meanwhile: a copy with a suffix doubles the memory. Copies that were there before stay."""
        spare = [row for row in loaded if row.id not in before and base_of(row.id, [model]) != row.id and len(loaded) > 1]
        kept = next((row for row in loaded if row not in spare), loaded[0])
        dropped: list[str] = []
        left = [row.id for row in loaded if row is not kept and row not in spare]
        for row in spare:
            if row is kept:
                continue
            try:
                await self._drop([row])
                dropped.append(row.id)
            except BackendFault as fault:
                logger.warning("stacked_copy_left", server=self.url, instance=row.id, reason=fault.message)
                left.append(row.id)
        return Loaded(kept, dropped=tuple(dropped), left=tuple(left))

    # ---- unload

    async def unload(self, model: str, instance: str | None = None) -> tuple[str, ...]:
        """See `Management.unload`."""
        async with self._in_turn(f"unload of {instance or model!r}", self._unload_timeout_s):
            if not (await self.can()).unload:
                raise NotManaged(f"{self.url} unloads no models when asked. Unload {model!r} there.")
            rows = await self._settled()
            there = [row for row in rows if row.id == instance] if instance is not None else _loaded(rows, model)
            return await self._drop([row for row in there if row.state == "loaded"])

    async def _drop(self, rows: Sequence[Row]) -> tuple[str, ...]:
        for row in rows:
            await self._drop_one(row)
        return tuple(row.id for row in rows)

    async def _drop_one(self, row: Row) -> None:
        refused: BackendFault | None = None
        try:
            await self._dialect.unload(row)
        except _SAID_NO as fault:
            refused = fault  # perhaps since it went by itself: the listing tells
        except BackendFault as fault:
            message = f"What became of the unload of {row.id!r} is not known: {fault.message}"
            raise StateUnknown(message, server=self.url, cause=fault.code) from fault
        doubts = 0
        while any(each.id == row.id and each.state != "not-loaded" for each in await self.listing()):
            if refused is not None:
                raise refused
            doubts += 1
            if doubts > 1 and not (await self.can()).unloads_later:
                message = f"{self.url} answered that it unloaded {row.id!r}, and still lists it. Look into the server's log."
                raise StateUnknown(message, server=self.url, cause="did_not_unload")
            await asyncio.sleep(self._poll_s)

    # ---- both

    @asynccontextmanager
    async def _in_turn(self, what: str, limit_s: float) -> AsyncGenerator[None]:
        """Alone on this server, and not for ever."""
        async with self._turn:
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    yield
            except TimeoutError as error:
                if not limit.expired():
                    raise
                message = f"{self.url} did not end the {what} within {limit_s:g} s. Look into the server's log."
                raise StateUnknown(message, server=self.url, cause="timed_out") from error

    def _unknown(self, fault: BackendFault) -> StateUnknown:
        return StateUnknown(f"What {self.url} holds is not known: {fault.message}", server=self.url, cause=fault.code)


def _is_copy(row: Row, model: str) -> bool:
    return row.is_called(model) or base_of(row.id, [model]) == model


def _loaded(rows: Sequence[Row], model: str) -> list[Row]:
    return [row for row in rows if row.state == "loaded" and _is_copy(row, model)]
