"""What the outside tells a run. Written by the gateway; the run decides what it does about it."""

from __future__ import annotations

from typing import ClassVar

from shared.events.envelope import Event


class CancelRequested(Event):
    """Somebody asked for the run to stop."""

    TYPE: ClassVar[str] = "signal.cancel_requested"

    reason: str = ""
    by: str = "api"
