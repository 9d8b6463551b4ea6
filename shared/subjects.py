"""The subject grammar. Only this module builds subjects.

aetherium.evt.<domain>.<scope>.<fact>      facts, always five tokens, stored
aetherium.rpc.<service>.<verb>             queries and short commands, never stored
aetherium.live.<run>.<call>                streamed tokens, never stored
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.ids import is_token

STREAM = "EVENTS"
BLOB_STREAM = "BLOBS"
DEAD_LETTER_STREAM = "DEAD_LETTERS"
EVENTS = "aetherium.evt.>"
BLOBS = "aetherium.blob.>"
DEAD_LETTERS = "aetherium.dead.>"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What one writer at a time decides about: a domain and a scope, such as `run` and a run's id."""

    domain: str
    scope: str

    def __post_init__(self) -> None:
        if not (is_token(self.domain) and is_token(self.scope)):
            raise ValueError(f"{self.domain!r} and {self.scope!r} must be of [A-Za-z0-9_-]+")

    @property
    def filter(self) -> str:
        """All facts of this aggregate."""
        return f"aetherium.evt.{self.domain}.{self.scope}.>"

    def __str__(self) -> str:
        return f"{self.domain}.{self.scope}"


def fact(domain: str, scope: str, name: str) -> str:
    return f"aetherium.evt.{domain}.{scope}.{name}"


def every(event_type: str) -> str:
    """All facts of one type, whatever their scope: `run.submitted` → `aetherium.evt.run.*.submitted`."""
    domain, name = event_type.split(".")
    return fact(domain, "*", name)


def of_run(run_id: str) -> str:
    """Every fact that carries the run as its scope, in all domains."""
    return Aggregate("run", run_id).filter.replace(".run.", ".*.", 1)


def of_domain(domain: str) -> str:
    return f"aetherium.evt.{domain}.>"


def live(run_id: str, call_id: str) -> str:
    return f"aetherium.live.{run_id}.{call_id}"


def live_of_run(run_id: str) -> str:
    return f"aetherium.live.{run_id}.*"


def rpc(service: str, verb: str) -> str:
    return f"aetherium.rpc.{service}.{verb}"


def blob(digest: str) -> str:
    return f"aetherium.blob.{digest}"


def dead_letter(consumer: str) -> str:
    return f"aetherium.dead.{consumer}"
