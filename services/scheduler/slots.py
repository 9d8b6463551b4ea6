"""The slot catalogue: which inference servers there are, in which order, on which card, and what each may hold. Pure.

Built from the settings once and again when they change (KS 6.10, SlotCatalog). What does not fit together between settings
is left out here and named by `slot_checks.py`; what runs where is decided by `placement.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from services.scheduler.model_names import same_model
from shared.scheduler_settings import RoleSettings, SchedulerSettings, SlotSettings

ROLES = frozenset(
    {
        "verifier",
        "step_judge",
        "trajectory_judge",
        "reflection",
        "compaction",
        "summary",
        "lessons",
        "curation",
        "team_generation",
        "decision",
        "embeddings",
    }
)
"""Kinds of model calls that belong to no node of a team."""

FIRST = ("primary", "secondary")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. `size_mib` None: nobody knows, so there is no arithmetic on it."""

    name: str
    size_mib: int | None = None
    reserve_mib: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    mib: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One inference server. Hidden slots (`_name`) are used when named, never chosen."""

    name: str
    card: str
    models: Mapping[str, ModelSpec] = field(default_factory=dict[str, ModelSpec])
    standard_set: tuple[str, ...] = ()
    alternates: tuple[str, ...] = ()
    concurrency: int = 1
    max_models: int | None = None
    restore_delay: timedelta = timedelta()
    interactive_copies: Mapping[str, str] = field(default_factory=dict[str, str])  # base → its copy for chat clients

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith("_")


@dataclass(frozen=True, slots=True)
class Times:
    """The arbiter's periods; see `SchedulerSettings` for what each is for."""

    lease_ttl: timedelta = timedelta(seconds=120)
    max_lease_ttl: timedelta = timedelta(hours=1)
    preempt_grace: timedelta = timedelta(seconds=30)
    run_wait: timedelta = timedelta(minutes=30)
    batch_wait: timedelta = timedelta(hours=1)
    load_timeout: timedelta = timedelta(minutes=10)
    unload_timeout: timedelta = timedelta(minutes=1)
    restore_attempts: int = 3
    restore_backoff: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Cards and slots by name; `order` is the visible slots in the order in which they are tried."""

    cards: Mapping[str, Card] = field(default_factory=dict[str, Card])
    slots: Mapping[str, Slot] = field(default_factory=dict[str, Slot])
    order: tuple[str, ...] = ()
    embedding_models: frozenset[str] = frozenset()
    roles: Mapping[str, RoleSettings] = field(default_factory=dict[str, RoleSettings])
    default_node_instance: str | None = None
    offline_fallback_slot: str | None = None
    times: Times = Times()
    _by_card: Mapping[str, tuple[Slot, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cards = {slot.card for slot in self.slots.values()}
        by_card = {name: tuple(slot for slot in self.slots.values() if slot.card == name) for name in cards}
        object.__setattr__(self, "_by_card", by_card)

    def card_of(self, slot: str) -> Card:
        return self.cards[self.slots[slot].card]

    def on_card(self, card: str) -> tuple[Slot, ...]:
        return self._by_card.get(card, ())

    def is_embedding(self, model: str) -> bool:
        """Whether the settings name it as an embedding model, however it is spelt here."""
        return any(same_model(each, model) for each in self.embedding_models)


def catalogue(settings: SchedulerSettings) -> Catalogue:
    """The catalogue that the settings describe. What `slot_checks.problems` names is left out or replaced as it says."""
    known = settings.slots.keys()
    slots = {name: _slot(name, each, settings) for name, each in settings.slots.items()}
    cards = {name: Card(name, each.size_mib, each.reserve_mib) for name, each in settings.cards.items()}
    order = _order(settings)
    return Catalogue(
        cards={slot.card: Card(slot.card) for slot in slots.values()} | cards,
        slots=slots,
        order=order,
        embedding_models=frozenset(settings.embedding_models),
        roles={role: each for role, each in settings.role_placement.items() if each.slot in known and role in ROLES},
        default_node_instance=_if_known(settings.default_node_instance, known),
        offline_fallback_slot=_if_known(settings.offline_fallback_slot, known),
        times=_times(settings),
    )


def _slot(name: str, given: SlotSettings, settings: SchedulerSettings) -> Slot:
    others = tuple(each for each in _order(settings) if each != name)
    named = given.alternates if given.alternates is not None else others
    return Slot(
        name=name,
        card=given.card if given.card in settings.cards else f"own-{name}",
        models={model: ModelSpec(each.mib, each.context_tokens) for model, each in given.models.items()},
        standard_set=given.standard_set,
        alternates=tuple(each for each in named if each in settings.slots and each != name),
        concurrency=given.concurrency,
        max_models=given.max_models,
        restore_delay=timedelta(seconds=given.restore_delay_s),
        interactive_copies=given.interactive_copies,
    )


def _order(settings: SchedulerSettings) -> tuple[str, ...]:
    """Primary, secondary, then the others, in `slot_order`; hidden ones left out."""
    listed = [name for name in settings.slot_order if name in settings.slots]
    first = [name for name in FIRST if name in settings.slots and name not in listed]
    return tuple(name for name in dict.fromkeys([*first, *listed, *settings.slots]) if not name.startswith("_"))


def _if_known(name: str | None, known: Collection[str]) -> str | None:
    return name if name in known else None


def _times(settings: SchedulerSettings) -> Times:
    return Times(
        lease_ttl=timedelta(seconds=settings.lease_ttl_s),
        max_lease_ttl=timedelta(seconds=settings.max_lease_ttl_s),
        preempt_grace=timedelta(seconds=settings.preempt_grace_s),
        run_wait=timedelta(seconds=settings.run_wait_s),
        batch_wait=timedelta(seconds=settings.batch_wait_s),
        load_timeout=timedelta(seconds=settings.load_timeout_s),
        unload_timeout=timedelta(seconds=settings.unload_timeout_s),
        restore_attempts=settings.restore_attempts,
        restore_backoff=timedelta(seconds=settings.restore_backoff_s),
    )
