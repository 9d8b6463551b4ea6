"""What may be asked of the arbiter from outside the engine's runs, as it stands on the wire: `api/inference` and its rpc (S14)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from shared.bodies import Body

MAX_WAIT_S = 25.0  # that one request may wait for news: below what proxies and clients give a request


class LeaseRequest(Body):
    """A slot for batch work or a chat client. Sizes are MiB, times seconds; left out, the settings' own apply.

    `waitS`: how long it may queue. `ttlS`: how long a grant lasts without a renewal. `key`: one lease however often it is sent.
    """

    holder: str = Field(min_length=1, max_length=200)
    slot: str
    priority: Literal["batch", "interactive"] = "batch"
    models: tuple[str, ...] = ()
    resident_only: bool = False
    services: tuple[str, ...] = ()
    services_mib: int = Field(default=0, ge=0)
    context_tokens: PositiveInt | None = None
    ttl_s: PositiveFloat | None = None
    wait_s: float | None = Field(default=None, ge=0)
    key: str = ""


class LeaseRef(Body):
    """A lease by its id. With `waitS`: answer as soon as its state is another than `seen`."""

    lease_id: str
    wait_s: float = Field(default=0.0, ge=0)
    seen: str = ""


class Renewal(Body):
    lease_id: str = ""
    ttl_s: PositiveFloat | None = None


class Ending(Body):
    lease_id: str = ""
    reason: str = ""


class HoldRequest(Body):
    """A whole card for something outside the engine, once its runs are over; until released, or `ttlS` after it is held."""

    card: str = ""
    holder: str = Field(min_length=1, max_length=200)
    hold_id: str = ""
    reason: str = ""
    ttl_s: PositiveFloat | None = None


class HoldEnding(Body):
    hold_id: str
    reason: str = "released"
