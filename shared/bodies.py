"""What callers send: JSON in camelCase, with no field that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from shared.errors import BadInput


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


Kind = TypeVar("Kind", bound=Body)


def read(kind: type[Kind], raw: Mapping[str, Any]) -> Kind:
    """A body out of what another service sent.

    Raises:
        BadInput: a field is missing, unknown or wrong; it is named.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{name}: {first['msg']}", field=name) from error
