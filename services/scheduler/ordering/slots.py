"""What a slot of a card does at the moment, and what may be decided about it. Frozen: the desk replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.scheduler.ordering.waiting import Call


@dataclass(frozen=True, slots=True)
class Slot:
    """One place that holds one model at a time and answers `concurrency` calls of it at once."""

    name: str
    concurrency: int = 1
    serves: frozenset[str] | None = None  # the models that it can load; None: any
    resident: str | None = None
    loading: str | None = None
    leaving_for: str | None = None  # decided: this model is next, once the calls in flight have their answers
    kept_for: str | None = None  # who forbids another model here (a run's lease, a pin, a hold), as a person would name it
    down: str | None = None  # why nothing can be asked of it now, in words
    running: Mapping[str, Call] = field(default_factory=dict[str, Call])  # the calls in flight, by id
    loaded_at_s: float = 0.0
    busy_at_s: float = float("-inf")  # when a normal call was last seen waiting for it or running on it
    warm: frozenset[str] = frozenset()  # agents that were answered since the model was loaded: their prompts are cached
    back_by_s: Mapping[str, float] = field(default_factory=dict[str, float])  # agents that may ask again soon, and until when
    last_agent: str = ""  # whose call was dispatched last
    in_a_row: int = 0  # how many of its calls were dispatched one after the other

    @property
    def has_room(self) -> bool:
        return len(self.running) < self.concurrency

    def can_serve(self, model: str) -> bool:
        return self.serves is None or model in self.serves

    def holds(self, model: str) -> bool:
        """Whether the model is here, or on its way: then its calls wait here and nowhere else."""
        return self.leaving_for == model or self.loading == model or (self.resident == model and self.leaving_for is None)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this call to the slot's model now."""

    slot: str
    call: Call
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Send the slot no more calls of its model: `model` is loaded when those in flight are answered."""

    slot: str
    model: str
    why: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load this model now. Nothing is in flight or loading on the slot."""

    slot: str
    model: str
    why: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing before `until_s`, unless something happens; then decide again."""

    slot: str
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """This call can't be served as it was asked; it is failed with the reason rather than moved (key-services 6.3)."""

    call: Call
    why: str


Decision = Dispatch | Leave | Load | Pause
