"""Logs, spans and metrics, set up once per process.

Logs are structlog lines, JSON unless a person is watching. Spans follow a run through every process by
the `traceparent` of its facts; they are exported only when an OTLP endpoint is configured, and cost
nothing otherwise. Nothing here opens a connection by itself.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO, cast

import structlog
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.config import TelemetrySettings

_propagator = TraceContextTextMapPropagator()
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)
_exports: list[Callable[[], None]] = []  # how to end the one export of this process, once it has begun


@dataclass(frozen=True)
class _Unfailing:
    """A stream whose lines are lost when the disk is full: a log line must not fail the work that it tells of."""

    stream: TextIO

    def write(self, text: str) -> None:
        with suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


def set_up(settings: TelemetrySettings, process: str) -> None:
    """Configure logging of this process, and the export of spans if there is somewhere to send them."""
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    # Tracebacks without local variables: those hold prompts, and may hold secrets.
    render: list[structlog.typing.Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    if as_json:
        render[0] = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    if settings.otlp_endpoint and not _exports:
        _export(settings.otlp_endpoint, process)


def _export(endpoint: str, process: str) -> None:
    # Imported only where it is used: it is a tenth of what a process takes to start, and to come back after a crash.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"aetherium-{process}", "process.pid": os.getpid()}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    _exports.append(provider.shutdown)


def new_traceparent() -> str:
    """A new trace, in the form of the W3C header."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def traceparent() -> str | None:
    """The trace that the code now running belongs to: stamped on the facts that it appends."""
    return _current.get()


@contextmanager
def span(name: str, parent: str | None, **attributes: str | int | float) -> Generator[None]:
    """A span below `parent`, a traceparent; facts appended inside carry the span's own."""
    if not _exports:
        token = _current.set(parent)
        try:
            yield
        finally:
            _current.reset(token)
        return
    context = _propagator.extract({"traceparent": parent} if parent else {})
    with trace.get_tracer("aetherium").start_as_current_span(name, context=context, attributes=attributes):
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        token = _current.set(carrier.get("traceparent", parent))
        try:
            yield
        finally:
            _current.reset(token)


def shut_down() -> None:
    """Send what spans are left."""
    for shut_down_export in _exports:
        shut_down_export()
