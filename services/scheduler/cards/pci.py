"""PCI: addresses, vendors, the names in the machine's own list of devices, and the link that limits a card."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from services.scheduler.cards.files import Files
from services.scheduler.cards.reading import Link

VENDORS = {"0x1002": "AMD", "0x8086": "Intel", "0x10de": "NVIDIA"}
LISTS = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s.*")
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})


def address(text: str) -> str | None:
    """A PCI address in the kernel's form; None for what is none.

    >>> address("03:00.0"), address("00000000:0A:00.0"), address("card0")
    ('0000:03:00.0', '0000:0a:00.0', None)
    """
    found = _ADDRESS.fullmatch(text.strip().lower())
    if found is None:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2]}:{found[3]}.{found[4]}"


@dataclass
class Names:
    """Names of devices from the machine's `pci.ids`. Each is looked up once, and the file is not kept."""

    root: Path
    _found: dict[tuple[str, str], str | None] = field(default_factory=dict[tuple[str, str], "str | None"])

    def of(self, vendor: str, device: str) -> str | None:
        """The name of `0x1002`, `0x744c`."""
        key = (vendor, device)
        if key not in self._found:
            self._found[key] = self._look_up(vendor.removeprefix("0x"), device.removeprefix("0x"))
        return self._found[key]

    def _look_up(self, vendor: str, device: str) -> str | None:
        for each in LISTS:
            try:
                with open(self.root / each, encoding="utf-8", errors="replace") as lines:
                    is_vendor = False
                    for line in lines:
                        if line[:1] not in ("\t", "#", "\n"):
                            if is_vendor:
                                return None
                            is_vendor = line.startswith(f"{vendor}  ")
                        elif is_vendor and line.startswith(f"\t{device}  "):
                            return line[len(device) + 3 :].strip() or None
            except OSError:
                continue
        return None


def link_of(files: Files, device: Path) -> tuple[Link | None, str]:
    """The link of a device (its real folder below /sys/devices), and which device's it is.

    Large cards carry a PCIe switch of their own, and the chip's link to it always reads the same (AMD: full speed,
    Intel Arc: 2.5 GT/s, one lane). The slot's is that of the topmost bridge above it of the card's own vendor.
    """
    vendor = files.text(device / "vendor")
    end = device
    while vendor and files.text(end.parent / "vendor") == vendor and files.text(end.parent / "current_link_speed"):
        end = end.parent
    link = Link(
        speed_gts=_speed(files.text(end / "current_link_speed")),
        width=_width(files.text(end / "current_link_width")),
        max_speed_gts=_speed(files.text(end / "max_link_speed")),
        max_width=_width(files.text(end / "max_link_width")),
    )
    is_told = link.speed_gts is not None or link.width is not None
    return (link if is_told else None), f"sysfs current_link_* of {end.name}"


def _speed(text: str | None) -> float | None:
    found = _SPEED.fullmatch(text or "")
    return (float(found[1]) or None) if found else None


def _width(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 4 and int(text) in _WIDTHS else None
