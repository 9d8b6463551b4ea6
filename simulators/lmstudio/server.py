"""The routes of a simulated LM Studio. Chat answers come from a script, as those of the scripted server do."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from starlette.types import Scope

from simulators.lmstudio import wire
from simulators.lmstudio.card import Card, Instance, Refused
from simulators.lmstudio.config import LmConfig, LmFault
from simulators.openai_server import FAULTED, ClientLeft, Exchange, ScriptedServer
from simulators.script import Script
from simulators.wire import Json

_CHAT = ("/v1/chat/completions", "/api/v0/chat/completions")
_LOAD_KEYS = {"model", "context_length", "eval_batch_size", "flash_attention", "num_experts", "offload_kv_cache_to_gpu", "echo_load_config"}
_LISTING = (LmFault.LISTING_500, LmFault.LISTING_HTML, LmFault.LISTING_ABSENT, LmFault.LISTING_NULL, LmFault.LISTING_DROPS)
_CHAT_FAULTS: Mapping[LmFault, Json] = {
    LmFault.CHAT_UNLOADED: wire.UNLOADED,
    LmFault.CHAT_CRASHED: wire.CRASHED,
    LmFault.CHAT_NO_MODELS: wire.no_models(),
    LmFault.CHAT_CHANNEL_ERROR: wire.CHANNEL,
}
ALWAYS = -1

Handler = Callable[[Json, Exchange], Awaitable[None]]


class _Turned(Exception):
    """A request that is answered with an error."""

    def __init__(self, body: Json, status: int = 400) -> None:
        super().__init__(status)
        self.body, self.status = body, status


class LmStudioServer(ScriptedServer):
    """The ASGI application; `card` is what a test looks at, `switch` what it breaks."""

    def __init__(self, config: LmConfig | None = None, keep: int | None = None) -> None:
        self.config = config or LmConfig()
        super().__init__(self.config.replies, keep)
        self.card = Card(self.config)
        self.listings = 0
        self._switched: Counter[LmFault] = Counter()

    def switch(self, fault: LmFault, times: int = ALWAYS) -> None:
        """Let `fault` hit the next `times` requests; 0 ends it."""
        self._switched[fault] = times

    def _hits(self, fault: LmFault) -> bool:
        left = self._switched[fault]
        if left > 0:
            self._switched[fault] -= 1
        return left != 0

    async def _route(self, scope: Scope, body: bytes, exchange: Exchange) -> None:
        self.card.reap()
        method, path = str(scope["method"]), str(scope["path"])
        if path.startswith("/_"):
            await self._control(method, path, body, exchange)
            return
        refused = self._unauthorized(scope)
        if refused is not None:
            await exchange.json(401, refused)
        elif method == "POST" and path in _CHAT:
            await self._chat(scope, body, exchange)
        elif (handler := self._handler(method, path)) is not None:
            try:
                await handler(_object(body), exchange)
            except _Turned as turned:
                await exchange.json(turned.status, turned.body)
        else:
            await exchange.json(200, wire.unexpected(method, path))

    def _unauthorized(self, scope: Scope) -> Json | None:
        if self.config.api_key is None:
            return None
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return None if given == f"Bearer {self.config.api_key}" else wire.unauthorized(malformed=bool(given))

    def _handler(self, method: str, path: str) -> Handler | None:
        base = {"v1": "/api/v1/models", "older": "/api/v0/models", "none": None}[self.config.management]
        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/models"): self._openai_models,
            ("GET", "/api/v0/models"): self._v0_models,
            ("POST", "/v1/embeddings"): self._embeddings,
        }
        if self.config.management == "v1":
            routes["GET", "/api/v1/models"] = self._v1_models
        if base is not None:
            routes["POST", f"{base}/load"] = self._load
            routes["POST", f"{base}/unload"] = self._unload
        if method == "GET" and path.startswith("/api/v0/models/"):
            return self._v0_model_at(unquote(path.removeprefix("/api/v0/models/")))
        return routes.get((method, path))

    # ---- listings

    async def _openai_models(self, _: Json, exchange: Exchange) -> None:
        names = [str(row["id"]) for row in wire.v0_rows(self.card, only_loaded=not self.config.jit)]
        await exchange.json(200, {"object": "list", "data": [wire.openai_model(name) for name in dict.fromkeys(names)]})

    async def _v0_models(self, _: Json, exchange: Exchange) -> None:
        self.listings += 1
        fault = next((each for each in _LISTING if self._hits(each)), None)
        if fault is not None:
            await _break_listing(fault, exchange)
            return
        rows = wire.v0_rows(self.card, only_loaded=not self.config.jit)
        if self._hits(LmFault.LISTING_ODD_STATE):
            rows[0]["state"] = "evicting"
        if self._hits(LmFault.LISTING_LIES):
            rows = [{**row, "state": "loaded"} for row in rows]
        await exchange.json(200, {"object": "list", "data": rows})

    def _v0_model_at(self, name: str) -> Handler:
        async def answer(_: Json, exchange: Exchange) -> None:
            row = next((row for row in wire.v0_rows(self.card, only_loaded=False) if row["id"] == name), None)
            await exchange.json(200, row) if row else await exchange.json(404, wire.not_found(name))

        return answer

    async def _v1_models(self, _: Json, exchange: Exchange) -> None:
        await exchange.json(200, {"models": [wire.v1_model(self.card, model) for model in self.config.models]})

    # ---- load, unload

    async def _load(self, body: Json, exchange: Exchange) -> None:
        key, context = self._asked(body)
        model = self.config.model(key)
        if model is None:
            raise _Turned(wire.not_found(key), 404)
        if self._hits(LmFault.LOAD_HTML):
            await _page(exchange, 502)
            return
        if model.is_broken or self._hits(LmFault.LOAD_500):
            raise _Turned(wire.load_failed(key, "unknown model architecture"), 500)
        if self._hits(LmFault.LOAD_200):
            raise _Turned(wire.load_failed(key, "unknown model architecture"), 200)
        if self._hits(LmFault.LOAD_LIES):
            await exchange.json(200, _loaded(key))
            return
        if self._hits(LmFault.LOAD_STACKS):
            self.card.begin(model, context, ttl_s=self.config.jit_ttl_s)
        each = self._begin(key, context, None, 500)
        if self._hits(LmFault.LOAD_VANISHES):
            exchange.drop()
            return
        await self._wait_for(each, exchange)
        await exchange.json(200, _loaded(each.id))

    def _asked(self, body: Json) -> tuple[str, int | None]:
        unknown = sorted(set(body) - _LOAD_KEYS)
        if unknown:
            raise _Turned(wire.invalid("unrecognized_keys", f"Unrecognized key(s) in object: {unknown}", unknown[0]))
        if not isinstance(body.get("model"), str):
            raise _Turned(wire.invalid("missing_required_parameter", "'model' is required", "model"))
        return str(body["model"]), body.get("context_length")

    def _begin(self, key: str, context: int | None, ttl_s: float | None, status: int) -> Instance:
        model = self.config.model(key)
        assert model is not None
        try:
            return self.card.begin(model, context, ttl_s=ttl_s)
        except Refused as refused:
            message = wire.too_large(key, refused.needed_gb)
            body = wire.load_failed(key, message) if ttl_s is None else {"error": {"message": message}}
            raise _Turned(body, status) from refused

    async def _wait_for(self, each: Instance, exchange: Exchange) -> None:
        await self.card.clock.until(each.ready_at, exchange.gone)
        if exchange.gone.is_set():
            raise ClientLeft

    async def _unload(self, body: Json, exchange: Exchange) -> None:
        name = body.get("instance_id" if self.config.management == "v1" else "model")
        if not isinstance(name, str):
            raise _Turned(wire.invalid("missing_required_parameter", "'instance_id' is required", "instance_id"))
        if self._hits(LmFault.UNLOAD_500):
            raise _Turned({"error": {"type": "internal_error", "message": "engine protocol failure"}}, 500)
        if self._hits(LmFault.UNLOAD_VANISHES):
            exchange.drop()
            return
        if not self._hits(LmFault.UNLOAD_LIES) and not self.card.unload(name):
            raise _Turned(wire.invalid("model_not_found", f"No loaded instance '{name}'", "instance_id"), 404)
        await exchange.json(200, {"instance_id": name})

    # ---- inference

    async def _embeddings(self, body: Json, exchange: Exchange) -> None:
        """Served by models that it takes for embedding models; what it calls `llm` it denies (case RW-08)."""
        model = self.config.model(str(body.get("model")))
        if model is None or model.type != "embeddings":
            raise _Turned({"error": "No models loaded. Please load a model."})
        texts: Any = body.get("input")
        await exchange.json(200, wire.embedding([texts] if isinstance(texts, str) else list(texts), model.key))

    def _script_for(self, body: Json) -> Script:
        return self.script.model_copy(update={"model": body["model"]})

    async def _answer(self, body: Json, messages: list[Json], exchange: Exchange) -> str:
        if self._hits(LmFault.CHAT_PROXY_ERROR):
            await exchange.head(500, "application/json")
            await exchange.end(wire.PROXY)
            return FAULTED
        try:
            fault = next((each for each in _CHAT_FAULTS if self._hits(each)), None)
            if fault is not None:
                raise _Turned(_CHAT_FAULTS[fault])
            each = await self._serving(str(body.get("model") or ""), body.get("ttl"), exchange)
        except _Turned as turned:
            await exchange.json(turned.status, turned.body)
            return FAULTED
        return await self._answer_by(each, {**body, "model": each.id}, messages, exchange)

    async def _serving(self, name: str, ttl_s: float | None, exchange: Exchange) -> Instance:
        """The instance that answers for `name`. One that still loads does not count, so that a crowd starts several."""
        ready = [each for each in self.card.ready() if each.model.type != "embeddings"]
        exact = [each for each in ready if each.id == name] or [each for each in ready if each.model.key == name]
        if exact:
            return exact[0]
        if self.config.jit and self.config.model(name) is not None:
            if self.config.auto_evict:
                self.card.evict_for_jit()
            each = self._begin(name, None, self.config.jit_ttl_s if ttl_s is None else ttl_s, 400)
            await self._wait_for(each, exchange)
            return each
        if not ready:
            raise _Turned(wire.no_models())
        if len(ready) == 1:
            return ready[0]  # silently
        raise _Turned(wire.not_found(name))

    async def _answer_by(self, each: Instance, body: Json, messages: list[Json], exchange: Exchange) -> str:
        each.asked_at = self.card.clock.now()
        each.answers[id(exchange)] = exchange.gone.set
        watch = asyncio.create_task(self._watch(each, exchange.gone))
        try:
            return await super()._answer(body, messages, exchange)
        except ClientLeft:
            if each.id in self.card.instances:
                raise
            exchange.gone.clear()  # it was the model that went
            await _say_unloaded(exchange)
            return FAULTED
        finally:
            watch.cancel()
            each.answers.pop(id(exchange), None)

    async def _watch(self, each: Instance, gone: asyncio.Event) -> None:
        if each.expires_at is not None:
            await self.card.clock.until(each.expires_at, gone)
            self.card.reap()

    # ---- what a test in another process says and sees

    async def _control(self, method: str, path: str, raw: bytes, exchange: Exchange) -> None:
        if (method, path) == ("GET", "/_requests"):
            await exchange.json(200, {"requests": [request.as_dict() for request in self.requests]})
        elif (method, path) == ("GET", "/_state"):
            await exchange.json(200, self.state())
        elif (method, path) == ("POST", "/_control"):
            self.control(_object(raw))
            await exchange.json(200, self.state())
        else:
            await exchange.json(404, wire.unexpected(method, path))

    def control(self, order: Json) -> None:
        """`{"fault", "times"?}`, `{"advance_s"}`, `{"outside_mib"}`, `{"load"}` or `{"unload"}` as a person at the server would."""
        if "fault" in order:
            self.switch(LmFault(order["fault"]), int(order.get("times", ALWAYS)))
        if "advance_s" in order:
            self.card.clock.advance(float(order["advance_s"]))
        if "outside_mib" in order:
            self.card.outside_mib = int(order["outside_mib"])
        if "load" in order:
            self._begin(str(order["load"]), order.get("context_length"), None, 400)
        if "unload" in order:
            self.card.unload(str(order["unload"]))
        self.card.reap()

    def state(self) -> Json:
        card = self.card
        return {
            "instances": {
                each.id: {"mib": each.mib, "context": each.context, "ready": card.is_ready(each)} for each in card.instances.values()
            },
            "loads": card.loads,
            "unloads": card.unloads,
            "used_mib": card.used_mib,
            "peak_mib": card.peak_mib,
            "vram_mib": self.config.vram_mib,
            "listings": self.listings,
        }


def _loaded(instance: str) -> Json:
    return {"type": "llm", "instance_id": instance, "load_time_seconds": 0.1, "status": "loaded"}


async def _break_listing(fault: LmFault, exchange: Exchange) -> None:
    match fault:
        case LmFault.LISTING_500:
            await exchange.json(500, {"error": {"message": "Internal Server Error"}})
        case LmFault.LISTING_HTML:
            await _page(exchange, 200)
        case LmFault.LISTING_ABSENT:
            await exchange.json(200, wire.unexpected("GET", "/api/v0/models"))
        case LmFault.LISTING_NULL:
            await exchange.json(200, {"object": "list", "data": None})
        case _:
            exchange.drop()


async def _page(exchange: Exchange, status: int) -> None:
    await exchange.head(status, "text/html; charset=utf-8")
    await exchange.end(wire.HTML)


async def _say_unloaded(exchange: Exchange) -> None:
    if not exchange.started:
        await exchange.json(400, wire.UNLOADED)
        return
    await exchange.write(b"event: error\ndata: " + json.dumps(wire.UNLOADED).encode() + b"\n\n")
    await exchange.end()


def _object(raw: bytes) -> Json:
    try:
        data: Any = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return cast("Json", data) if isinstance(data, dict) else {}
