"""What came of a task, from the run and the workspace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aetherium.client import Run
from evals.outcome import Failure, lacking, named_files, result_of
from evals.task import Task, Verdict
from services.orchestrator.durable import faults
from shared.runstate import Status
from tests.requirements import covers
from tests.unit.evals.test_task import TASK

TASK_OF = Task.model_validate(TASK)
SEEDS = {"a.txt": b"hello\n"}
STARTED = datetime(2026, 1, 2, tzinfo=UTC)
RIGHT, WRONG = Verdict(True), Verdict(False, "b.txt is not a copy")


def run(status: Status = Status.COMPLETED, **fields: Any) -> Run:
    base = {"run_guid": "g", "project_id": 1, "template_id": "t", "message": "m", "turns": 3, "status": status}
    return Run.model_validate({**base, "started_at": STARTED, "ended_at": STARTED + timedelta(seconds=12.3456), **fields})


def failure(ended: Run, left: dict[str, bytes], verdict: Verdict = WRONG) -> Failure | None:
    return result_of(TASK_OF, 1, ended, verdict, left, max_turns=12).failure


@covers("evals.report")
@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_the_workspace_alone_makes_a_task_pass(status: Status) -> None:
    result = result_of(TASK_OF, 1, run(status, code="run.turns_exhausted"), RIGHT, SEEDS, max_turns=12)
    assert (result.passed, result.failure, result.status) == (True, None, str(status))


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (SEEDS, Failure.CLAIMED_DONE),  # nothing was changed
        ({**SEEDS, "c.txt": b"hello\n"}, Failure.CLAIMED_DONE),  # b.txt, which the request names, is not there
        ({"b.txt": b"hello\n"}, Failure.CLAIMED_DONE),  # a.txt is gone
        ({**SEEDS, "b.txt": b"hell\n"}, Failure.WRONG_RESULT),
        ({**SEEDS, "out/b.txt": b"hell\n"}, Failure.WRONG_RESULT),
    ],
)
def test_a_run_that_completed_without_success_claimed_it_or_did_it_wrongly(left: dict[str, bytes], expected: Failure) -> None:
    assert failure(run(), left) is expected


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.OwedOutputMissing, Failure.MISSING_FILE),
        (faults.TurnsExhausted, Failure.TURNS_EXHAUSTED),
        (faults.BudgetExhausted, Failure.TURNS_EXHAUSTED),
        (faults.DeadlinePassed, Failure.WALL_TIME),
        (faults.LoopDetected, Failure.LOOP),
        (faults.EmptyResponse, Failure.EMPTY),
        (faults.ModelCallFailed, Failure.MODEL_ERROR),
        (faults.Unrunnable, Failure.ENGINE_ERROR),
    ],
)
def test_a_run_that_failed_says_itself_what_kind_it_is(fault: type[Any], expected: Failure) -> None:
    result = result_of(TASK_OF, 1, run(Status.FAILED, code=fault.code, reason="why"), WRONG, SEEDS, max_turns=12)
    assert result.failure is expected
    assert result.why == "b.txt is not a copy; why"


@pytest.mark.parametrize("status", [Status.PARKED, Status.CANCELLED, Status.RUNNING])
def test_a_run_that_did_not_end_by_itself_is_the_engines_failure(status: Status) -> None:
    assert failure(run(status), SEEDS) is Failure.ENGINE_ERROR


def test_a_right_result_after_more_turns_than_are_allowed_does_not_count() -> None:
    assert failure(run(turns=12), SEEDS, RIGHT) is None
    late = result_of(TASK_OF, 1, run(turns=13), RIGHT, SEEDS, max_turns=12)
    assert (late.passed, late.failure) == (False, Failure.TURNS_EXHAUSTED)
    assert "after 13 turns" in late.detail


def test_what_a_run_took_is_in_its_result() -> None:
    used = {"promptTokens": 7, "completionTokens": 5, "cachedTokens": 3}
    result = result_of(TASK_OF, 2, run(usage=used, model_calls=4, tool_calls=6), RIGHT, SEEDS, max_turns=12)
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (7, 5, 3)
    assert (result.turns, result.model_calls, result.tool_calls, result.attempt, result.seconds) == (3, 4, 6, 2, 12.35)
    assert result.show == "aetherium show g"


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("Read notes.txt and write src/main.py, then docs/a.b.md.", ["notes.txt", "src/main.py", "docs/a.b.md"]),
        ("Do it, e.g. with version 1.2.3 (i.e. now).", []),
        ("Mail anna@press.example about www.example.com/page", []),
        ("a.txt, a.txt and a.txt", ["a.txt"]),
        ("In all .py files", []),
    ],
)
def test_the_files_that_a_prompt_names_are_found(prompt: str, names: list[str]) -> None:
    assert list(named_files(prompt)) == names


def test_a_named_file_may_be_in_any_folder() -> None:
    assert lacking("Write test_a.py and b.py.", {"tests/test_a.py"}) == ("b.py",)
