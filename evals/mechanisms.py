"""What the engine does to help small models, as the command line names it: the fields of a template's `features`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shared.errors import BadInput
from shared.template import Features

NAMES: tuple[str, ...] = tuple(Features.model_fields)


def named(names: Iterable[str]) -> tuple[str, ...]:
    """The mechanisms of a command line, each once; `all` stands for every one, a comma separates several.

    Raises:
        BadInput: one does not exist.
    """
    asked = [part.strip().replace("-", "_") for name in names for part in name.split(",") if part.strip()]
    wanted = tuple(dict.fromkeys(each for name in asked for each in (NAMES if name == "all" else (name,))))
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise BadInput(f"no mechanism {unknown[0]!r}. Known: {', '.join(NAMES)}, or all", field="without")
    return wanted


def switched_off(names: Iterable[str]) -> dict[str, Any]:
    """The `features` of a run without these mechanisms."""
    return {name: Features.off(name) for name in names}
