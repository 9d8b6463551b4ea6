"""Templates: what runs may be started from."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from services.gateway.core import Gateway


def router(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["templates"])

    @api.get("/api/templates")
    async def list_templates() -> dict[str, Any]:
        """All templates, and what is wrong with the user's files that could not be read."""
        library = gateway.library()
        rows = [
            {
                "id": each.id,
                "name": each.name,
                "description": each.description,
                "topology": each.topology,
                "agents": [node.name for node in each.nodes],
            }
            for each in library.templates.values()
        ]
        return {"templates": rows, "broken": [{"file": file, "reason": reason} for file, reason in library.broken.items()]}

    @api.get("/api/templates/{template_id}")
    async def get_template(template_id: str) -> dict[str, Any]:
        """A template in the form of its file."""
        return gateway.library().get(template_id).model_dump(mode="json")

    return api
