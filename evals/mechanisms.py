"""What the engine does to help small models, each with how it is switched off for a run. One line a mechanism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shared.errors import BadInput

OFF: Mapping[str, Mapping[str, Any]] = {
    # name: the fields of a template's `features` that switch it off
    "constrained_turns": {"constrained_turns": "never"},
    "hold_to_request": {"hold_to_request": False},
    "reask": {"reask": False},
}


def named(names: Iterable[str]) -> tuple[str, ...]:
    """The mechanisms of a command line, each once; `all` stands for every one, a comma separates several.

    Raises:
        BadInput: one does not exist.
    """
    asked = [part.strip().replace("-", "_") for name in names for part in name.split(",") if part.strip()]
    wanted = tuple(dict.fromkeys(each for name in asked for each in (OFF if name == "all" else (name,))))
    unknown = [name for name in wanted if name not in OFF]
    if unknown:
        raise BadInput(f"no mechanism {unknown[0]!r}. Known: {', '.join(OFF)}, or all", field="without")
    return wanted


def switched_off(names: Iterable[str]) -> dict[str, Any]:
    """The `features` of a run without these mechanisms."""
    return {field: value for name in names for field, value in OFF[name].items()}
