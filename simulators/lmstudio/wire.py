"""LM Studio's bodies, as the real server sends them."""

from __future__ import annotations

import hashlib

from simulators.lmstudio.card import Card, Instance
from simulators.lmstudio.config import SimModel
from simulators.wire import Json

UNLOADED: Json = {"error": "Model unloaded."}
CRASHED: Json = {"error": "The model has crashed without additional information. (Exit code: 18446744072635812000)"}
CHANNEL: Json = {"error": "Channel Error"}
PROXY: bytes = b"proxy error: Could not establish connection"
HTML = b"<!doctype html><title>502 Bad Gateway</title><h1>502 Bad Gateway</h1>"
_JIT_HINT = "Please load a model in the developer page or use the 'lms load' command."


def unexpected(method: str, path: str) -> Json:
    return {"error": f"Unexpected endpoint or method. ({method} {path})"}


def no_models() -> Json:
    return {"error": {"message": f"No models loaded. {_JIT_HINT}", "type": "invalid_request_error", "param": "model", "code": None}}


def not_found(model: str) -> Json:
    message = f'Invalid model identifier "{model}". Please specify a valid downloaded model.'
    return {"error": {"message": message, "type": "invalid_request", "param": "model", "code": "model_not_found"}}


def invalid(code: str, message: str, param: str) -> Json:
    return {"error": {"type": "invalid_request", "code": code, "message": message, "param": param}}


def unauthorized(*, malformed: bool) -> Json:
    message = "Malformed LM Studio API token provided: ***" if malformed else "An LM Studio API token is required to make requests."
    return {"error": {"type": "invalid_request", "code": "invalid_api_key", "message": message}}


def too_large(model: str, needed_gb: float) -> str:
    return (
        f'Failed to load model "{model}". Error: Model loading was stopped due to insufficient system resources. '
        f"Loading it would need approximately {needed_gb:.2f} GB of memory."
    )


def load_failed(model: str, why: str) -> Json:
    return {"error": {"type": "model_load_failed", "message": f"Failed to load LLM '{model}': {why}"}}


def v0_rows(card: Card, *, only_loaded: bool) -> list[Json]:
    """One row an instance, and one for each model of which no instance has its plain name."""
    rows: list[Json] = []
    for model in card.config.models:
        instances = card.of(model.key)
        rows += [_v0_row(model, each.id, "loaded" if card.is_ready(each) else "loading", each.context) for each in instances]
        if model.key not in card.instances:
            rows.append(_v0_row(model, model.key, "not-loaded", None))
    return [row for row in rows if row["state"] == "loaded"] if only_loaded else rows


def _v0_row(model: SimModel, name: str, state: str, context: int | None) -> Json:
    row: Json = {
        "id": name,
        "object": "model",
        "type": model.type,
        "publisher": "acme",
        "arch": model.arch,
        "compatibility_type": "gguf",
        "quantization": "Q4_K_M",
        "state": state,
        "max_context_length": model.max_context,
        "capabilities": ["tool_use"],
    }
    return {**row, "loaded_context_length": context} if state == "loaded" else row


def v1_model(card: Card, model: SimModel) -> Json:
    """Only what is loaded has an instance here; a load under way shows nowhere in this API."""
    embeds = model.type == "embeddings"
    row: Json = {
        "type": "embedding" if embeds else "llm",
        "publisher": "acme",
        "key": model.key,
        "display_name": model.key,
        "quantization": {"name": "Q4_K_M", "bits_per_weight": 4},
        "size_bytes": model.size_mib * 2**20,
        "params_string": "8B",
        "max_context_length": model.max_context,
        "format": "gguf",
        "loaded_instances": [_v1_instance(each) for each in card.of(model.key) if card.is_ready(each)],
    }
    if embeds:
        return row
    capabilities = {"vision": model.type == "vlm", "trained_for_tool_use": True}
    return {**row, "architecture": model.arch, "capabilities": capabilities, "description": None}


def _v1_instance(each: Instance) -> Json:
    return {
        "id": each.id,
        "config": {"context_length": each.context, "eval_batch_size": 512, "parallel": 4, "flash_attention": True},
    }


def openai_model(name: str) -> Json:
    return {"id": name, "object": "model", "owned_by": "organization_owner"}


def embedding(texts: list[str], model: str) -> Json:
    data = [{"object": "embedding", "index": at, "embedding": _vector(text)} for at, text in enumerate(texts)]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": 0, "total_tokens": 0}}


def _vector(text: str) -> list[float]:
    return [byte / 255 for byte in hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8]]
