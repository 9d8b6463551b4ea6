"""A conversation of 400 model calls is one run, costs the log the same for each call, and can be rebuilt byte for byte."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

from shared import subjects
from shared.config import InferenceSettings
from shared.eventlog import NatsEventLog
from shared.events.llm import LlmCompleted
from shared.events.run import LlmRequested
from shared.prompt import rebuild
from shared.runstate import Status
from shared.transcript import prompt_bytes
from simulators import testing
from tests.e2e.engine import TEMPLATE, opened, settings_in, write_template
from tests.requirements import covers

CALLS = 400
SAID = 1_000  # characters of each turn's text
READ = 1_000  # and of what its tool answers
TOKENS = 200_000
CHARS_PER_TOKEN = 4
FROM = 50  # the first call whose cost counts: before, the digits of numbers still grow
SPREAD = 0.10

TURN: dict[str, Any] = {
    "content": "turn ${turn} " + "says a lot, " * (SAID // 12),
    "tool_calls": [{"name": "read_file", "arguments": {"path": "page.txt"}}],
    "times": CALLS - 1,
    "chunk": 4096,
}
UNBOUNDED = {"modelCalls": 10_000, "toolCalls": 10_000, "tokens": 1_000_000_000, "wallS": 600}


async def sizes_of(log: NatsEventLog, run_id: str, last: int) -> dict[int, int]:
    """The bytes of each message of a run as it is stored, by sequence."""
    sizes: dict[int, int] = {}
    subscription = await log.bus.client.jetstream().subscribe(subjects.of_run(run_id), ordered_consumer=True)  # pyright: ignore[reportUnknownMemberType]
    while max(sizes, default=0) < last:
        message = await subscription.next_msg(timeout=5)
        headers = sum(len(name) + len(value) + 4 for name, value in (message.headers or {}).items())
        sizes[message.metadata.sequence.stream] = len(message.subject) + headers + len(message.data)
    await subscription.unsubscribe()
    return sizes


@covers("run.long_conversation", "run.prompt_rebuilt")
async def test_a_conversation_of_400_calls_costs_the_same_for_each_and_is_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    write_template(
        tmp_path,
        {
            **TEMPLATE,
            "id": "long",
            "context_window": 1_000_000,
            "nodes": [{**TEMPLATE["nodes"][0], "tools": ["read_file"]}],
            "circuit_breaker": {"max_turns_per_agent": CALLS, "infinite_loop_threshold": CALLS},
        },
    )
    workspace = tmp_path / "workspaces" / "1"
    workspace.mkdir(parents=True)
    (workspace / "page.txt").write_text("word " * (READ // 5))
    async with testing.running({"turns": [TURN, {"content": "That was long."}]}) as model:
        model.app.keep = 2
        inference = InferenceSettings(url=model.url, detect=False, local_model=False)
        async with opened(settings_in(tmp_path, inference=inference)) as engine:
            ended = await engine.run("Talk.", template="long", within_s=240, budgets=UNBOUNDED)
            assert (ended.status, ended.response) == (Status.COMPLETED, "That was long."), ended.reason
            facts = await engine.facts(ended.run_guid)
            sizes = await sizes_of(engine.log, ended.run_guid, facts[-1].seq)
            asked = [fact for fact in facts if isinstance(fact.event, LlmRequested)]
            prompt = await rebuild(engine.log, asked[-1])
    assert len(asked) == CALLS

    said = prompt.as_bytes()
    assert len(said) >= TOKENS * CHARS_PER_TOKEN
    last = asked[-1].event
    assert isinstance(last, LlmRequested)
    (answer,) = [fact.event for fact in facts if isinstance(fact.event, LlmCompleted) and fact.event.call_id == last.call_id]
    assert hashlib.sha256(said).hexdigest() == answer.prompt_sha256
    received = model.requests[-1].body
    assert prompt_bytes(received["messages"], received["tools"]) == said

    costs = [sum(size for seq, size in sizes.items() if here.seq <= seq < after.seq) for here, after in pairwise(asked)]
    counted = costs[FROM - 1 :]
    assert max(counted) <= min(counted) * (1 + SPREAD), (min(counted), max(counted))
    assert sum(sizes.values()) < CALLS * max(counted) * 1.1
