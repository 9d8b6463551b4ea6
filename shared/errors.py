"""Faults: expected failures that may cross a process or be journaled.

A fault travels as `{code, message, verdict, details}` and is never pickled. Everything else that is
raised is a bug.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Verdict(StrEnum):
    """What a caller may conclude from a failure."""

    RETRY = "retry"  # nothing happened; asking again is safe
    FINAL = "final"  # it failed, and would again
    UNKNOWN = "unknown"  # it may have happened; a probe or a person must tell


class Fault(Exception):
    """An expected failure; `message` says what to do next, `details` names the field or thing."""

    code: ClassVar[str] = "fault"
    verdict: ClassVar[Verdict] = Verdict.FINAL

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "verdict": str(self.verdict), "details": self.details}


class BadInput(Fault):
    """The request is wrong; `details["field"]` names what to mend."""

    code = "input.invalid"


class NotFound(Fault):
    """No such run, template, project or fact."""

    code = "input.not_found"


class Conflict(Fault):
    """The aggregate moved on: somebody else appended after the sequence that was expected."""

    code = "log.conflict"


class LogUnavailable(Fault):
    """The event log did not answer within the budget of a read."""

    code = "log.unavailable"
    verdict = Verdict.RETRY


class ServiceUnavailable(Fault):
    """A service did not answer a query in time."""

    code = "rpc.unavailable"
    verdict = Verdict.RETRY


class RemoteFault(Fault):
    """A fault that another service answered with; `code` is kept as it was sent."""

    def __init__(self, code: str, message: str, verdict: str = Verdict.FINAL, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, **(details or {}))
        self.remote_code = code
        self.remote_verdict = verdict

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.remote_code, "message": self.message, "verdict": str(self.remote_verdict), "details": self.details}
