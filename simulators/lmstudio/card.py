"""The memory of a simulated LM Studio: which instances hold it, since when and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from simulators.lmstudio.config import LmConfig, SimModel


class Clock:
    """Time that a test can move on, and waits that notice it."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._moved = asyncio.Event()

    def now(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
        self._moved.set()
        self._moved = asyncio.Event()

    async def until(self, at: float, gone: asyncio.Event) -> None:
        """Wait for a time, or until whoever waits has gone."""
        while (left_s := at - self.now()) > 0 and not gone.is_set():
            waits = [asyncio.ensure_future(event.wait()) for event in (self._moved, gone)]
            try:
                await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()


class Refused(Exception):
    """The guardrail: there is not enough memory for a load."""

    def __init__(self, needed_mib: int) -> None:
        super().__init__(needed_mib)
        self.needed_gb = needed_mib / 1000


@dataclass(eq=False)
class Instance:
    """A model in memory, or on its way there. `ttl_s` None: loaded by hand, so it stays."""

    id: str
    model: SimModel
    context: int
    ready_at: float
    ttl_s: float | None = None
    asked_at: float = 0.0
    answers: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])  # how to break each off

    @property
    def mib(self) -> int:
        return self.model.mib(self.context)

    @property
    def expires_at(self) -> float | None:
        """Counted from the start of the last request, and not from its end: a long answer outlives it (case RW-12)."""
        return None if self.ttl_s is None else max(self.asked_at, self.ready_at) + self.ttl_s


@dataclass
class Card:
    config: LmConfig
    clock: Clock = field(default_factory=Clock)
    outside_mib: int = 0
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    loads: list[str] = field(default_factory=list[str])  # every load that began, by instance
    unloads: list[str] = field(default_factory=list[str])
    peak_mib: int = 0

    def __post_init__(self) -> None:
        self.outside_mib = self.config.outside_mib
        for key in self.config.loaded:
            model = self.config.model(key)
            assert model is not None, f"{key!r} is loaded and not among the models"
            self._place(model, model.context, ready_at=self.clock.now(), ttl_s=None)

    @property
    def used_mib(self) -> int:
        return self.outside_mib + sum(each.mib for each in self.instances.values())

    def is_ready(self, each: Instance) -> bool:
        return each.ready_at <= self.clock.now()

    def ready(self) -> list[Instance]:
        return [each for each in self.instances.values() if self.is_ready(each)]

    def of(self, key: str) -> list[Instance]:
        return [each for each in self.instances.values() if each.model.key == key]

    def begin(self, model: SimModel, context: int | None, *, ttl_s: float | None = None) -> Instance:
        """Begin a load: a further copy, if the model is there or on its way already.

        Raises:
            Refused: the guardrail is on and the memory short.
        """
        size = context or model.context
        needed = model.mib(size)
        if self.config.guardrail and self.used_mib + needed > self.config.vram_mib:
            raise Refused(needed)
        each = self._place(model, size, ready_at=self.clock.now() + self.config.load_s, ttl_s=ttl_s)
        self.loads.append(each.id)
        return each

    def _place(self, model: SimModel, context: int, *, ready_at: float, ttl_s: float | None) -> Instance:
        number = next(n for n in range(1, 1000) if _named(model.key, n) not in self.instances)
        each = Instance(_named(model.key, number), model, context, ready_at, ttl_s, asked_at=self.clock.now())
        self.instances[each.id] = each
        self.peak_mib = max(self.peak_mib, self.used_mib)
        return each

    def evict_for_jit(self) -> None:
        """Auto-evict: the models that requests loaded go, in mid-answer too; those loaded by hand stay."""
        for each in [each for each in self.instances.values() if each.ttl_s is not None and self.is_ready(each)]:
            self.unload(each.id)

    def unload(self, instance_id: str) -> bool:
        each = self.instances.pop(instance_id, None)
        if each is None:
            return False
        self.unloads.append(instance_id)
        for break_off in list(each.answers.values()):
            break_off()
        return True

    def reap(self) -> None:
        """Unload what has not been asked for in its time."""
        now = self.clock.now()
        for each in [each for each in self.instances.values() if each.expires_at is not None and each.expires_at <= now]:
            self.unload(each.id)


def _named(key: str, number: int) -> str:
    return key if number == 1 else f"{key}:{number}"
