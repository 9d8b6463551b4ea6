"""What is known of a card at one moment. Pure.

None means that nobody told, never zero. Whatever is told says by whom: `sources` has exactly the fields that are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

MIB = 2**20
TOLD = ("size_mib", "used_mib", "temperature_c", "power_w", "link", "busy_share", "processes")
"""The fields that a machine may leave unknown, each with its source when it does not."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Link(Part):
    """The PCIe link that limits the card, and the most that its two ends could do. Idle cards lower theirs."""

    speed_gts: PositiveFloat | None = None
    width: PositiveInt | None = None
    max_speed_gts: PositiveFloat | None = None
    max_width: PositiveInt | None = None


class Sensor(Part):
    label: str
    celsius: float


class Holder(Part):
    """A process that has the card open. `mib` is what lies in the card's memory now."""

    pid: PositiveInt
    name: str | None = None
    mib: NonNegativeInt | None = None
    busy_share: NonNegativeFloat | None = None  # of its busiest engine, 0 to 1


class CardReading(Part):
    """One GPU. `processes` () is nobody; None is that nobody could tell."""

    name: str
    vendor: str | None = None
    driver: str | None = None
    pci: str | None = None  # 0000:03:00.0
    node: str | None = None  # card0; the numbers may change with every boot
    is_asleep: bool = False  # powered down; asking its sensors would wake it
    size_mib: PositiveInt | None = None
    used_mib: NonNegativeInt | None = None
    temperature_c: float | None = None  # of the chip; `sensors` has all
    power_w: NonNegativeFloat | None = None
    link: Link | None = None
    busy_share: NonNegativeFloat | None = None  # of the busiest engine, 0 to 1
    processes: tuple[Holder, ...] | None = None
    sensors: tuple[Sensor, ...] = ()
    sources: dict[str, str] = {}
    problems: tuple[str, ...] = ()


class Reading(Part):
    """All cards of a machine, in the order of their PCI addresses."""

    cards: tuple[CardReading, ...] = ()
    hidden_processes: NonNegativeInt = 0  # whose open files this user may not see
    problems: tuple[str, ...] = ()


@dataclass
class Draft:
    """A reading while it is put together. Who tells a field first has told it."""

    identity: dict[str, Any]
    told: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    sensors: tuple[Sensor, ...] = ()
    nodes: frozenset[str] = frozenset()  # of the device: card0, renderD128
    energy_uj: int | None = None  # a counter, for `rates`
    energy_source: str = ""

    @property
    def pci(self) -> str | None:
        return self.identity.get("pci")

    def tell(self, name: str, value: Any, source: str) -> None:
        assert name in TOLD, name
        if value is not None and name not in self.told:
            self.told[name], self.sources[name] = value, source

    def knows(self, name: str) -> bool:
        return name in self.told

    def reading(self) -> CardReading:
        """The reading; a card that claims to hold more than it has is not believed."""
        size, used = self.told.get("size_mib"), self.told.get("used_mib")
        problems, told, sources = list(self.problems), dict(self.told), dict(self.sources)
        if size is not None and used is not None and used > size + 1:  # each was rounded its own way
            problems.append(f"{used} MiB are said to be used of {size} MiB, which cannot be")
            del told["used_mib"], sources["used_mib"]
        elif size is not None and used is not None:
            told["used_mib"] = min(used, size)
        return CardReading(**self.identity, **told, sensors=self.sensors, sources=sources, problems=tuple(problems))


def size_mib(count: int | None) -> int | None:
    """Bytes of a memory's size in whole MiB; a size of nothing is no size."""
    return count // MIB or None if count is not None and 0 < count < 2**48 else None


def used_mib(count: int | None) -> int | None:
    """Bytes in use in MiB, rounded up: what is planned beside them must fit."""
    return -(-count // MIB) if count is not None and 0 <= count < 2**48 else None
