"""System prompts: what a node says of itself, as the template gives it. Pure."""

from __future__ import annotations

from services.orchestrator import actions
from services.orchestrator.durable.context import Offer
from shared.template import Features, Node


def system(node: Node) -> str:
    """The system prompt of a node; the same text in every turn, so that servers can reuse its prefix."""
    return node.system_prompt.strip()


def guided_system(node: Node, offer: Offer, features: Features) -> str:
    """The system prompt for guided turns: who the agent is, and how each action is written."""
    who = f"You are {node.name}: {node.description}" if node.description else f"You are {node.name}."
    return f"{who}\n{actions.introduction(actions.tools_of(offer.tools, text_apart=features.text_apart))}"
