"""Composition root of the containers service: `python -m services.containers.app`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.containers.local import LocalRuntime
from services.containers.runtime import ContainerRuntime, ExecResult
from shared import process, rpc
from shared.errors import BadInput, NotFound
from shared.process import Process


def verbs(runtime: ContainerRuntime, workspaces: Path) -> dict[str, rpc.Verb]:
    """Short commands on projects' containers. A workspace outside the engine's own folder is refused."""

    async def execute(ask: dict[str, Any]) -> dict[str, Any]:
        try:
            project_id, exec_id, command = int(ask["project_id"]), str(ask["exec_id"]), str(ask["command"])
            timeout_s, workspace = float(ask["timeout_s"]), Path(ask["workspace"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"exec needs project_id, exec_id, command, timeout_s and workspace: {error!r}", field="exec") from error
        if workspace != workspaces / str(project_id):
            raise BadInput(f"{str(workspace)!r} is not the workspace of project {project_id}", field="workspace")
        return told(await runtime.exec(project_id, exec_id, command, timeout_s, workspace))

    async def result(ask: dict[str, Any]) -> dict[str, Any]:
        found = await runtime.result(str(ask.get("exec_id", "")))
        if found is None:
            raise NotFound("no such command was started here", field="exec_id")
        return told(found)

    async def kill(ask: dict[str, Any]) -> dict[str, Any]:
        return {"killed": await runtime.kill(str(ask.get("exec_id", "")))}

    async def describe(ask: dict[str, Any]) -> dict[str, Any]:
        state = await runtime.describe(int(ask.get("project_id", 0)))
        return {"runtime": state.runtime, "state": state.state, "running": list(state.running), "warning": state.warning}

    return {"exec": execute, "result": result, "kill": kill, "describe": describe}


def told(result: ExecResult) -> dict[str, Any]:
    return {"exit_code": result.exit_code, "output": result.output, "timed_out": result.timed_out, "cut": result.cut}


async def main(own: Process) -> None:
    runtime = LocalRuntime(own.settings.data_dir.absolute() / "runtime", own.settings.gateway.host)
    service = await rpc.serve(own.bus, "containers", verbs(runtime, own.settings.workspaces))
    health = await process.serve_health(own)
    try:
        await service.stopped.wait()
    finally:
        await runtime.close()
        if health is not None:
            health.close()


if __name__ == "__main__":
    process.run("containers", main)
