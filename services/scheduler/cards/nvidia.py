"""NVIDIA's cards, through its management library (NVML).

`nvidia-ml-py` finds the driver's library when it is first used. Without a driver there are no cards and nothing is wrong.
What one card does not support is unknown for that card; a card that fell off the bus says so and the others are still read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from services.scheduler.cards.files import Files
from services.scheduler.cards.pci import address
from services.scheduler.cards.reading import Draft, Holder, Link, size_mib, used_mib

DEVICES = ("dev/nvidiactl", "dev/dxg")  # the driver's, and its way through WSL
CHIP_SENSOR = 0  # NVML_TEMPERATURE_GPU
ABSENT = frozenset({9, 12})  # driver not loaded, library not found
NOT_SUPPORTED = frozenset({3, 13, 25})  # by the card, the library, or in this version of a structure
SPEEDS_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # by PCIe generation

Answer = TypeVar("Answer")


class Nvml(Protocol):
    """The part of the module `pynvml` that is used. Memory is bytes, power mW, shares percent."""

    NVMLError: type[Exception]
    NVMLLibraryMismatchError: type[Exception]  # the driver is too old for a function

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int: ...
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int: ...
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int: ...
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]: ...


def installed(root: Path = Path("/")) -> Nvml | None:
    """The library's module, imported only where a driver shows, so that elsewhere no memory is spent on it; else None."""
    if not any((root / each).exists() for each in DEVICES):
        return None
    return cast(Nvml, importlib.import_module("pynvml"))


@dataclass
class Nvidia:
    """Reads all NVIDIA cards. The library stays open between readings: opening it takes a good part of a second."""

    root: Path = Path("/")
    library: Callable[[Path], Nvml | None] = installed
    _open: Nvml | None = None

    def read(self) -> tuple[list[Draft], list[str]]:
        """A draft of each card, and what is wrong with the library itself."""
        if self._open is None:
            try:
                library = self.library(self.root)
            except ImportError:
                return [], ["a driver of NVIDIA is here and its library for Python is not: pip install nvidia-ml-py"]
            if library is None:
                return [], []
            try:
                library.nvmlInit()
            except library.NVMLError as error:
                return [], [] if _code(error) in ABSENT else [f"NVIDIA's library does not start: {error}"]
            self._open = library
        try:
            return [_Card(self._open, index, self.root).draft() for index in range(self._open.nvmlDeviceGetCount())], []
        except self._open.NVMLError as error:
            self.close()  # the driver was exchanged or reset: the next reading opens it anew
            return [], [f"NVIDIA's library does not answer: {error}"]

    def close(self) -> None:
        library, self._open = self._open, None
        if library is None:
            return
        try:
            library.nvmlShutdown()
        except library.NVMLError:
            return  # it was closed, or lost, already


@dataclass
class _Card:
    """One card, asked question by question: each may be refused by itself."""

    nvml: Nvml
    index: int
    root: Path
    problems: list[str] = field(default_factory=list[str])

    def draft(self) -> Draft:
        handle = self._ask("the card", lambda: self.nvml.nvmlDeviceGetHandleByIndex(self.index))
        draft = Draft({"name": f"NVIDIA card {self.index}", "vendor": "NVIDIA", "driver": "nvidia"}, problems=self.problems)
        if handle is None:
            return draft
        name = self._ask("the name", lambda: self.nvml.nvmlDeviceGetName(handle))
        pci = self._ask("the PCI address", lambda: self.nvml.nvmlDeviceGetPciInfo(handle))
        draft.identity |= {"name": _text(name)} if name else {}
        draft.identity |= {"pci": address(_text(pci.busId))} if pci is not None else {}
        self._memory(draft, handle)
        self._activity(draft, handle)
        draft.tell("link", self._link(handle), "nvml")
        draft.tell("processes", self._processes(handle), "nvml")
        return draft

    def _memory(self, draft: Draft, handle: Any) -> None:
        memory = self._ask("memory", lambda: self.nvml.nvmlDeviceGetMemoryInfo(handle))
        if memory is not None:
            draft.tell("size_mib", size_mib(memory.total), "nvml")
            draft.tell("used_mib", used_mib(memory.used), "nvml")

    def _activity(self, draft: Draft, handle: Any) -> None:
        temperature = self._ask("temperature", lambda: self.nvml.nvmlDeviceGetTemperature(handle, CHIP_SENSOR))
        power = self._ask("power", lambda: self.nvml.nvmlDeviceGetPowerUsage(handle))
        rates = self._ask("utilization", lambda: self.nvml.nvmlDeviceGetUtilizationRates(handle))
        draft.tell("temperature_c", float(temperature) if temperature is not None else None, "nvml")
        draft.tell("power_w", power / 1000 if power is not None else None, "nvml")
        draft.tell("busy_share", rates.gpu / 100 if rates is not None else None, "nvml")

    def _link(self, handle: Any) -> Link | None:
        nvml = self.nvml
        generation = self._ask("link", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
        width = self._ask("link", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
        best = self._ask("link", lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        widest = self._ask("link", lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
        speed, max_speed = SPEEDS_GTS.get(generation or 0), SPEEDS_GTS.get(best or 0)
        if speed is None and not width:
            return None
        return Link(speed_gts=speed, width=width or None, max_speed_gts=max_speed, max_width=widest or None)

    def _processes(self, handle: Any) -> tuple[Holder, ...] | None:
        """A process that computes and draws is in both lists, each time with all that it holds."""
        computing = self._ask("processes", lambda: self.nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        drawing = self._ask("processes", lambda: self.nvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
        if computing is None and drawing is None:
            return None
        held: dict[int, int | None] = {}
        for each in (*(computing or ()), *(drawing or ())):
            known, told = held.get(each.pid), used_mib(each.usedGpuMemory)
            held[each.pid] = max((size for size in (known, told) if size is not None), default=None)
        names = {pid: Files().text(self.root / "proc" / str(pid) / "comm") for pid in held}
        return tuple(Holder(pid=pid, name=names[pid], mib=held[pid]) for pid in sorted(held) if pid > 0)

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except (self.nvml.NVMLError, self.nvml.NVMLLibraryMismatchError) as error:
            if _code(error) not in NOT_SUPPORTED:
                self.problems.append(f"{what}: {error}")
            return None


def _code(error: Exception) -> int:
    return int(getattr(error, "value", 0))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
