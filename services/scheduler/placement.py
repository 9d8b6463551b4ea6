"""What runs where: roles, nodes, pins, and which slots are down. Pure (KS 6.1, 6.10 RolePlacement)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from services.scheduler.model_names import same_model
from services.scheduler.slots import Catalogue

DOWN_AFTER = 2  # failed probes in a row


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a role's calls go. `binds`: there or nowhere. `reason` is set where it is not the slot that was configured."""

    slot: str
    binds: bool
    reason: str = ""


def place_role(known: Catalogue, role: str, down: Collection[str] = ()) -> Placement | None:
    """Where calls of a role go; `down` are slots whose last two probes failed. None: there is no slot at all.

    An unpinned role whose slot is down moves to the fallback slot; a pinned one stays and fails there (KS 6.10).
    """
    given = known.roles.get(role)
    wanted = given.slot if given is not None else next(iter(known.order), None)
    if wanted is None:
        return None
    binds = given is not None and given.pinned
    fallback = known.offline_fallback_slot
    if binds or wanted not in down or fallback is None or fallback in down or fallback == wanted:
        return Placement(wanted, binds)
    return Placement(fallback, False, f"slot {wanted!r} is down")


def place_node(known: Catalogue, model: str | None, instance: str | None) -> str | None:
    """The slot of a node that names a model but no instance: `default_node_instance`, if it is for that model (KS 6.1).

    That is when the slot's standard set holds exactly one model that the node's id matches.
    """
    if instance is not None or model is None or known.default_node_instance is None:
        return instance
    matching = [each for each in known.slots[known.default_node_instance].standard_set if same_model(each, model)]
    return known.default_node_instance if len(matching) == 1 else None


def pins(known: Catalogue, targets: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The model that each slot is pinned to for a run, from the models that the run's nodes target there (KS 6.1).

    A slot is pinned only when exactly one model targets it and its standard set does not name a different one; an
    embedding model in that set is no other choice for a node.
    """
    pinned: dict[str, str] = {}
    for slot, models in targets.items():
        if len(set(models)) != 1 or slot not in known.slots:
            continue
        (model,) = set(models)
        if all(same_model(each, model) or known.is_embedding(each) for each in known.slots[slot].standard_set):
            pinned[slot] = model
    return pinned


def chat_model(known: Catalogue, slot: str, listed: Iterable[str] = ()) -> str | None:
    """The model for a call that names none: of the standard set, else configured, else listed; never an embedding model.

    What the server says of a model's type is not asked: some embedding models are listed as if they could chat.
    """
    spec = known.slots[slot]
    return next((each for each in (*spec.standard_set, *spec.models, *listed) if not known.is_embedding(each)), None)


@dataclass(frozen=True, slots=True)
class Probes:
    """How many probes of each slot failed since the last that was answered (S16)."""

    failed: Mapping[str, int] = field(default_factory=dict[str, int])

    def after(self, slot: str, *, answered: bool) -> Probes:
        return Probes({**self.failed, slot: 0 if answered else self.failed.get(slot, 0) + 1})

    @property
    def down(self) -> frozenset[str]:
        return frozenset(slot for slot, count in self.failed.items() if count >= DOWN_AFTER)
