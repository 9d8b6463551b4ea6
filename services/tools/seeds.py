"""The files that a run begins with, laid into its workspace through the same confinement as every tool's."""

from __future__ import annotations

from collections.abc import Sequence

from services.tools.paths import Missing, Workspace
from services.tools.servers.base import to_its_end
from shared.blobs import Blobs
from shared.events.content import SeedFile


async def lay(workspace: Workspace, files: Sequence[SeedFile], blobs: Blobs) -> tuple[str, ...]:
    """Write the files whose names are free; gives those that were written.

    Raises:
        ToolRefusal: a path leaves the workspace, or the disk does not take it.
        NotFound, LogUnavailable: the blob store does not hold or give a content.
    """
    laid: list[str] = []
    for file in files:
        content = await blobs.get(file.content)
        if await to_its_end(_write_new, workspace, file.path, content):
            laid.append(file.path)
    return tuple(laid)


def _write_new(workspace: Workspace, path: str, content: bytes) -> bool:
    try:
        workspace.stat(path)
    except Missing:
        workspace.write(path, content)
        return True
    return False
