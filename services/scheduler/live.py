"""What models are writing, told to whoever watches: not facts, and lost when nobody listens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import orjson

from services.scheduler.backends.base import Delta
from shared import subjects
from shared.bus import Bus


@dataclass(slots=True)
class Live:
    """Publishes the pieces of each call's answer. Pieces that came out of one read of the server go out as one."""

    bus: Bus
    _pending: dict[tuple[str, str], list[Delta]] = field(default_factory=dict[tuple[str, str], list[Delta]])

    def __call__(self, run_id: str, call_id: str, delta: Delta) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._publish)
        self._pending.setdefault((run_id, call_id), []).append(delta)

    def _publish(self) -> None:
        pending, self._pending = self._pending, {}
        for (run_id, call_id), deltas in pending.items():
            parts = {"text": "".join(delta.text for delta in deltas), "reasoning": "".join(delta.reasoning for delta in deltas)}
            piece = {"callId": call_id, **{name: value for name, value in parts.items() if value}}
            self.bus.client.send(subjects.live(run_id, call_id), orjson.dumps(piece))
