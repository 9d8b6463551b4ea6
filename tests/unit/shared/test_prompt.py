"""A prompt is rebuilt from the log as the model saw it."""

from __future__ import annotations

import pytest

from shared.errors import BadInput, NotFound
from shared.events.content import MessageRef, ToolCall
from shared.events.envelope import Event, Fact
from shared.events.llm import LlmCompleted
from shared.events.run import LlmRequested, MessageAdded, RunStarted, ToolsOffered
from shared.events.tool import ToolCompleted
from shared.prompt import rebuild
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog
from shared.transcript import Message, reference
from tests.requirements import covers

SCHEMA = {"type": "function", "function": {"name": "list_files", "parameters": {}}}
CALL = ToolCall(call_id="call_1", name="list_files", arguments={"path": "."})


async def put(log: MemoryLog, event: Event, run: str = "r1") -> Fact:
    aggregate = Aggregate(event.TYPE.split(".")[0], run)
    newest = await log.last(aggregate.filter)
    return (await log.append(aggregate, [event], after=newest.seq if newest else 0))[0]


async def ask(log: MemoryLog, *adds: Fact, extends: Fact | None = None, tools: Fact | None = None) -> Fact:
    request = LlmRequested(
        key="k",
        call_id="c",
        agent="coder",
        extends=extends.seq if extends else None,
        adds=tuple(reference(fact) for fact in adds),
        tools_seq=tools.seq if tools else None,
    )
    return await put(log, request)


class Conversation:
    """Two calls: the second extends the first with an answer, a tool result and a remark."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    async def play(self) -> tuple[Fact, Fact]:
        log = self.log
        system = await put(log, MessageAdded(key="s", agent="coder", role="system", content="You code."))
        user = await put(log, MessageAdded(key="u", agent="coder", role="user", content="Look around."))
        tools = await put(log, ToolsOffered(key="t", agent="coder", tools=(SCHEMA,)))
        first = await ask(log, system, user, tools=tools)
        answer = await put(log, LlmCompleted(call_id="c", content="Looking.", tool_calls=(CALL,)))
        result = await put(log, ToolCompleted(call_id="call_1", tool="list_files", content="a.py"))
        remark = await put(log, MessageAdded(key="n", agent="coder", role="user", content="Go on."))
        return first, await ask(log, answer, result, remark, extends=first, tools=tools)


EXPECTED: list[Message] = [
    {"role": "system", "content": "You code."},
    {"role": "user", "content": "Look around."},
    {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "list_files", "arguments": '{"path":"."}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
    {"role": "user", "content": "Go on."},
]


@covers("run.prompt_rebuilt")
async def test_a_prompt_holds_all_messages_along_its_chain_and_its_tools() -> None:
    log = MemoryLog()
    first, second = await Conversation(log).play()
    assert (await rebuild(log, first)).messages == EXPECTED[:2]
    prompt = await rebuild(log, second)
    assert prompt.messages == EXPECTED
    assert prompt.tools == [SCHEMA]


async def test_a_call_that_extends_nothing_starts_a_new_list() -> None:
    log = MemoryLog()
    await Conversation(log).play()
    summary = await put(log, MessageAdded(key="sum", agent="coder", role="user", content="So far: one file."))
    assert (await rebuild(log, await ask(log, summary))).messages == [{"role": "user", "content": "So far: one file."}]


@covers("run.prompt_rebuilt")
async def test_the_cache_gives_the_same_bytes_and_spares_the_log() -> None:
    log = MemoryLog()
    first, second = await Conversation(log).play()
    plain = (await rebuild(log, second)).as_bytes()
    cache: dict[int, list[Message]] = {}
    before = list((await rebuild(log, first, cache)).messages)
    assert (await rebuild(log, second, cache)).as_bytes() == plain
    assert cache[first.seq] == before, "a cached prefix is never changed in place"

    class Deaf:
        async def get(self, seq: int) -> Fact:
            fact = await log.get(seq)
            assert isinstance(fact.event, ToolsOffered), f"read fact {seq} although it is cached"
            return fact

    assert (await rebuild(Deaf(), second, cache)).as_bytes() == plain


async def test_a_fact_that_asks_for_no_call_is_refused() -> None:
    log = MemoryLog()
    started = await put(log, RunStarted(owner="o", engine="1"))
    with pytest.raises(BadInput, match=r"run\.started"):
        await rebuild(log, started)


async def test_a_reference_to_no_message_or_to_nothing_is_named() -> None:
    log = MemoryLog()
    started = await put(log, RunStarted(owner="o", engine="1"))
    wrong = await put(log, LlmRequested(key="k", call_id="c", agent="a", adds=(MessageRef(seq=started.seq, digest=""),)))
    with pytest.raises(BadInput, match=r"fact 1 \(run\.started\)"):
        await rebuild(log, wrong)
    missing = await put(log, LlmRequested(key="k", call_id="c", agent="a", adds=(MessageRef(seq=999, digest=""),)))
    with pytest.raises(NotFound, match="999"):
        await rebuild(log, missing)


async def test_a_chain_that_bites_its_tail_is_refused() -> None:
    log = MemoryLog()
    loop = await put(log, LlmRequested(key="k", call_id="c", agent="a", extends=1))
    with pytest.raises(BadInput, match="not before it"):
        await rebuild(log, loop)
