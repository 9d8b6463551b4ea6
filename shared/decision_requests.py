"""A question to the decision layer, as it stands on the wire (`aetherium.rpc.scheduler.decide`, KS 6.10)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, StringConstraints, ValidationInfo, field_validator

from shared.bodies import Body

MAX_OPTIONS = 12

Option = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class DecisionRequest(Body):
    """One choice among a few options. `fallback` is what the caller's own rule chose: it holds wherever no model decides.

    `caller` names the place in the engine that asks. `timeoutS` can only shorten the time that the settings allow.
    """

    caller: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
    options: Annotated[tuple[Option, ...], Field(min_length=2, max_length=MAX_OPTIONS)]
    fallback: str
    context: Annotated[str, StringConstraints(max_length=8000)] = ""  # what there is to know; not stored
    run_id: str | None = None
    timeout_s: PositiveFloat | None = None

    @field_validator("options")
    @classmethod
    def _are_different(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(options)) != len(options):
            raise ValueError("give each option once")
        return options

    @field_validator("fallback")
    @classmethod
    def _is_an_option(cls, fallback: str, info: ValidationInfo) -> str:
        if "options" in info.data and fallback not in info.data["options"]:
            raise ValueError(f"{fallback!r} is none of the options: give the one that your own rule chose")
        return fallback
