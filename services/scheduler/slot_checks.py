"""What does not fit together in the slots' settings, for the log at boot. Pure.

Each problem carries the tag that it is logged under and says what is done instead; none stops the start (KS 6.10,
SlotConfigValidator).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.scheduler.slots import ROLES
from shared.scheduler_settings import SchedulerSettings

ROLE_PLACEMENT = "[ROLE-PLACEMENT]"
GPU_CARDS = "[GPU-CARDS]"
SLOTS = "[SLOTS]"


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong setting that is logged and worked around; `instead` says how."""

    tag: str
    setting: str
    message: str
    instead: str

    def __str__(self) -> str:
        return f"{self.tag} {self.setting}: {self.message}; {self.instead}"


def problems(settings: SchedulerSettings) -> tuple[Problem, ...]:
    """What does not fit together, for the log at boot. The start goes on (KS 6.10, SlotConfigValidator)."""
    return (*_card_problems(settings), *_role_problems(settings), *_slot_problems(settings))


def _card_problems(settings: SchedulerSettings) -> Iterator[Problem]:
    for name, slot in settings.slots.items():
        if slot.card is not None and slot.card not in settings.cards:
            known = ", ".join(settings.cards) or "none"
            message = f"no card is called {slot.card!r} (known: {known})"
            yield Problem(GPU_CARDS, f"scheduler.slots.{name}.card", message, "the slot counts as on a card of its own, of unknown size")


def _role_problems(settings: SchedulerSettings) -> Iterator[Problem]:
    for role, each in settings.role_placement.items():
        setting = f"scheduler.role_placement.{role}"
        if role not in ROLES:
            yield Problem(ROLE_PLACEMENT, setting, f"no role is called {role!r} (known: {', '.join(sorted(ROLES))})", "it is ignored")
        elif each.slot not in settings.slots:
            yield Problem(ROLE_PLACEMENT, f"{setting}.slot", _no_slot(each.slot, settings), "the role goes to the first slot")
    fallback = settings.offline_fallback_slot
    if fallback is not None and fallback not in settings.slots:
        yield Problem(
            ROLE_PLACEMENT, "scheduler.offline_fallback_slot", _no_slot(fallback, settings), "roles of a slot that is down stay there"
        )


def _slot_problems(settings: SchedulerSettings) -> Iterator[Problem]:
    named = [("scheduler.slot_order", name) for name in settings.slot_order]
    named += [(f"scheduler.slots.{name}.alternates", each) for name, slot in settings.slots.items() for each in slot.alternates or ()]
    if settings.default_node_instance is not None:
        named.append(("scheduler.default_node_instance", settings.default_node_instance))
    for setting, name in named:
        if name not in settings.slots:
            yield Problem(SLOTS, setting, _no_slot(name, settings), "it is ignored")
    for name, slot in settings.slots.items():
        for model in slot.standard_set:
            if slot.models and model not in slot.models:
                yield Problem(SLOTS, f"scheduler.slots.{name}.standard_set", f"{model!r} is not among its models", "its size is unknown")
        if slot.max_models is not None and len(slot.standard_set) > slot.max_models:
            message = f"{len(slot.standard_set)} models, but max_models is {slot.max_models}"
            yield Problem(SLOTS, f"scheduler.slots.{name}.standard_set", message, "it can't be restored whole: shorten it")


def _no_slot(name: str, settings: SchedulerSettings) -> str:
    return f"no slot is called {name!r} (known: {', '.join(settings.slots) or 'none'})"
