"""The published language: every fact that services exchange, one module per domain."""

from shared.events import card, decision, lease, llm, model, project, run, signal, tool
from shared.events.envelope import Event, Fact, Unknown, event_types, upcast

__all__ = [
    "Event",
    "Fact",
    "Unknown",
    "card",
    "decision",
    "event_types",
    "lease",
    "llm",
    "model",
    "project",
    "run",
    "signal",
    "tool",
    "upcast",
]
