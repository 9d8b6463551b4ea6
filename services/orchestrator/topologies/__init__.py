"""Workflows: plain async functions over the run context. No module here knows NATS, HTTP or SQL."""

from services.orchestrator.durable.execution import Code
from services.orchestrator.topologies.single import single

TOPOLOGIES: dict[str, Code] = {"single": single}
