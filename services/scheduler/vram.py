"""The VRAM planner: what to load, what must go for it, what may not go and why, with the arithmetic in words. Pure.

It budgets a load against everything that the card holds, whoever put it there, and unloads no more than the shortfall
requires (KS 6.1; integrations, "LM Studio"). What may go, and how soon, is said by the caller as a `Level` for each thing
held: the arbiter knows leases, holds and calls in flight; this module knows sizes only. All sizes are MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

SEARCHED = 10  # models; with more on one card, needless ones are given back one by one instead


class Level(IntEnum):
    """What it takes to have something off the card, from least to most."""

    IDLE = 0  # nobody needs it
    STANDARD = 1  # of a standard set: it can go for a lease, and is restored afterwards
    INTERACTIVE = 2  # under interactive leases, which end at once
    ANSWERING = 3  # a call is in flight: it can go when that ends
    BATCH = 4  # under batch leases, which end after their grace
    LEASED = 5  # under leases that this asker can only wait for
    NEVER = 9  # the embedding model, a foreign model, another run's model, a load under way, an unknown slot


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that is taken, or promised to a live lease. `why` is who keeps it there, in words."""

    name: str
    mib: int | None
    level: Level
    why: str = ""
    slot: str = ""  # empty: not a model, so it counts for no slot's number of models
    rotating: bool = False  # takes turns with other rotating models: together they have `shared_mib`
    leases: tuple[str, ...] = ()  # those that must end before it can go


@dataclass(frozen=True, slots=True)
class Need:
    """A model to bring in."""

    name: str
    mib: int | None
    rotating: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """A card and the slot on it that something is to be loaded into.

    `outside_mib` is what programs outside the engine hold, where it was measured. `shared_mib` is set aside for models
    that take turns: the largest that a live rotating lease names.
    """

    card: str
    slot: str
    size_mib: int | None
    held: tuple[Held, ...]
    needs: tuple[Need, ...]
    outside_mib: int | None = None
    reserve_mib: int = 0
    shared_mib: int = 0
    max_models: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. When it does not `fit`, `words` say by how much and who holds what; nothing is to be done then."""

    fits: bool
    loads: tuple[Need, ...]
    evicts: tuple[Held, ...]
    level: Level  # the highest of what must go
    missing_mib: int
    words: str


def plan(room: Room, limit: Level) -> Plan:
    """What makes room without anything above `limit`: the lowest level that does, and of that the fewest evictions."""
    if _fits(room, ()):
        return Plan(True, room.needs, (), Level.IDLE, 0, _can(room, ()))
    pool: list[Held] = []
    for level in sorted({held.level for held in room.held if held.level <= limit}):
        pool = [held for held in room.held if held.level <= level]
        if _fits(room, pool):
            evicts = _fewest(room, pool)
            return Plan(True, room.needs, evicts, max(held.level for held in evicts), 0, _can(room, evicts))
    return Plan(False, room.needs, (), Level.NEVER, _shortfall(room, pool), _cannot(room, pool))


def _fewest(room: Room, pool: Sequence[Held]) -> tuple[Held, ...]:
    """The smallest part of `pool` that makes room; of several the one that frees least."""
    if len(pool) > SEARCHED:
        return _without_needless(room, list(pool))
    for count in range(1, len(pool) + 1):
        fitting = [part for part in combinations(pool, count) if _fits(room, part)]
        if fitting:
            return min(fitting, key=lambda part: (max(held.level for held in part), sum(held.mib or 0 for held in part)))
    return tuple(pool)


def needed_mib(room: Room, gone: Iterable[Held] = ()) -> int:
    """What the card must hold when `gone` are off it and all needs are in."""
    left = _kept(room, gone)
    taken = sum(_size(held, room) for held in left if not held.rotating)
    rotating = sum(_size(held, room) for held in left if held.rotating) + sum(_size(need, room) for need in room.needs if need.rotating)
    return taken + sum(_size(need, room) for need in room.needs if not need.rotating) + max(room.shared_mib, rotating) + _apart(room)


def _fits(room: Room, gone: Sequence[Held]) -> bool:
    if room.max_models is not None and _count(room, gone) > room.max_models:
        return False
    return room.size_mib is None or needed_mib(room, gone) <= room.size_mib


def _count(room: Room, gone: Iterable[Held]) -> int:
    return sum(1 for held in _kept(room, gone) if held.slot == room.slot) + len(room.needs)


def _without_needless(room: Room, taken: list[Held]) -> tuple[Held, ...]:
    """Give back what need not go after all, the highest level and the largest first."""
    for held in sorted(taken, key=lambda held: (-held.level, -(held.mib or 0))):
        fewer = [each for each in taken if each is not held]
        if _fits(room, fewer):
            taken = fewer
    return tuple(taken)


def _kept(room: Room, gone: Iterable[Held]) -> list[Held]:
    off = {id(held) for held in gone}
    return [held for held in room.held if id(held) not in off]


def _size(thing: Held | Need, room: Room) -> int:
    """Its size. Unknown: the whole card, unless it is there already and telemetry counts it in `outside_mib`."""
    if thing.mib is not None:
        return thing.mib
    if isinstance(thing, Held) and room.outside_mib is not None:
        return 0
    return room.size_mib or 0


def _apart(room: Room) -> int:
    return (room.outside_mib or 0) + room.reserve_mib


def _shortfall(room: Room, gone: Iterable[Held]) -> int:
    return max(0, needed_mib(room, gone) - (room.size_mib or 0)) if room.size_mib is not None else 0


# ---- words


def _can(room: Room, evicts: Sequence[Held]) -> str:
    if not room.needs:
        return "nothing is to be loaded"
    after = f" after {_list(evicts, room)} is unloaded" if evicts else ""
    if room.size_mib is None:
        return f"{_needs(room)} on card {room.card} of unknown size{after}: its backend's own limit decides"
    return f"{_needs(room)} on card {room.card} fits{after}: {needed_mib(room, evicts)} of {room.size_mib} MiB will be held"


def _cannot(room: Room, freed: Sequence[Held]) -> str:
    kept = _kept(room, freed)
    if room.max_models is not None and _count(room, freed) > room.max_models:
        staying = [held for held in kept if held.slot == room.slot]
        return (
            f"{_needs(room)} does not fit: slot {room.slot} holds at most {room.max_models} model(s), "
            f"and {_list(staying, room) or 'more is asked for at once'} stays. {_hint(room, kept)}"
        )
    parts = [f"{_needs(room)} does not fit on card {room.card}: it has {room.size_mib} MiB"]
    if kept:
        parts.append(f"held: {_list(kept, room)}")
    if room.outside_mib:
        parts.append(f"{room.outside_mib} MiB by programs outside the engine")
    if room.reserve_mib:
        parts.append(f"{room.reserve_mib} MiB in reserve")
    if room.shared_mib:
        parts.append(f"{room.shared_mib} MiB for models that take turns")
    if freed:
        parts.append(f"unloading {_list(freed, room)} would free {sum(_size(held, room) for held in freed)} MiB")
    return f"{'; '.join(parts)}; {_shortfall(room, freed)} MiB are missing. {_hint(room, kept)}"


def _hint(room: Room, kept: Sequence[Held]) -> str:
    unknown = [thing.name for thing in (*room.needs, *kept) if thing.mib is None and _size(thing, room)]
    if unknown and room.size_mib is not None:
        return f"The size of {unknown[0]} is not known, so it counts as the whole card: set its mib in scheduler.slots"
    if any(held.leases for held in kept):
        return "Ask again when those leases have ended, or name a smaller model"
    return "Name a smaller model, or free the card"


def _needs(room: Room) -> str:
    return " and ".join(f"{need.name} ({_mib(need)})" for need in room.needs) or "what is asked for"


def _list(things: Iterable[Held], room: Room) -> str:
    return ", ".join(f"{held.name} ({_mib(held)}{f', {held.why}' if held.why else ''})" for held in things)


def _mib(thing: Held | Need) -> str:
    return "size unknown" if thing.mib is None else f"{thing.mib} MiB"
