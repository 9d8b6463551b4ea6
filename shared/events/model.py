"""Facts of the models that a slot holds, one aggregate per slot. Written by the scheduler's arbiter.

`loading` and `unloading` are decisions that the backend still has to carry out; `loaded` and `unloaded` are what it
confirmed. A slot whose load state nobody can tell is `unknown`, which is never the same as empty (integrations, "LM Studio").
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from shared.events.envelope import Event

Purpose = Literal["lease", "swap", "reload", "restore", "hold", "duplicate"]


class ObservedModel(BaseModel):
    """A row of the backend's own listing. `ours`: loaded by the engine, or of the slot's standard set."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    state: Literal["loaded", "loading", "not-loaded"] = "not-loaded"
    mib: NonNegativeInt | None = None
    context_tokens: PositiveInt | None = None
    ours: bool = False
    instances: tuple[str, ...] = ()  # the backend's ids of its copies, where there is more than one


class ModelFact(Event):
    """What every fact of a slot's models says."""

    at: AwareDatetime
    slot: str
    card: str


class ModelLoading(ModelFact):
    """A load was decided. `card_mib` and `reason` are the arithmetic that it rests on."""

    TYPE: ClassVar[str] = "model.loading"

    model: str
    mib: NonNegativeInt | None = None
    context_tokens: PositiveInt | None = None  # the size that it is loaded with, which all its calls then have
    purpose: Purpose
    lease_id: str | None = None
    holder: str = ""
    run_id: str | None = None
    card_mib: NonNegativeInt | None = None
    deadline_at: AwareDatetime
    reason: str = ""


class ModelLoaded(ModelFact):
    """The backend holds the model, seen after the load. The engine loaded it, so the engine may unload it."""

    TYPE: ClassVar[str] = "model.loaded"

    model: str
    mib: NonNegativeInt | None = None
    context_tokens: PositiveInt | None = None
    lease_id: str | None = None


class ModelLoadFailed(ModelFact):
    """The model did not land."""

    TYPE: ClassVar[str] = "model.load_failed"

    model: str
    code: str
    reason: str
    lease_id: str | None = None


class ModelUnloading(ModelFact):
    """An unload was decided. `instance` names one copy; else all of the model goes. Nothing is using it."""

    TYPE: ClassVar[str] = "model.unloading"

    model: str
    instance: str | None = None
    context_tokens: PositiveInt | None = None  # that it was loaded with
    purpose: Purpose
    lease_id: str | None = None
    holder: str = ""
    run_id: str | None = None
    deadline_at: AwareDatetime
    reason: str = ""


class ModelUnloaded(ModelFact):
    """The backend confirmed that it is gone; free memory is measured apart."""

    TYPE: ClassVar[str] = "model.unloaded"

    model: str
    instance: str | None = None


class ModelsObserved(ModelFact):
    """What the backend lists, where that differs from what the log said. Its state is known from here on."""

    TYPE: ClassVar[str] = "model.observed"

    models: tuple[ObservedModel, ...] = ()


class SlotUnknown(ModelFact):
    """The backend did not say what it holds: until it does, nothing is loaded, unloaded or taken for granted there."""

    TYPE: ClassVar[str] = "model.unknown"

    reason: str


class SlotRestored(ModelFact):
    """The slot holds its standard set again, and of the engine's own models nothing else."""

    TYPE: ClassVar[str] = "model.restored"

    models: tuple[str, ...] = ()


class RestoreFailed(ModelFact):
    """An attempt to restore failed. Without `retry_at` it was the last until the next lease ends there."""

    TYPE: ClassVar[str] = "model.restore_failed"

    attempt: PositiveInt
    retry_at: AwareDatetime | None = None
    reason: str
