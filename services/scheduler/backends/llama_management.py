"""llama-server's management: its router loads and unloads models; a server of one model only tells whether that is loaded."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from services.scheduler.backends.base import Json
from services.scheduler.backends.faults import BackendRefused, ModelLoading, ModelUnknown, NoRoom, Overloaded
from services.scheduler.backends.fields import count_at, mib_at, object_at, text_at, texts_at
from services.scheduler.backends.http import HttpServer
from services.scheduler.backends.management import Can, ModelState, Row, kind_of

_ASK_S = 30.0  # load and unload answer at once; waking a model does not
_WAKE_S = 600.0
_RUNNING = "already running"
_STATUS: dict[str, ModelState] = {
    "loaded": "loaded",
    "loading": "loading",
    "unloaded": "not-loaded",
    "sleeping": "not-loaded",
    "downloading": "not-loaded",
    "downloaded": "not-loaded",
}


class LlamaDialect:
    """Both modes; which one it is, is told by `/props` and asked again after the server was away."""

    def __init__(self, url: str, *, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._server = HttpServer(url, api_key=api_key, transport=transport)
        self._single: tuple[Row, ...] = ()  # as last listed: a server that loads does not tell what

    @property
    def url(self) -> str:
        return self._server.url

    async def close(self) -> None:
        await self._server.close()

    async def can(self) -> Can:
        props = await self._props()
        if props.get("role") != "router":
            return Can(lists_states=True, lists_all=True)
        # 0 means without limit. The router takes a further load by unloading the model that was used longest ago.
        limit = count_at(props, "max_instances")
        return Can(lists_states=True, load=True, unload=True, lists_all=True, unloads_later=True, max_models=limit)

    async def _props(self) -> Json:
        try:
            return await self._server.get("/props")
        except ModelLoading:  # a router never loads
            return {}

    async def listing(self) -> tuple[Row, ...]:
        props = await self._props()
        if props.get("role") == "router":
            return tuple(self._router_row(item) for item in self._server.rows_of(await self._server.get("/models"), "data", "id"))
        return await self._one_model(props)

    # ---- router

    def _router_row(self, item: Json) -> Row:
        name, status, meta = str(item["id"]), object_at(item, "status"), object_at(item, "meta")
        state = _STATUS.get(text_at(status, "value"))
        if state is None:
            raise self._server.protocol_error(f"lists {name!r} with a status that means nothing here: {status.get('value')!r}")
        return Row(
            id=name,
            model=name,
            state=state,
            file_mib=mib_at(meta, "size"),
            context_tokens=count_at(meta, "n_ctx"),  # of one slot
            max_context_tokens=count_at(meta, "n_ctx_train"),
            kind=kind_of("", name),
            aliases=texts_at(item, "aliases"),
            failed=f"its process ended with exit code {status.get('exit_code')}" if status.get("failed") else "",
            asleep=status.get("value") == "sleeping",
        )

    async def load(self, row: Row | None, model: str, context_tokens: int | None) -> str | None:
        """Begin a load; the context is that of the server's preset. A model that sleeps is woken instead.

        Raises:
            ModelUnknown: the router has no such model (its 404 says only "File Not Found").
            NoRoom: it holds as many as it may, and all are answering.
        """
        name = row.id if row is not None else model
        if row is not None and row.asleep:
            await self._server.get(f"/props?model={quote(name, safe='')}", timeout_s=_WAKE_S)
            return name
        try:
            await self._server.ask("/models/load", {"model": name}, timeout_s=_ASK_S)
        except Overloaded as fault:
            raise NoRoom(f"{fault.message} Every model of {self.url} is answering.", server=self.url) from fault
        except BackendRefused as fault:
            if fault.details.get("status") == 404:
                raise ModelUnknown(f"{self.url} has no model {name!r}.", server=self.url, model=name) from fault
            if _RUNNING not in fault.message:
                raise
        return name

    async def unload(self, row: Row) -> None:
        await self._server.ask("/models/unload", {"model": row.id}, timeout_s=_ASK_S)

    # ---- one model

    async def _one_model(self, props: Json) -> tuple[Row, ...]:
        """The model list may answer before the model does: `/health` decides (case RW-09)."""
        is_loading = not props or await self._is_loading()
        context = count_at(object_at(props, "default_generation_settings"), "n_ctx")  # of one slot
        try:
            items = self._server.rows_of(await self._server.get("/v1/models"), "data", "id")
        except ModelLoading:
            if not self._single:
                raise
            return tuple(Row(id=row.id, model=row.model, state="loading", kind=row.kind, aliases=row.aliases) for row in self._single)
        self._single = tuple(self._single_row(item, context, is_loading=is_loading) for item in items)
        return self._single

    async def _is_loading(self) -> bool:
        try:
            await self._server.get("/health")
        except ModelLoading:
            return True
        return False

    def _single_row(self, item: Json, context: int | None, *, is_loading: bool) -> Row:
        name, meta = str(item["id"]), object_at(item, "meta")
        return Row(
            id=name,
            model=name,
            state="loading" if is_loading else "loaded",
            file_mib=mib_at(meta, "size"),
            context_tokens=None if is_loading else context,
            max_context_tokens=count_at(meta, "n_ctx_train"),
            kind=kind_of("", name),
            aliases=texts_at(item, "aliases"),
        )
