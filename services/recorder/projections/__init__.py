"""The read models, one module each."""

from __future__ import annotations

from services.recorder.projections.base import Change, Json, PerFact, Projection
from services.recorder.projections.conversation import CONVERSATION
from services.recorder.projections.decision_logs import DECISION_LOGS
from services.recorder.projections.llm_calls import LLM_CALLS
from services.recorder.projections.projects import PROJECTS
from services.recorder.projections.runs import History, Runs
from services.recorder.projections.steps import STEPS
from services.recorder.projections.tool_audit import TOOL_AUDIT

__all__ = ["Change", "Json", "PerFact", "Projection", "all_projections"]


def all_projections(log: History) -> tuple[Projection, ...]:
    """Every read model that the recorder keeps."""
    return (PROJECTS, Runs(log), STEPS, CONVERSATION, TOOL_AUDIT, LLM_CALLS, DECISION_LOGS)
