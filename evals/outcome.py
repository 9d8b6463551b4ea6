"""What came of a task: passed or not by the workspace alone, and the kind of each failure. Pure.

Whether a run says that it completed never makes it pass, and that it failed never makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from aetherium.client import Run
from evals.task import Task, Verdict
from shared.runstate import Status

# Not the engine's own reading of a request: what measures it must not share its mistakes.
_NAMED = re.compile(r"(?<![\w./@-])[\w-]+(?:[./][\w-]+)*\.[A-Za-z][A-Za-z0-9]{1,7}(?![\w@/-]|\.\w)")


class Failure(StrEnum):
    """Why a task was not passed."""

    WRONG_RESULT = "wrong_result"  # it ended, something was done, and it is not right
    CLAIMED_DONE = "claimed_done"  # it said that it was done, and a file it was asked for is not there or nothing was changed
    MISSING_FILE = "missing_file"  # the engine ended the run because files that it owed did not come
    TURNS_EXHAUSTED = "turns_exhausted"
    WALL_TIME = "wall_time"
    LOOP = "loop"
    EMPTY = "empty"
    MODEL_ERROR = "model_error"  # a model call failed for good
    ENGINE_ERROR = "engine_error"  # it was parked, or did not end, or failed for a reason that is not the model's


_BY_CODE: Mapping[str, Failure] = {
    "run.owed_output_missing": Failure.MISSING_FILE,
    "run.turns_exhausted": Failure.TURNS_EXHAUSTED,
    "run.budget_exhausted": Failure.TURNS_EXHAUSTED,
    "run.deadline_passed": Failure.WALL_TIME,
    "run.loop_detected": Failure.LOOP,
    "run.empty_response": Failure.EMPTY,
    "run.model_call_failed": Failure.MODEL_ERROR,
}


class Result(BaseModel):
    """One attempt at one task."""

    model_config = ConfigDict(frozen=True)

    task: str
    kind: str
    level: int
    attempt: int
    passed: bool
    failure: Failure | None
    detail: str  # what the check says
    status: str
    code: str = ""
    reason: str = ""  # why the run itself failed, if it did
    turns: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    run_guid: str = ""
    carried: bool = False  # the main series' result: its run's code, executed again without the mechanism, does the same

    @property
    def why(self) -> str:
        """Why it was not passed: what the check says, and why the run itself failed."""
        return "; ".join(part for part in (self.detail, self.reason) if part)

    @property
    def show(self) -> str:
        """The command that explains the run."""
        return f"aetherium show {self.run_guid}"


def named_files(prompt: str) -> tuple[str, ...]:
    """The files that a prompt speaks of, each once."""
    return tuple(dict.fromkeys(_NAMED.findall(prompt)))


def result_of(task: Task, attempt: int, run: Run, verdict: Verdict, left: Mapping[str, bytes], *, max_turns: int) -> Result:
    """What came of an attempt. `left` are the files of the workspace; more turns than `max_turns` do not count."""
    failure, detail = None, verdict.detail
    if not verdict.passed:
        failure = failure_of(task, run, left)
    elif run.turns > max_turns:
        failure, detail = Failure.TURNS_EXHAUSTED, f"right, but after {run.turns} turns; {max_turns} are allowed"
    return Result(
        task=task.id,
        kind=task.kind,
        level=task.level,
        attempt=attempt,
        passed=failure is None,
        failure=failure,
        detail=detail,
        status=str(run.status),
        code=run.code,
        reason=run.reason,
        turns=run.turns,
        model_calls=run.model_calls,
        tool_calls=run.tool_calls,
        prompt_tokens=run.usage.prompt_tokens,
        cached_tokens=run.usage.cached_tokens,
        completion_tokens=run.usage.completion_tokens,
        seconds=seconds_of(run),
        run_guid=run.run_guid,
    )


def failure_of(task: Task, run: Run, left: Mapping[str, bytes]) -> Failure:
    """The kind of a failure, from how the run ended and what it left."""
    if run.status is Status.FAILED:
        return _BY_CODE.get(run.code, Failure.ENGINE_ERROR)
    if run.status is not Status.COMPLETED:
        return Failure.ENGINE_ERROR
    if _is_untouched(task, left) or lacking(task.prompt, left):
        return Failure.CLAIMED_DONE
    return Failure.WRONG_RESULT


def lacking(prompt: str, left: Collection[str]) -> tuple[str, ...]:
    """The files that a prompt names and the workspace has not, in whatever folder."""
    return tuple(name for name in named_files(prompt) if not any(path == name or path.endswith(f"/{name}") for path in left))


def _is_untouched(task: Task, left: Mapping[str, bytes]) -> bool:
    return dict(left) == {name: text.encode() for name, text in task.files.items()}


def seconds_of(run: Run) -> float:
    """From the moment that the engine took the run to its end."""
    began = run.started_at or run.submitted_at
    return round((run.ended_at - began).total_seconds(), 2) if began and run.ended_at else 0.0
