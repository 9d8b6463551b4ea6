"""Commands in a project's container, asked of the containers service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import rpc
from shared.bus import Bus
from shared.errors import Fault, NotFound, RemoteFault, ServiceUnavailable, Verdict

GRACE_S = 15.0  # what an answer may take beyond the command's own bound
LOOK_S = 10.0  # how long an answer is waited for before a look whether the command is still known
PAUSE_S = 0.2  # between two looks for a service that is restarting


class CommandLost(Fault):
    """The containers service was restarted under a command: nobody knows how it ended."""

    code = "tool.command_lost"
    verdict = Verdict.UNKNOWN


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
            answer = await self._answer(ask, timeout_s + GRACE_S)
        except (asyncio.CancelledError, ServiceUnavailable):
            await rpc.tell(self.bus, "containers", "kill", {"exec_id": exec_id})
            raise
        return RemoteResult(answer["exit_code"], answer["output"], answer["timed_out"], answer["cut"])

    async def _answer(self, ask: dict[str, Any], bound_s: float) -> dict[str, Any]:
        """Start the command once, then ask for its result for as long as that takes.

        Whether a request that was lost with the connection had arrived is not known, so it is never made again.
        What is asked from then on is only how the command ended, and now and then whether anybody still knows it.
        """
        loop = asyncio.get_running_loop()
        until, verb = loop.time() + bound_s, "exec"
        while True:
            left = until - loop.time()
            try:
                return await rpc.call(self.bus, "containers", verb, ask, timeout_s=max(min(left, LOOK_S), 0.1))
            except rpc.NobodyListens:
                if left < PAUSE_S:
                    raise
                await asyncio.sleep(PAUSE_S)
            except ServiceUnavailable:
                if left < PAUSE_S:
                    raise
                verb = "result"
            except RemoteFault as fault:
                if verb == "exec" or fault.remote_code != NotFound.code:
                    raise
                raise CommandLost(
                    "The engine lost the command while it ran, so it may or may not have done its work. "
                    "Look at the workspace, then decide what is left to do."
                ) from fault
