"""One trace follows a run through every process, by the traceparent of its facts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aetherium.launcher import stack
from shared.config import ChromaSettings, Settings, TelemetrySettings
from tests.requirements import covers
from tests.support.waiting import until


@dataclass
class Collector:
    """An OTLP receiver: service and trace of every span that arrives."""

    port: int = 0
    spans: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(attributes["service.name"], span.name, span.trace_id.hex()) for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    taken = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the test's output is pytest's."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield taken
    server.shutdown()
    thread.join()
    server.server_close()


@covers("stack.trace")
async def test_a_runs_spans_from_every_process_belong_to_one_trace(tmp_path: Path, collector: Collector) -> None:
    settings = Settings(
        data_dir=tmp_path,
        chroma=ChromaSettings(enabled=False),
        telemetry=TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{collector.port}/v1/traces"),
    )
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with stack.running(settings, scripted=True) as engine:
        assert await engine.ready()
        async with httpx.AsyncClient(base_url=engine.plan.urls["gateway"], timeout=60, trust_env=False) as client:
            answer = await client.post(
                "/api/orchestrator/run-from-template",
                json={"templateId": "quick-script", "projectName": "traced", "message": "Write primes.py and run it."},
                headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
            )
            assert answer.status_code == 200, answer.text
    # The processes sent what they had left when they stopped.
    await until(lambda: len({service for service, _, found in collector.spans if found == trace}) == 4)
    assert {(service, name) for service, name, found in collector.spans if found == trace} >= {
        ("aetherium-gateway", "gateway.submit"),
        ("aetherium-orchestrator", "orchestrator.run"),
        ("aetherium-scheduler", "scheduler.call"),
        ("aetherium-tools", "tools.call"),
    }
