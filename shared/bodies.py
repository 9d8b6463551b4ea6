"""What callers send: JSON in camelCase, with no field that is not known."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)
