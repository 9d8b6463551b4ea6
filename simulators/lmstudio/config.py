"""What a simulated LM Studio has: models, memory, settings; and the ways in which it can fail."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from simulators.script import Script


class LmFault(StrEnum):
    """Switched on for so many requests, or for all. Faults of a single answer's wire are the script's (`script.FaultKind`)."""

    LISTING_500 = "listing_500"
    LISTING_HTML = "listing_html"
    LISTING_ABSENT = "listing_absent"  # status 200: "Unexpected endpoint or method."
    LISTING_NULL = "listing_null"
    LISTING_ODD_STATE = "listing_odd_state"
    LISTING_DROPS = "listing_drops"
    LISTING_LIES = "listing_lies"  # /api/v0 shows as loaded what is not there
    LOAD_500 = "load_500"
    LOAD_200 = "load_200"  # a failed load under status 200
    LOAD_HTML = "load_html"
    LOAD_VANISHES = "load_vanishes"  # the connection breaks; the load goes on
    LOAD_LIES = "load_lies"  # answered as loaded, and nothing is
    LOAD_STACKS = "load_stacks"  # somebody's request races it: a copy `:2` is there afterwards
    UNLOAD_500 = "unload_500"
    UNLOAD_LIES = "unload_lies"
    UNLOAD_VANISHES = "unload_vanishes"
    CHAT_UNLOADED = "chat_unloaded"
    CHAT_CRASHED = "chat_crashed"
    CHAT_NO_MODELS = "chat_no_models"
    CHAT_CHANNEL_ERROR = "chat_channel_error"
    CHAT_PROXY_ERROR = "chat_proxy_error"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SimModel(_Part):
    """A downloaded model. Its memory is `size_mib` plus `kv_mib_per_1k` for each 1024 tokens of context."""

    key: str
    type: Literal["llm", "vlm", "embeddings"] = "llm"
    arch: str = "qwen3"
    size_mib: PositiveInt = 4700
    kv_mib_per_1k: NonNegativeFloat = 0.0
    context: PositiveInt = 4096  # where a load names none
    max_context: PositiveInt = 131_072
    is_broken: bool = False  # never loads

    def mib(self, context: int) -> int:
        return round(self.size_mib + self.kv_mib_per_1k * context / 1024)


class LmConfig(_Part):
    """A whole simulated LM Studio."""

    models: tuple[SimModel, ...] = (SimModel(key="qwen3-8b"),)
    loaded: tuple[str, ...] = ()  # by hand, before anybody asks
    vram_mib: PositiveInt = 24_576
    outside_mib: NonNegativeInt = 0  # held by other programs
    load_s: NonNegativeFloat = 0.0
    jit: bool = True
    jit_ttl_s: NonNegativeFloat = 3600.0
    auto_evict: bool = True
    guardrail: bool = True
    management: Literal["v1", "older", "none"] = "v1"  # older: load and unload beside /api/v0
    api_key: str | None = None
    replies: Script = Field(default_factory=lambda: Script.model_validate([{"content": "Hello from the model."}]))

    def model(self, key: str) -> SimModel | None:
        return next((model for model in self.models if model.key == key), None)


def load_config(path: Path) -> LmConfig:
    """Raises `pydantic.ValidationError` naming the wrong key."""
    return LmConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
