"""The base of every section of the settings, and how lists and tables come in from the environment."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr


class Section(BaseModel):
    """Part of the settings: frozen, and a key that it does not know stops the start."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def from_json(value: Any) -> Any:
    """A list or table as it was given, or read from JSON where it came as text, as from an environment variable.

    >>> from_json('{"a": 1}'), from_json(("a",))
    ({'a': 1}, ('a',))

    Raises:
        ValueError: the text is not JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"give a list or table as JSON: {error}") from error


def to_json(value: Any) -> str:
    """What `from_json` reads as `value` again, with secrets in the clear: it is handed to a child process."""
    return json.dumps(plain(value), separators=(",", ":"))


def plain(value: Any) -> Any:
    """A setting as JSON holds it, without what is at its default."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
