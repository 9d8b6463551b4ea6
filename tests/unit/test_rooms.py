"""The walls between rooms, read from the imports of every module.

`lint-imports` checks some of them through chains of imports; here each module's own text is read, so a
forbidden clock, chance or environment is found as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import services
import shared
from tests.requirements import covers

ROOT = Path(services.__file__).parent.parent

LANGUAGE = (
    "shared.events",
    "shared.subjects",
    "shared.errors",
    "shared.ids",
    "shared.clock",
    "shared.text",
    "shared.transcript",
    "shared.template",
    "shared.runstate",
    "shared.runlog",
    "shared.prompt",
)
"""The published language. It may import itself, the standard library, and what is named next."""
OF_THE_LANGUAGE = sys.stdlib_module_names | {"pydantic", "orjson", "shared"}

DOMAIN = (
    "services.containers.output",
    "services.gateway.index",
    "services.gateway.relaying.chat",
    "services.gateway.relaying.stream",
    "services.gateway.requests",
    "services.gateway.views",
    "services.gateway.wire",
    "services.orchestrator.actions",
    "services.orchestrator.agent",
    "services.orchestrator.conversation",
    "services.orchestrator.durable.budgets",
    "services.orchestrator.durable.context",
    "services.orchestrator.durable.faults",
    "services.orchestrator.durable.history",
    "services.orchestrator.durable.journal",
    "services.orchestrator.guidance",
    "services.orchestrator.lint",
    "services.orchestrator.promises",
    "services.orchestrator.guided",
    "services.orchestrator.loop",
    "services.orchestrator.loopguard",
    "services.orchestrator.owed",
    "services.orchestrator.prompts",
    "services.orchestrator.topologies",
    "services.orchestrator.workspace_view",
    "services.recorder.batches",
    "services.recorder.projections",
    "services.scheduler.answers",
    "services.scheduler.arbiter",
    "services.scheduler.books",
    "services.scheduler.capabilities",
    "services.scheduler.changes",
    "services.scheduler.decisions",
    "services.scheduler.dialects",
    "services.scheduler.invariants",
    "services.scheduler.model_names",
    "services.scheduler.placement",
    "services.scheduler.ordering",
    "services.scheduler.retries",
    "services.scheduler.slot_checks",
    "services.scheduler.slots",
    "services.scheduler.usage",
    "services.scheduler.vram",
    "services.tools.guards",
    "services.tools.ledger",
    "services.tools.servers.arguments",
    "services.tools.servers.edits",
)
"""Rules, as functions over values. A package stands for all its modules."""

DRIVERS = frozenset({"chromadb", "docker", "fastapi", "httpx", "nats", "opentelemetry", "psycopg", "psycopg_pool", "starlette", "uvicorn"})
OUTSIDE = frozenset({"requests", "socket", "subprocess"})
CHANCE = frozenset({"random", "secrets", "time", "uuid"})  # and wall clocks: who needs either is handed it
READS_OUTSIDE = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "os.environ", "os.getenv", "os.urandom")


def modules(*packages: str) -> Iterator[tuple[str, Path]]:
    """Name and file of each module below packages of the source tree."""
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), file


def imports(source: str, module: str) -> set[str]:
    """The dotted names that a module imports, wherever in it; `from a import b` gives `a.b`, which may be a name of `a`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: -node.level]
                base = ".".join([*above, base] if base else above)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def reads_outside(source: str) -> list[str]:
    """Where a module looks at the clock or the environment itself."""
    dotted = (ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    used = {text for text in dotted if text.removeprefix("datetime.") in READS_OUTSIDE or text in READS_OUTSIDE}
    return sorted(used | (imports(source, "") & set(READS_OUTSIDE)))


def belongs(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def wrong_in_domain(source: str, module: str) -> list[str]:
    """What a domain module imports or reads that it may not."""
    tops = {name.partition(".")[0] for name in imports(source, module)}
    return sorted(tops & (DRIVERS | OUTSIDE | CHANCE)) + reads_outside(source)


def wrong_in_language(source: str, module: str) -> list[str]:
    names = imports(source, module)
    own = {name for name in names if name.startswith("shared.") and not belongs(name, LANGUAGE)}
    tops = {name.partition(".")[0] for name in names}
    return sorted(own | (tops - OF_THE_LANGUAGE) | (tops & DRIVERS))


@covers("rooms.walls")
def test_no_service_imports_another() -> None:
    wrong: list[str] = []
    for module, file in modules("services"):
        own = ".".join(module.split(".")[:2])
        others = {name for name in imports(file.read_text(), module) if name.startswith("services.") and not belongs(name, (own,))}
        wrong += [f"{module} imports {name}" for name in sorted(others)]
    assert wrong == []


@covers("rooms.walls")
def test_what_is_shared_imports_nothing_that_is_built_on_it() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, file in modules("shared")
        for name in sorted(imports(file.read_text(), module))
        if belongs(name, ("services", "aetherium", "simulators", "tests"))
    ]
    assert wrong == []


@covers("rooms.walls")
@pytest.mark.parametrize("module", LANGUAGE)
def test_the_language_imports_no_infrastructure(module: str) -> None:
    found = [(name, file) for name, file in modules("shared") if belongs(name, (module,))]
    assert found, f"{module} is gone: take it out of the list"
    for name, file in found:
        assert wrong_in_language(file.read_text(), name) == [], name
        assert name == "shared.clock" or reads_outside(file.read_text()) == [], name


@covers("rooms.walls")
@pytest.mark.parametrize("module", DOMAIN)
def test_a_domain_module_imports_no_driver_and_reads_neither_clock_nor_chance_nor_environment(module: str) -> None:
    found = [(name, file) for name, file in modules("services") if belongs(name, (module,))]
    assert found, f"{module} is gone: take it out of the list"
    for name, file in found:
        assert wrong_in_domain(file.read_text(), name) == [], name


def test_services_reach_nats_only_where_a_port_is_made_of_it() -> None:
    adapters = {"services.gateway.ports"}
    found = {module for module, file in modules("services") if any(name.startswith("nats") for name in imports(file.read_text(), module))}
    assert found <= adapters


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import nats.errors", ["nats"]),
        ("from psycopg.sql import SQL", ["psycopg"]),
        ("def f():\n    import httpx", ["httpx"]),
        ("import random", ["random"]),
        ("from time import monotonic", ["time"]),
        ("from datetime import datetime\nnow = datetime.now()", ["datetime.now"]),
        ("import datetime\nnow = datetime.datetime.now()", ["datetime.datetime.now"]),
        ("import os\nhome = os.environ['HOME']", ["os.environ"]),
        ("from os import environ", ["os.environ"]),
        ("from datetime import datetime\nthen = datetime.fromisoformat('2026-01-01')", []),
        ("from shared.eventlog import EventLog", []),
    ],
)
def test_what_a_domain_module_may_not_do_is_found(source: str, wrong: list[str]) -> None:
    assert wrong_in_domain(source, "services.x.y") == wrong


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import shared.eventlog", ["shared.eventlog"]),
        ("from shared import bus", ["shared.bus"]),
        ("from shared.db import migrate", ["shared.db.migrate"]),
        ("import structlog", ["structlog"]),
        ("import nats", ["nats"]),
        ("from services.tools import ledger", ["services"]),
        ("from shared.events import run\nfrom pydantic import BaseModel\nimport hashlib", []),
    ],
)
def test_what_the_language_may_not_import_is_found(source: str, wrong: list[str]) -> None:
    assert wrong_in_language(source, "shared.events.x") == wrong


def test_a_relative_import_is_resolved() -> None:
    assert imports("from .. import tools\nfrom ..tools.ledger import Claim", "services.gateway.app") == {
        "services.tools",
        "services.tools.ledger.Claim",
    }


def test_the_tree_that_is_read_is_the_one_that_runs() -> None:
    assert Path(shared.__file__).is_relative_to(ROOT)
    assert len(list(modules("services", "shared"))) > 100
