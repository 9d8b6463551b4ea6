"""Arguments of a call, from whatever form they were written in to what the tool's schema declares.

Strings stay strings, byte for byte. Only a value that is declared as an object, array, number or boolean,
and cannot be a string, is taken out of a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from services.scheduler.dialects import mending
from services.scheduler.dialects.scan import Braces
from shared.events.content import Repair
from shared.text import clean_json, cut

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,17})?(?:[eE][+-]?\d{1,2})?")
_DEPTH = 64
_KEPT = 400  # characters of a repair that audit keeps

Arguments = dict[str, Any]
Schema = Mapping[str, Any]


class BadArguments(Exception):
    """The arguments can't be used; the text tells the model what to do."""


def read_arguments(written: Any, schema: Schema) -> tuple[Arguments, tuple[Repair, ...]]:
    """Arguments as an object that fits `schema` as far as that is clear, and what was mended.

    `written` is an object, its JSON text, or nothing.

    Raises:
        BadArguments: they are neither, are cut off, or hold what JSON can't carry further.
    """
    value, repairs = _object(written)
    fitted = cast("Arguments", _fit(value, schema, "", repairs, _DEPTH))
    _check(fitted)
    return cast("Arguments", clean_json(fitted)), tuple(repairs)


def _object(written: Any) -> tuple[Arguments, list[Repair]]:
    if isinstance(written, dict):
        return cast("Arguments", written), []
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}, []
    if not isinstance(written, str):
        raise BadArguments("The arguments must be a JSON object.")
    return _object_of_text(written.strip())


def _object_of_text(text: str) -> tuple[Arguments, list[Repair]]:
    try:
        value = mending.loads(text)
    except ValueError as error:
        return _mended(text, error)
    if isinstance(value, str):  # encoded twice
        try:
            value = mending.loads(value)
        except ValueError as error:
            raise BadArguments("The arguments must be a JSON object.") from error
    if not isinstance(value, dict):
        raise BadArguments("The arguments must be a JSON object.")
    return cast("Arguments", value), []


def _mended(text: str, error: ValueError) -> tuple[Arguments, list[Repair]]:
    if not text.startswith("{") or Braces(text).close_of(0) != len(text) - 1:
        raise BadArguments("The arguments are cut off or not a JSON object. Write the whole call again.") from error
    mended = mending.mend(text)
    if mended is None:
        raise BadArguments("The arguments are not valid JSON. Write the whole call again.") from error
    return mended[0], [Repair(what=mended[1], before=cut(text, _KEPT))]


def _fit(value: Any, schema: Schema, place: str, repairs: list[Repair], depth: int) -> Any:
    """`value` with what its schema declares otherwise taken out of strings, all the way down."""
    if depth == 0:
        raise BadArguments("The arguments are nested too deeply.")
    if isinstance(value, str):
        unwrapped = _unwrapped(value, _types(schema))
        if unwrapped is None:
            return value
        repairs.append(Repair(what=f"unwrapped:{place}", before=cut(value, _KEPT)))
        value = unwrapped[0]
    if isinstance(value, dict):
        properties = _mapping(schema.get("properties"))
        items = cast("Arguments", value).items()
        return {key: _fit(item, _mapping(properties.get(key)), f"{place}.{key}".lstrip("."), repairs, depth - 1) for key, item in items}
    if isinstance(value, list):
        inner = _mapping(schema.get("items"))
        return [_fit(item, inner, f"{place}[]", repairs, depth - 1) for item in cast("list[Any]", value)]
    return value


def _types(schema: Schema) -> frozenset[str]:
    """The types that a schema declares; empty when it does not say, or says it in a way not followed here."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(str(one) for one in cast("list[Any]", declared))
    branches: Any = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(branches, list):
        return frozenset()
    types = [_types(_mapping(branch)) for branch in cast("list[Any]", branches)]
    return frozenset[str]().union(*types) if all(types) else frozenset()


def _unwrapped(text: str, types: frozenset[str]) -> tuple[Any] | None:
    """What stands in `text` if it is declared to be no string, as a tuple of one; else None."""
    bare = text.strip()
    if not types or "string" in types:
        return None
    if "boolean" in types and bare.lower() in ("true", "false"):
        return (bare.lower() == "true",)
    if "integer" in types and _INTEGER.fullmatch(bare):
        return (int(bare),)
    if "number" in types and _NUMBER.fullmatch(bare):
        return (int(bare) if _INTEGER.fullmatch(bare) else float(bare),)
    if not types & {"object", "array"} or not bare.startswith(("{", "[")):
        return None
    try:
        value: Any = mending.loads(bare)
    except ValueError:
        return None
    fits = "object" in types if isinstance(value, dict) else "array" in types
    return (cast("Any", value),) if fits else None


def _mapping(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


def _check(arguments: Arguments) -> None:
    """Refuse numbers that the log's JSON can't hold."""
    waiting: list[Any] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += cast("Arguments", value).values()
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise BadArguments("The arguments hold a number that is not finite.")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise BadArguments("The arguments hold a number of more than 64 bits; write it as a string.")
