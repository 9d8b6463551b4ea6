"""The projects: one row each."""

from __future__ import annotations

from collections.abc import Iterable

from services.recorder.projections.base import Change, PerFact
from shared.events.envelope import Fact
from shared.events.project import ProjectCreated

CREATED = """
INSERT INTO projects (project_id, name, template_id, description, workspace_tier, created_at, seq)
VALUES (%(project_id)s, %(name)s, %(template_id)s, %(description)s, %(workspace_tier)s, %(at)s, %(seq)s)
"""


def changes(fact: Fact) -> Iterable[Change]:
    match fact.event:
        case ProjectCreated() as event:
            yield Change(CREATED, {"project_id": int(fact.scope), "at": fact.time, "seq": fact.seq, **event.model_dump()})
        case _:
            pass


PROJECTS = PerFact("projects", changes)
