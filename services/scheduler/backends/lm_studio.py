"""LM Studio: the OpenAI protocol, and two management APIs beside it.

`/api/v0` tells the state of every model; `/api/v1` (0.4.0 and later) loads and unloads, and tells sizes and instances.
Older servers have load and unload beside v0, or neither. Which of them is there is asked once, and again after
the server was away, since it may have come back as another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx

from services.scheduler.backends.assembly import Assembly
from services.scheduler.backends.base import ChatRequest, Json
from services.scheduler.backends.faults import BackendFault, InferenceUnreachable, ModelNotLoaded, StateUnknown
from services.scheduler.backends.fields import count_at, mib_at, object_at, text_at
from services.scheduler.backends.http import HttpServer
from services.scheduler.backends.loads import LOAD_S, UNLOAD_S
from services.scheduler.backends.management import Can, ModelState, Row, kind_of
from services.scheduler.backends.openai import OpenAiBackend
from services.scheduler.model_names import base_of, same_model

_STATES: tuple[ModelState, ...] = ("loaded", "loading", "not-loaded")  # the first of several rows of one id counts
_V0, _V1 = "/api/v0/models", "/api/v1/models"
_OLDER = ("/api/v0/models", "/models")  # where servers before 0.4.0 may have load and unload


class LmStudioBackend(OpenAiBackend):
    """Chat with LM Studio, which answers with whatever is loaded when it does not have what was asked for."""

    def _check_answer(self, request: ChatRequest, assembly: Assembly) -> None:
        asked, served = request.model, assembly.model
        if asked and served and not same_model(base_of(served, [asked]), asked):
            message = f"{self.url} answered with {served!r} instead of {asked!r}. Load {asked!r}, then try again."
            raise ModelNotLoaded(message, server=self.url, served=served)


@dataclass(frozen=True, slots=True)
class _Api:
    """What this server has: `base` of load and unload, None if it has neither."""

    base: str | None
    has_v1: bool = False


class LmStudioDialect:
    def __init__(self, url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._server = HttpServer(url, api_key=api_key, transport=transport)
        self._api: _Api | None = None

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
        await self._server.close()

    async def can(self) -> Can:
        api = await self._detected()
        manages = api.base is not None
        return Can(lists_states=True, load=manages, unload=manages, sets_context=manages, lists_all=api.has_v1)

    async def _detected(self) -> _Api:
        if self._api is None:
            self._api = _Api(_V1, has_v1=True) if await self._has_v1() else _Api(await self._older())
        return self._api

    async def _has_v1(self) -> bool:
        try:
            return isinstance((await self._server.get(_V1)).get("models"), list)
        except BackendFault as fault:
            if _is_absent(fault):
                return False
            raise

    async def _older(self) -> str | None:
        """Where an empty load is refused for what it lacks, and not for where it was sent."""
        for base in _OLDER:
            try:
                await self._server.ask(f"{base}/load", {}, timeout_s=5.0)
            except BackendFault as fault:
                if _is_absent(fault):
                    continue
                if isinstance(fault, InferenceUnreachable):
                    raise
            return base
        return None

    # ---- listing

    async def listing(self) -> tuple[Row, ...]:
        """Anything but a list of models with known states is a fault; see `Management.listing`."""
        try:
            api = await self._detected()
            states = self._states(await self._server.get(_V0))
            if not api.has_v1:
                return states
            return self._merged(states, self._models(await self._server.get(_V1)))
        except InferenceUnreachable:
            self._api = None
            raise

    def _states(self, body: Json) -> tuple[Row, ...]:
        """The rows of v0. A loaded instance may have a row of its own beside the `not-loaded` one of the same id."""
        found: dict[str, Row] = {}
        data = self._server.rows_of(body, "data", "id")
        known = {str(item["id"]) for item in data}
        for item in data:
            row = self._state_row(item, known)
            before = found.get(row.id)
            if before is None or _STATES.index(row.state) < _STATES.index(before.state):
                found[row.id] = row
        return tuple(found.values())

    def _state_row(self, item: Json, known: set[str]) -> Row:
        name, state = str(item["id"]), item.get("state")
        if state not in _STATES:
            raise self._server.protocol_error(f"lists {name!r} in a state that means nothing here: {state!r}")
        return Row(
            id=name,
            model=base_of(name, known),
            state=state,
            context_tokens=count_at(item, "loaded_context_length") if state == "loaded" else None,
            max_context_tokens=count_at(item, "max_context_length"),
            kind=kind_of(text_at(item, "type"), name, text_at(item, "arch")),
        )

    def _models(self, body: Json) -> list[tuple[Row, list[Row]]]:
        """The models of v1, each with its loaded instances."""
        return [self._model(item) for item in self._server.rows_of(body, "models", "key")]

    def _model(self, item: Json) -> tuple[Row, list[Row]]:
        key = str(item["key"])
        model = Row(
            id=key,
            model=key,
            file_mib=mib_at(item, "size_bytes"),
            max_context_tokens=count_at(item, "max_context_length"),
            kind=kind_of(text_at(item, "type"), key, text_at(item, "architecture")),
        )
        instances = self._server.rows_of(item, "loaded_instances", "id")
        return model, [
            replace(model, id=str(each["id"]), state="loaded", context_tokens=count_at(object_at(each, "config"), "context_length"))
            for each in instances
        ]

    def _merged(self, states: Sequence[Row], models: Sequence[tuple[Row, list[Row]]]) -> tuple[Row, ...]:
        """v1 tells what is loaded, v0 what is loading. Where they contradict each other nothing is known."""
        by_id = {row.id: row for row in states}
        rows: dict[str, Row] = {}
        for model, instances in models:
            rows.update((each.id, each) for each in instances)
            told = by_id.get(model.id)
            if model.id in rows:
                continue
            if told is not None and told.state == "loaded" and not instances:
                message = f"{self.url} says of {model.id!r} both that it is loaded and that it is not. Look into the server's log."
                raise StateUnknown(message, server=self.url, cause="contradiction")
            rows[model.id] = replace(model, state="loading") if told is not None and told.state == "loading" else model
        rows.update((row.id, row) for row in states if row.id not in rows)
        return tuple(rows.values())

    # ---- load, unload

    async def load(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        """Blocks until the server has loaded it."""
        body: Json = {"model": model} if context_tokens is None else {"model": model, "context_length": context_tokens}
        answer = await self._server.ask(f"{await self._base()}/load", body, timeout_s=LOAD_S)
        status, instance = answer.get("status"), answer.get("instance_id")
        if status not in (None, "loaded"):
            raise self._server.protocol_error(f"answered a load with the status {status!r}")
        return instance if isinstance(instance, str) else None

    async def unload(self, row: Row) -> None:
        api = await self._detected()
        body = {"instance_id": row.id} if api.has_v1 else {"model": row.id}
        await self._server.ask(f"{await self._base()}/unload", body, timeout_s=UNLOAD_S)

    async def _base(self) -> str:
        base = (await self._detected()).base
        assert base is not None, "asked of a server that declares neither load nor unload"
        return base


def _is_absent(fault: BackendFault) -> bool:
    """Whether the server has no such endpoint: it says so under status 200, newer ones under 404."""
    return fault.details.get("status") in (404, 405) or "unexpected endpoint" in str(fault.details.get("upstream", "")).lower()
