from __future__ import annotations

from bench import instant_model
from services.scheduler.backends.base import ChatRequest
from services.scheduler.backends.choose import choose


async def test_the_instant_server_is_read_as_a_whole_streamed_answer() -> None:
    async with instant_model.running() as url:
        backend = await choose(url, "auto")
        reply = await backend.chat(ChatRequest(messages=[{"role": "user", "content": "hi"}], model=None))
        assert (await backend.healthy()).state == "ready"
        await backend.close()
    assert reply.content == "".join(instant_model.PIECES)
    assert (reply.finish_reason, reply.usage.completion_tokens) == ("stop", len(instant_model.PIECES))
