"""Which hardware a configured card is. Pure.

A card's `device` is a PCI address (`0000:03:00.0` or `03:00.0`), a DRM node (`card1`), its place in the listing (`0`), part of
its name (`7900 XTX`), or `auto` where there is only one. Without a `device` it has no hardware here: a server elsewhere,
of the configured size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from services.scheduler.cards.pci import VENDORS, address
from services.scheduler.cards.reading import CardReading

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Configured:
    """A card as the settings have it (`scheduler.cards.<name>`)."""

    name: str
    device: str | None = None
    size_mib: int | None = None


@dataclass(frozen=True, slots=True)
class CardStatus:
    """A configured card and what is known of it. `problem` says what is wrong, and what to do about it."""

    card: Configured
    reading: CardReading | None = None
    problem: str = ""

    @property
    def size_mib(self) -> int | None:
        """What to plan with: a configured size comes before a measured one."""
        return self.card.size_mib or (self.reading.size_mib if self.reading else None)

    @property
    def used_mib(self) -> int | None:
        return self.reading.used_mib if self.reading else None


def match(configured: Sequence[Configured], cards: Sequence[CardReading]) -> list[CardStatus]:
    """Each configured card with its hardware, in their order. No hardware is two cards: the first has it."""
    taken: dict[int, str] = {}
    return [_status(card, cards, taken) for card in configured]


def _status(card: Configured, cards: Sequence[CardReading], taken: dict[int, str]) -> CardStatus:
    if card.device is None:
        return CardStatus(card)
    found = _candidates(card.device.strip(), cards)
    where = f"scheduler.cards.{card.name}.device"
    if len(found) != 1:
        what = f"{len(found)} cards here are" if found else "no card here is"
        mend = "give the PCI address" if found else f"mend {where}, or leave it out for a server elsewhere"
        return CardStatus(card, None, f"{what} {card.device!r}; {mend}. {_listing([cards[at] for at in found] or cards)}")
    at = found[0]
    if at in taken:
        return CardStatus(card, None, f"{card.device!r} is card {taken[at]!r} already; mend {where}. {_listing(cards)}")
    taken[at] = card.name
    return CardStatus(card, cards[at], _doubt(card, cards[at]))


def _candidates(device: str, cards: Sequence[CardReading]) -> list[int]:
    """The places of the cards that `device` may mean. Addresses, nodes and places mean one or none, never part of a name."""
    if device == AUTO:
        return [at for at, each in enumerate(cards) if each.vendor in VENDORS.values()]
    if (pci := address(device)) is not None:
        return [at for at, each in enumerate(cards) if each.pci == pci]
    if re.fullmatch(r"card[0-9]+", device):
        return [at for at, each in enumerate(cards) if each.node == device]
    if re.fullmatch(r"[0-9]{1,2}", device):
        return [int(device)] if int(device) < len(cards) else []
    exact = [at for at, each in enumerate(cards) if each.name.casefold() == device.casefold()]
    part = [at for at, each in enumerate(cards) if device and device.casefold() in each.name.casefold()]
    return exact or part


def _doubt(card: Configured, found: CardReading) -> str:
    if card.size_mib is None or found.size_mib is None or card.size_mib <= found.size_mib:
        return ""
    return f"{card.size_mib} MiB are configured and the hardware has {found.size_mib}; lower scheduler.cards.{card.name}.size_mib"


def _listing(cards: Sequence[CardReading]) -> str:
    rows = [" ".join(part for part in (each.pci, each.node, each.name) if part) for each in cards]
    return f"Found: {'; '.join(rows)}." if rows else "Found: none at all."
