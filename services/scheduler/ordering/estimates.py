"""How long loads, answers and an agent's pauses take, learned from what was seen. Values, replaced as they learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MEMORY = 64  # samples that a mean effectively remembers: longer follows a change too late, shorter follows chance
LATE = 1.2  # an agent that is this much later than it uses to be is no longer waited for


@dataclass(frozen=True, slots=True)
class Mean:
    """A running mean that starts at a guess worth `count` samples and forgets slowly."""

    value: float
    count: float = 2.0

    def seen(self, sample: float) -> Mean:
        count = min(self.count + 1, MEMORY)
        return Mean(self.value + (sample - self.value) / count, count)


@dataclass(frozen=True, slots=True)
class Estimates:
    """What decisions assume about time. The guesses matter until the first few samples."""

    load: Mean = Mean(8.0)
    answer: Mean = Mean(2.0)
    loads: Mapping[str, Mean] = field(default_factory=dict[str, Mean])
    answers: Mapping[str, Mean] = field(default_factory=dict[str, Mean])
    pause: Mean | None = None  # between an agent's answer and its next call; None until one was seen

    def load_s(self, model: str) -> float:
        return self.loads.get(model, self.load).value

    def answer_s(self, model: str) -> float:
        return self.answers.get(model, self.answer).value

    def loaded(self, model: str, took_s: float) -> Estimates:
        return replace(self, load=self.load.seen(took_s), loads={**self.loads, model: self.loads.get(model, self.load).seen(took_s)})

    def answered(self, model: str, took_s: float) -> Estimates:
        own = self.answers.get(model, self.answer).seen(took_s)
        return replace(self, answer=self.answer.seen(took_s), answers={**self.answers, model: own})

    def paused(self, took_s: float) -> Estimates:
        """An agent asked again. Pauses longer than a load say nothing about whom to wait for: those agents are gone."""
        if took_s > self.load.value:
            return self
        return replace(self, pause=Mean(took_s, 1) if self.pause is None else self.pause.seen(took_s))

    @property
    def patience_s(self) -> float:
        """How long an answered agent is worth waiting for before its model is given up; 0 while nothing is known.

        Never longer than a load: who waits longer has lost what the wait could save.
        """
        return 0.0 if self.pause is None else min(self.pause.value * LATE, self.load.value)
