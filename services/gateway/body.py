"""Request bodies: read within a bound, parsed as JSON, cleaned, and held to a model, with exact complaints."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from services.gateway.problems import Malformed, NotJson, TooLarge
from shared.errors import BadInput
from shared.text import clean_json

M = TypeVar("M", bound=BaseModel)


async def read(request: Request, model: type[M], *, limit: int, optional: bool = False) -> M:
    """The body as a `model`. Reading stops at `limit` bytes.

    Raises:
        TooLarge, NotJson, Malformed, BadInput: the message names the limit, the position or the field.
    """
    content = await bounded(request, limit)
    if not content and optional:
        return model()
    kind = request.headers.get("content-type", "")
    if not is_json(kind):
        # Also what keeps a web page from posting here: a browser asks first before it sends JSON across origins.
        raise NotJson(f"the body must be sent as application/json, not {kind or 'without a Content-Type'!r}", field="Content-Type")
    return parse(content, model)


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def bounded(request: Request, limit: int) -> bytes:
    """The raw body.

    Raises:
        TooLarge: it is larger than `limit` bytes.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit, int(announced))
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int, size: int | None = None) -> TooLarge:
    has = f"has {size} bytes" if size is not None else f"has more than {limit} bytes"
    return TooLarge(f"the body {has}; at most {limit} are taken: shorten the message, or raise gateway.max_body_bytes", limit=limit)


def parse(content: bytes, model: type[M]) -> M:
    """Strict JSON as a `model`, its texts cleaned before anything is checked or hashed."""
    # The standard parser, not the fast one: it lets half of a surrogate pair through, to be replaced instead of refused.
    try:
        value: object = json.loads(content.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is not UTF-8: byte {error.start} cannot be read", position=error.start) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(
            f"the body is not JSON: {error.msg} at {where}", position=error.pos, line=error.lineno, column=error.colno
        ) from error
    except RecursionError as error:
        raise Malformed("the body is nested too deeply") from error
    except ValueError as error:
        raise Malformed(f"the body is not JSON: {str(error).partition(';')[0]}") from error
    if not isinstance(value, dict):
        raise Malformed('the body must be a JSON object, such as {"message": "…"}')
    try:
        return model.model_validate(clean_json(value))
    except ValidationError as error:
        raise _complaint(error, model) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _complaint(error: ValidationError, model: type[BaseModel]) -> BadInput:
    problems: list[dict[str, Any]] = [
        {"field": ".".join(str(part) for part in each["loc"]), "detail": _in_words(each["type"], each["msg"])} for each in error.errors()
    ]
    first = problems[0]
    detail = f"{first['field']}: {first['detail']}"
    if error.errors()[0]["type"] == "extra_forbidden" and len(error.errors()[0]["loc"]) == 1:
        known = sorted(field.alias or name for name, field in model.model_fields.items())
        detail += f" Known fields: {', '.join(known)}."
    return BadInput(detail, field=first["field"], errors=problems if len(problems) > 1 else None)


def _in_words(kind: str, message: str) -> str:
    match kind:
        case "missing":
            return "this field is required."
        case "extra_forbidden":
            return "this field is not known."
        case _:
            return message.removeprefix("Value error, ")
