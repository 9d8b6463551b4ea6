"""The section `scheduler` of the settings: cards, slots, which role runs where, and the arbiter's times (KS 6.1, 6.10).

What one value alone can be wrong in is refused here and named. What only shows between values (a role on a slot that
is not configured, a slot on an unknown card) is logged at boot by `services/scheduler/slots.py` and the start goes on,
as KS 6.10 has it for `SlotConfigValidator`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr, field_validator

from shared.ids import is_token
from shared.section import Section, from_json


class CardSettings(Section):
    """A GPU. Without a size there is no arithmetic on it: the backend's own limit decides."""

    device: str | None = None  # which hardware it is, by PCI address, DRM node, place or name, or `auto`; None: a card elsewhere
    size_mib: PositiveInt | None = None
    reserve_mib: NonNegativeInt = 0  # never planned with: display, drivers


class ModelSettings(Section):
    """A model of a slot. Without `mib` it counts as the whole card wherever a card has a size."""

    mib: PositiveInt | None = None
    context_tokens: PositiveInt | None = None  # what it is loaded with when nobody asks for more


class SlotSettings(Section):
    """One inference server: what it may hold, on which card, and how many calls it takes at a time."""

    url: str | None = None
    kind: str = "auto"
    api_key: SecretStr | None = None
    card: str | None = None  # None: a card of its own, of unknown size (a server elsewhere)
    concurrency: PositiveInt = 1
    max_models: PositiveInt | None = None  # llama-server's --models-max
    models: Annotated[dict[str, ModelSettings], BeforeValidator(from_json)] = Field(default={})
    standard_set: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    alternates: Annotated[tuple[str, ...] | None, BeforeValidator(from_json)] = None  # None: all others in order
    interactive_copies: Annotated[dict[str, str], BeforeValidator(from_json)] = Field(default={})
    restore_delay_s: NonNegativeFloat = 0.0


class RoleSettings(Section):
    """Where model calls of a role run that belongs to no node. Pinned: there or not at all."""

    slot: str
    pinned: bool = False


class SchedulerSettings(Section):
    """Everything that the arbiter is told. Lists and tables may come from the environment as JSON."""

    cards: Annotated[dict[str, CardSettings], BeforeValidator(from_json)] = Field(default={})
    slots: Annotated[dict[str, SlotSettings], BeforeValidator(from_json)] = Field(default={})
    slot_order: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    embedding_models: Annotated[tuple[str, ...], BeforeValidator(from_json)] = ()
    role_placement: Annotated[dict[str, RoleSettings], BeforeValidator(from_json)] = Field(default={})
    default_node_instance: str | None = None
    offline_fallback_slot: str | None = None
    lease_sweep_s: PositiveFloat = 5.0
    lease_ttl_s: PositiveFloat = 120.0
    max_lease_ttl_s: PositiveFloat = 3600.0
    preempt_grace_s: NonNegativeFloat = 30.0
    run_wait_s: PositiveFloat = 1800.0  # a run's request that waits for a hold or a grace expires then
    batch_wait_s: PositiveFloat = 3600.0
    load_timeout_s: PositiveFloat = 600.0
    unload_timeout_s: PositiveFloat = 60.0
    restore_attempts: PositiveInt = Field(default=3, le=10)
    restore_backoff_s: PositiveFloat = 10.0  # doubled after each failed attempt

    @field_validator("cards", "slots")
    @classmethod
    def _names_are_tokens(cls, named: dict[str, Section]) -> dict[str, Section]:
        for name in named:
            if not is_token(name):
                raise ValueError(f"{name!r} can't be a name here: use letters, digits, '-' and '_' only")
        return named
