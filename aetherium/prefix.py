"""Runs may be named by the beginning of their id."""

from __future__ import annotations

from shared.errors import BadInput, NotFound


def the_one(ids: list[str], prefix: str) -> str:
    """The run that `prefix` names.

    Raises:
        NotFound: none begins so.
        BadInput: several do.
    """
    if prefix in ids:
        return prefix
    match ids:
        case []:
            raise NotFound(f"no run begins with {prefix!r}: see 'aetherium runs'")
        case [only]:
            return only
        case _:
            raise BadInput(f"{len(ids)} runs begin with {prefix!r}: give more of it ({', '.join(ids[:3])}…)", field="RUN")
