"""The steps of runs: one row per unit of work of an agent."""

from __future__ import annotations

from collections.abc import Iterable

from services.recorder.projections.base import Change, PerFact, key_text
from shared.events.envelope import Fact
from shared.events.run import StepCompleted, StepFailed, StepStarted

STARTED = """
INSERT INTO steps (run_id, key, agent, title, status, started_at, code, reason, files, started_seq)
VALUES (%(run_id)s, %(key)s, %(agent)s, %(title)s, 'running', %(at)s, '', '', '{}', %(seq)s)
ON CONFLICT (run_id, key) DO UPDATE SET
    agent = EXCLUDED.agent, title = EXCLUDED.title, status = 'running', started_at = EXCLUDED.started_at,
    ended_at = NULL, code = '', reason = '', files = '{}', started_seq = EXCLUDED.started_seq, ended_seq = NULL
"""

ENDED = """
INSERT INTO steps (run_id, key, agent, title, status, ended_at, code, reason, files, ended_seq)
VALUES (%(run_id)s, %(key)s, '', '', %(status)s, %(at)s, %(code)s, %(reason)s, %(files)s, %(seq)s)
ON CONFLICT (run_id, key) DO UPDATE SET
    status = EXCLUDED.status, ended_at = EXCLUDED.ended_at, code = EXCLUDED.code, reason = EXCLUDED.reason,
    files = EXCLUDED.files, ended_seq = EXCLUDED.ended_seq
"""


def changes(fact: Fact) -> Iterable[Change]:
    here = {"run_id": key_text(fact.scope), "at": fact.time, "seq": fact.seq}
    match fact.event:
        case StepStarted(key=key, agent=agent, title=title):
            yield Change(STARTED, {**here, "key": key_text(key), "agent": agent, "title": title})
        case StepCompleted(key=key, files=files):
            ended = {"status": "completed", "code": "", "reason": "", "files": list(files)}
            yield Change(ENDED, {**here, "key": key_text(key), **ended})
        case StepFailed(key=key, code=code, reason=reason):
            ended = {"status": "failed", "code": code, "reason": reason, "files": list[str]()}
            yield Change(ENDED, {**here, "key": key_text(key), **ended})
        case _:
            pass


STEPS = PerFact("steps", changes)
