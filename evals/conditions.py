"""Under what conditions a result was had: model, servers, machine and settings, so that it can be compared."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
from pydantic import BaseModel, ConfigDict

from aetherium.launcher.model_file import QWEN_CODER
from aetherium.launcher.state import Model


class Conditions(BaseModel):
    """Everything that a result depends on, as far as it could be learned; an empty text = unknown."""

    model_config = ConfigDict(frozen=True)

    model: str = ""
    model_source: str = ""  # local, configured, detected, scripted or given by address
    model_sha256: str = ""
    guided: bool | None = None  # asked action by action under a schema
    model_server: str = ""
    engine: str = ""
    template: str
    max_turns: int
    max_tokens: int | None = None
    temperature: float
    budget_s: float
    repeat: int
    slot: str = ""
    without: tuple[str, ...] = ()
    cpus: int
    cpu: str = ""
    load_average: tuple[float, ...] = ()
    python: str = ""
    measured_at: datetime


def of_this_machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "load_average": tuple(round(load, 2) for load in os.getloadavg()),
        "python": platform.python_version(),
        "measured_at": datetime.now(UTC).replace(microsecond=0),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


async def of_model(model: Model) -> dict[str, Any]:
    """What can be learned of the model and its server. A server that does not tell is no failure."""
    known: dict[str, Any] = {"model_source": model.source}
    if model.source == "local":
        known |= {"model": QWEN_CODER.name, "model_sha256": QWEN_CODER.sha256}
    if model.url is None:
        return known
    base = model.url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=5.0) as http:
        props = await _json(http, "/props")
        models = await _json(http, "/v1/models")
    listed = cast(list[dict[str, Any]], models.get("data") or [])
    file = Path(str(props.get("model_path") or ""))
    if listed:
        known.setdefault("model", str(listed[0].get("id", "")))
    if file.is_file() and "model_sha256" not in known:
        known["model_sha256"] = await asyncio.to_thread(_sha256, file)
    return known | {"model_server": str(props.get("build_info") or "")}


async def _json(http: httpx.AsyncClient, path: str) -> Mapping[str, Any]:
    try:
        answer = await http.get(path)
        found: object = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
