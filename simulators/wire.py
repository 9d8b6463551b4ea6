"""llama-server's wire format: the chunks of a stream, whole answers, model lists and error bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from simulators.script import Chosen, Script, filled

Json = dict[str, Any]
CREATED = 1_796_071_077
_FINGERPRINT = "b1-7e4c0a9"

LOADING: Json = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
BROKEN: Json = {"error": {"code": 500, "message": "the script says that this request fails", "type": "server_error"}}
PARSER_REJECTS: Json = {
    "error": {
        "code": 500,
        "message": "The model produced output that does not match the expected peg-native format",
        "type": "server_error",
    }
}
NOT_FOUND: Json = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
PROXY_ERROR = b"proxy error: Failed to read connection"


def context_exceeded(prompt_tokens: int, context: int) -> Json:
    """llama-server's 400 for a prompt that does not fit into its slot."""
    message = f"request ({prompt_tokens} tokens) exceeds the available context size ({context} tokens), try increasing it"
    return {
        "error": {
            "code": 400,
            "message": message,
            "type": "exceed_context_size_error",
            "n_prompt_tokens": prompt_tokens,
            "n_ctx": context,
        }
    }


def bad_request(message: str) -> Json:
    return {"error": {"code": 400, "message": message, "type": "invalid_request_error"}}


class Answer:
    """One answer as deltas, as a stream's chunks, or whole."""

    def __init__(self, script: Script, chosen: Chosen, body: Json) -> None:
        self._spec = chosen.spec
        self._model = script.model
        self._key = f"{chosen.conversation}/{chosen.turn}"
        self.prompt_tokens = tokens_of(body)
        self.content: str = filled(chosen.spec.content, chosen)
        self.reasoning: str = filled(chosen.spec.reasoning, chosen)
        self.calls = [self._call(index, chosen) for index in range(len(chosen.spec.tool_calls))]
        self.finish_reason = chosen.spec.finish_reason or ("tool_calls" if self.calls else "stop")

    def _call(self, index: int, chosen: Chosen) -> Json:
        call = chosen.spec.tool_calls[index]
        arguments: Any = filled(call.arguments, chosen)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = call.id or hashlib.sha256(f"{self._key}/{index}".encode()).hexdigest()[:32]
        return {"type": "function", "function": {"name": call.name, "arguments": text}, "id": call_id}

    def deltas(self) -> Iterator[Json]:
        """The opening delta, then reasoning, content and tool calls in pieces of `chunk` characters."""
        yield {"role": "assistant", "content": None}
        yield from ({"reasoning_content": piece} for piece in self._pieces(self.reasoning))
        yield from ({"content": piece} for piece in self._pieces(self.content))
        for index, call in enumerate(self.calls):
            function = call["function"]
            head, *rest = self._pieces(function["arguments"]) or [""]
            first = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": head}}
            yield {"tool_calls": [first]}
            yield from ({"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest)

    def _pieces(self, text: str) -> list[str]:
        size = self._spec.chunk
        return [text[start : start + size] for start in range(0, len(text), size)]

    def chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"finish_reason": finish_reason, "index": 0, "delta": delta}
        return {"choices": [choice], **self._envelope("chat.completion.chunk")}

    def closing_chunks(self, *, include_usage: bool) -> list[Json]:
        """The finish chunk, and the extra one with usage; timings sit in whichever is last."""
        finish = self.chunk({}, self.finish_reason)
        if not include_usage:
            return [{**finish, "timings": self._timings()}]
        extra: Json = {"choices": [], **self._envelope("chat.completion.chunk"), "usage": self._usage(), "timings": self._timings()}
        return [finish, extra]

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        choice = {"finish_reason": self.finish_reason, "index": 0, "message": message}
        return {"choices": [choice], **self._envelope("chat.completion"), "usage": self._usage(), "timings": self._timings()}

    def _envelope(self, kind: str) -> Json:
        identity = "chatcmpl-" + hashlib.sha256(self._key.encode()).hexdigest()[:29]
        return {"created": CREATED, "id": identity, "model": self._model, "system_fingerprint": _FINGERPRINT, "object": kind}

    @property
    def _completion_tokens(self) -> int:
        written = len(self.content) + len(self.reasoning) + sum(len(call["function"]["arguments"]) for call in self.calls)
        return max(1, written // 4)

    def _usage(self) -> Json:
        prompt, completion = self.prompt_tokens, self._completion_tokens
        return {
            "completion_tokens": completion,
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _timings(self) -> Json:
        return {
            "cache_n": 0,
            "prompt_n": self.prompt_tokens,
            "prompt_ms": 1.0,
            "prompt_per_token_ms": 1.0 / self.prompt_tokens,
            "prompt_per_second": 1000.0 * self.prompt_tokens,
            "predicted_n": self._completion_tokens,
            "predicted_ms": 1.0,
            "predicted_per_token_ms": 1.0 / self._completion_tokens,
            "predicted_per_second": 1000.0 * self._completion_tokens,
        }


def tokens_of(body: Json) -> int:
    """A stand-in for the tokenizer: four characters of the prompt's JSON are a token."""
    prompt: Json = {"messages": body.get("messages", []), "tools": body.get("tools") or []}
    return max(1, len(json.dumps(prompt, ensure_ascii=False)) // 4)


def models(script: Script) -> Json:
    meta = {"vocab_type": 2, "n_vocab": 151_936, "n_ctx": script.context, "n_ctx_train": 32_768, "n_embd": 1536, "n_params": 1, "size": 1}
    row: Json = {"id": script.model, "aliases": [], "tags": [], "object": "model", "created": CREATED, "owned_by": "llamacpp", "meta": meta}
    listed = {"name": script.model, "model": script.model, "type": "model", "capabilities": ["completion"]}
    return {"models": [listed], "object": "list", "data": [row]}


def props(script: Script) -> Json:
    return {
        "default_generation_settings": {"params": {}, "n_ctx": script.context},
        "total_slots": script.slots,
        "model_alias": script.model,
        "model_path": f"{script.model}.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": "",
        "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True, "supports_parallel_tool_calls": True},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": False,
        "build_info": _FINGERPRINT,
        "is_sleeping": False,
    }
