"""What an inference server holds, and how it is told to hold something else. I/O only: what to load is decided elsewhere.

Apart from `Backend` on purpose: loading and inference are addressed independently (integrations, "LM Studio").
A `Dialect` speaks one kind of server's management API; `loads.Managed` keeps the rules that hold for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

ModelState = Literal["loaded", "loading", "not-loaded"]
ModelKind = Literal["llm", "embedding"]

# Architectures and names of embedding models: servers list some of these as chat models (case RW-08).
_EMBEDDING = re.compile(r"embed|\bbert\b|bert-|-bert|(?:^|[/_-])(?:bge|gte|e5|minilm)(?:$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Can:
    """What a server's management offers, as its adapter declares it once the server's API is known."""

    lists_states: bool = False
    load: bool = False
    unload: bool = False
    sets_context: bool = False  # a load may name its context; else the server's own settings do
    lists_all: bool = False  # a model that is not listed cannot be loaded
    unloads_later: bool = False  # an unload is answered at once, and a call that the model is answering may delay it
    max_models: int | None = None  # at that many it evicts one by itself to load another; None = no such limit is told


@dataclass(frozen=True, slots=True)
class Row:
    """One instance of a model, or a model of which no instance is there.

    `id` is the instance's own, `model` the one it is a copy of: `qwen3-8b:2` of `qwen3-8b`. `mib` is memory in use if
    the server tells it; `file_mib` the size of the weights on disk, which is less. `context_tokens` is that of one request.
    """

    id: str
    model: str
    state: ModelState = "not-loaded"
    mib: int | None = None
    file_mib: int | None = None
    context_tokens: int | None = None
    max_context_tokens: int | None = None
    kind: ModelKind | None = None
    aliases: tuple[str, ...] = ()
    failed: str = ""  # why its last load or its process ended, if the server tells
    asleep: bool = False  # its process is there and its memory is not

    def is_called(self, name: str) -> bool:
        """Whether a request that names `name` means this. A second instance under a name of its own is not meant by the model's."""
        return name == self.id or name in self.aliases


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that answers now. `dropped` and `left`: stacked copies that were unloaded, or could not be."""

    row: Row
    was_loaded: bool = False  # no load was needed
    dropped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Management(Protocol):
    """Sees, loads and unloads on one server."""

    async def can(self) -> Can:
        """What it offers.

        Raises:
            StateUnknown: the server did not say what it is.
        """
        ...

    async def listing(self) -> tuple[Row, ...]:
        """What the server holds and could load; empty only if it said so.

        Raises:
            StateUnknown: anything but a listing came.
            NotManaged: it tells no states.
        """
        ...

    async def load(self, model: str, context_tokens: int | None = None) -> Loaded:
        """Have a model answer: nothing is loaded twice, a load under way is awaited, and the listing after it must show it.

        Cancelling ends the caller's wait, not the load.

        Raises:
            StateUnknown: what the server holds is not known, before or after.
            ModelUnknown, LoadedSmaller, NoRoom, NotManaged: nothing was asked of the server.
            ModelLoadFailed, OutOfMemory, BackendRefused: it refused or failed, and said so.
        """
        ...

    async def unload(self, model: str, instance: str | None = None) -> tuple[str, ...]:
        """Unload `instance`, else all copies of a model; the ids that went. What is not there is no error.

        Done when the listing says so, not when memory has come back: somebody else may have taken it (case RW-13).

        Raises:
            StateUnknown, NotManaged, BackendRefused: as for `load`.
        """
        ...

    async def close(self) -> None: ...


class Dialect(Protocol):
    """One kind of server's management API, without rules. Every method raises `BackendFault`s as they come."""

    @property
    def url(self) -> str: ...

    async def can(self) -> Can: ...

    async def listing(self) -> tuple[Row, ...]: ...

    async def load(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        """Ask for a load of a model that `row` lists; the instance that the server names. It may still be loading."""
        ...

    async def unload(self, row: Row) -> None: ...

    async def close(self) -> None: ...


def kind_of(told: str, *names: str) -> ModelKind | None:
    """Whether a model chats or embeds: what the server told, unless its names say that it embeds.

    >>> kind_of("llm", "jina-embeddings-v3", "jina-bert-v3"), kind_of("vlm", "qwen2-vl"), kind_of("", "qwen3-8b")
    ('embedding', 'llm', None)
    """
    if told in ("embeddings", "embedding") or any(_EMBEDDING.search(name) for name in names):
        return "embedding"
    return "llm" if told in ("llm", "vlm") else None


def chat_models(rows: Sequence[Row]) -> list[Row]:
    """The models that may be chosen for chat when the settings name none, each once; loaded ones first."""
    by_model = {row.model: row for row in sorted(rows, key=lambda row: row.state == "loaded") if row.kind != "embedding"}
    return sorted(by_model.values(), key=lambda row: row.state != "loaded")
