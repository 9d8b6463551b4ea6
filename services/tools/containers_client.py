"""Commands in a project's container, asked of the containers service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from shared import rpc
from shared.bus import Bus
from shared.errors import ServiceUnavailable

GRACE_S = 15.0  # what an answer may take beyond the command's own bound


@dataclass(frozen=True, slots=True)
class RemoteResult:
    exit_code: int | None
    output: str
    timed_out: bool
    cut: int


@dataclass(frozen=True)
class RemoteRuntime:
    """The `Runtime` port over `aetherium.rpc.containers`. A cancelled call kills its command."""

    bus: Bus

    async def exec(self, project_id: int, exec_id: str, command: str, timeout_s: float, workspace: Path) -> RemoteResult:
        ask = {"project_id": project_id, "exec_id": exec_id, "command": command, "timeout_s": timeout_s, "workspace": str(workspace)}
        try:
            answer = await rpc.call(self.bus, "containers", "exec", ask, timeout_s=timeout_s + GRACE_S)
        except (asyncio.CancelledError, ServiceUnavailable):
            await rpc.tell(self.bus, "containers", "kill", {"exec_id": exec_id})
            raise
        return RemoteResult(answer["exit_code"], answer["output"], answer["timed_out"], answer["cut"])
