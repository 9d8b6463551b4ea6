"""Facts of a project: the team's working area. Written by the gateway."""

from __future__ import annotations

from typing import ClassVar

from shared.events.envelope import Event


class ProjectCreated(Event):
    """A project exists; its workspace is the folder `<workspaces>/<id>`."""

    TYPE: ClassVar[str] = "project.created"

    name: str
    template_id: str
    description: str = ""
    workspace_tier: str = "Standard"
