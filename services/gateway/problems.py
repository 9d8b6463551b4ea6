"""What is wrong with a request, said the same way everywhere: RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.gateway.relaying.stream import error_body
from shared.errors import BadInput, Conflict, Fault, LogUnavailable, NotFound, RemoteFault, ServiceUnavailable

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = "2"
OPENAI = "/v1/"
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "not_found_error", 503: "unavailable_error"}

logger = structlog.get_logger()


class Malformed(BadInput):
    """The request is not in the form that it claims, so there is no field to name."""

    code: ClassVar[str] = "input.malformed"


class TooLarge(Fault):
    """The body is larger than this server takes; `details["limit"]` is the number."""

    code: ClassVar[str] = "input.too_large"


class NotJson(Fault):
    """The body is of another media type."""

    code: ClassVar[str] = "input.media_type"


class Unauthorized(Fault):
    """The bearer token is missing or wrong."""

    code: ClassVar[str] = "auth.required"


class ForeignHost(Fault):
    """The request names a host that is not this machine, though nothing else protects the API."""

    code: ClassVar[str] = "auth.foreign_host"


class KeyReused(BadInput):
    """The idempotency key belongs to another request."""

    code: ClassVar[str] = "input.key_reused"


class AlreadyOver(Conflict):
    """The run has ended, so there is nothing left to stop."""

    code: ClassVar[str] = "run.already_over"


class LeaseRefused(Conflict):
    """The arbiter said no; the message has the arithmetic, or names who stands in the way."""

    code: ClassVar[str] = "lease.refused"


STATUS: dict[type[Fault], int] = {
    Malformed: 400,
    TooLarge: 413,
    NotJson: 415,
    Unauthorized: 401,
    ForeignHost: 403,
    BadInput: 422,
    NotFound: 404,
    Conflict: 409,
    LogUnavailable: 503,
    ServiceUnavailable: 503,
    RemoteFault: 502,
}


def status_of(fault: Fault) -> int:
    return next((STATUS[kind] for kind in type(fault).__mro__ if kind in STATUS), 500)


def body_of(status: int, code: str, detail: str, members: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The members of a problem; what is None is left out."""
    title = HTTPStatus(status).phrase
    every: dict[str, Any] = {"type": f"urn:aetherium:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return every | {name: value for name, value in (members or {}).items() if value is not None and name not in every}


def response(fault: Fault, path: str = "") -> Response:
    """The problem of a fault; on the paths of the OpenAI protocol an error in its own form, which its clients show."""
    status = status_of(fault)
    headers: dict[str, str] = {}
    if status == 503:
        headers["Retry-After"] = RETRY_AFTER_S
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="aetherium"'
    facts = fault.as_dict()
    return _respond(body_of(status, facts["code"], fault.message, fault.details), headers, path)


def _respond(members: dict[str, Any], headers: dict[str, str] | None = None, path: str = "") -> Response:
    if path.startswith(OPENAI):
        status = members["status"]
        kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return Response(orjson.dumps(error_body(status, members["detail"], kind)), status, headers, "application/json")
    return Response(orjson.dumps(members, default=str), members["status"], headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every failure of the app a problem."""

    async def of_fault(request: Request, error: Exception) -> Response:
        assert isinstance(error, Fault)
        return response(error, request.url.path)

    async def of_parameters(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return _respond(body_of(422, BadInput.code, f"{field}: {first['msg']}", {"field": field}))

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = (
            f"{request.method} {request.url.path} is not served here: see /openapi.json"
            if error.status_code in (404, 405)
            else error.detail
        )
        return _respond(body_of(error.status_code, "http.error", detail), dict(error.headers or {}), request.url.path)

    async def of_bug(request: Request, error: Exception) -> Response:
        logger.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
        return _respond(body_of(500, "gateway.bug", "the gateway failed; its log has the reason"), path=request.url.path)

    app.add_exception_handler(Fault, of_fault)
    app.add_exception_handler(RequestValidationError, of_parameters)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(Exception, of_bug)
