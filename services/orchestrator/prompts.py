"""System prompts: what a node says of itself, as the template gives it. Pure."""

from __future__ import annotations

from shared.template import Node


def system(node: Node) -> str:
    """The system prompt of a node; the same text in every turn, so that servers can reuse its prefix."""
    return node.system_prompt.strip()
