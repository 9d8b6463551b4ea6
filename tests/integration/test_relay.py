"""Chat clients and runs on one card: the official client, the gateway, a scheduler process and LM Studio's wire format (S17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from services.gateway import web
from services.gateway.app import compose, listen, server_of
from shared.config import Settings
from shared.process import opened
from simulators.openai_server import CLIENT_LEFT, SERVED
from tests.integration.test_standby import MODEL, Box, box
from tests.requirements import covers
from tests.support.waiting import until

SAY: Any = [{"role": "user", "content": "Talk for ever."}]
LONG: list[Any] = [{"content": "word " * 2000, "delay_s": 0.02}]
TURNS: Any = {"conversations": [{"match": "Talk for ever", "turns": LONG}, {"turns": [{"content": "Good day."}]}]}


@asynccontextmanager
async def chatting(made: Box) -> AsyncGenerator[openai.AsyncOpenAI]:
    """A client of a gateway in front of the box."""
    slots = {"primary": {"url": made.studio_url, "kind": "lm-studio", "models": {MODEL: {}}}}
    settings = Settings.model_validate({"nats": {"url": made.url}, "data_dir": made.folder, "scheduler": {"slots": slots}})
    async with opened("gateway", settings) as own:
        gateway = compose(own)
        listener = listen("127.0.0.1", 0)
        server = server_of(gateway, web.nothing_missing)
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            yield client
        gateway.feed.close()
        server.should_exit = True
        await serving
        await gateway.relay.close()


@covers("relay.refuses", "relay.resolve", "relay.stops")
async def test_a_chat_uses_what_is_loaded_and_gives_way_to_a_run(tmp_path: Path) -> None:
    async with asyncio.timeout(60), box(tmp_path, replies=TURNS) as made:
        scheduler = await made.start("0")
        await until(lambda: made.is_held_by(scheduler))
        async with chatting(made) as client:
            ask = client.chat.completions.create
            await until(lambda: _lists(client))
            with pytest.raises(openai.BadRequestError, match="model is not loaded"):
                await ask(model=MODEL, messages=SAY)
            with pytest.raises(openai.BadRequestError, match="model 'other' not found"):
                await ask(model="other", messages=SAY)
            assert made.studio.card.loads == []  # a chat loads nothing

            made.studio.control({"load": MODEL})  # somebody does, by hand
            answer = await ask(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
            assert answer.choices[0].message.content == "Good day."

            stream = aiter(await ask(model=MODEL, messages=SAY, stream=True))
            await anext(stream)
            await made.ask("call-1")
            with pytest.raises(openai.APIError, match="the card was given to a run"):
                async for _ in stream:
                    pass
            await until(lambda: made.answers("call-1"))
            with pytest.raises(openai.BadRequestError, match="model is not loaded"):  # the run goes on, and has the slot
                await ask(model=MODEL, messages=SAY)
            await until(lambda: [each.outcome for each in made.studio.requests] == [SERVED, CLIENT_LEFT, SERVED])
            assert made.studio.card.loads == [MODEL]


async def _lists(client: openai.AsyncOpenAI) -> bool:
    """Whether the scheduler answers, and has seen what the server lists."""
    try:
        return [model.id async for model in client.models.list()] == [MODEL]
    except openai.APIStatusError:
        return False
