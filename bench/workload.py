"""The run that is measured: a conversation of model calls, with tool calls in between where asked for.

Its topology is ordinary code over the run context; what it writes has the sizes of a coder's turns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import orjson

from services.orchestrator.durable.context import Ask, Run
from services.orchestrator.durable.execution import Outcome
from shared.events.content import Budgets, FileChange, MessageRef, Sampling, ToolCall, Usage
from shared.events.envelope import Event, Fact
from shared.events.llm import LlmCompleted
from shared.events.run import LlmRequested, ToolRequested
from shared.events.tool import ToolCompleted, ToolStarted
from shared.ids import place_id
from shared.template import Node, Template
from shared.transcript import reference

SHA = "0123456789abcdef" * 4
SOURCE = "def is_prime(n: int) -> bool:\n    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n"
TEMPLATE = Template(id="bench", name="Bench", nodes=(Node(id="coder", name="Coder", system_prompt="You are a coder."),))
UNBOUNDED = Budgets(model_calls=1_000_000, tokens=10**12, tool_calls=1_000_000, wall_s=86_400.0)  # set, so that each is checked


@dataclass(frozen=True, slots=True)
class Plan:
    """How many turns a run takes; it travels as the run's message. A turn with tools is two effects."""

    turns: int
    tools: bool = False

    def as_message(self) -> str:
        return orjson.dumps({"turns": self.turns, "tools": self.tools}).decode()

    @classmethod
    def of(cls, message: str) -> Plan:
        return cls(**orjson.loads(message))


@dataclass
class Workload:
    """The topology, and how long each of its effects took."""

    taken_ms: list[float] = field(default_factory=list[float])

    async def __call__(self, run: Run) -> Outcome:
        plan = Plan.of(run.submission.message)
        task = await run.message("task", "coder", "user", "Write primes.py that prints the prime numbers below 100.")
        before: Fact | None = None
        adds: tuple[MessageRef, ...] = (reference(task),)
        for turn in range(1, plan.turns + 1):
            here = run.at(f"turn-{turn}")
            ask = Ask("coder", turn, adds, before, sampling=Sampling(temperature=0.0, max_tokens=1024), estimate_tokens=500)
            began = time.perf_counter()
            reply = await here.llm("llm", ask)
            self.taken_ms.append((time.perf_counter() - began) * 1000)
            before, adds = here.request_at("llm"), (reference(reply),)
            if plan.tools:
                adds += (reference(await self._act(here, turn)),)
        return Outcome("done")

    async def _act(self, here: Run, turn: int) -> Fact:
        call = call_of(here.run_id, f"{here.path}/llm", turn)
        began = time.perf_counter()
        fact = await here.tool(f"tool/{call.call_id}", "coder", call)
        self.taken_ms.append((time.perf_counter() - began) * 1000)
        return fact


def call_of(run_id: str, key: str, turn: int) -> ToolCall:
    """The tool call that the model makes in a turn: it writes a small file."""
    call_id = place_id("call", run_id, key, "1")
    return ToolCall(call_id=call_id, name="write_file", arguments={"path": f"step_{turn}.py", "content": SOURCE})


def model_answer(run_id: str, request: LlmRequested) -> LlmCompleted:
    """What the answering process says to a model call."""
    return LlmCompleted(
        call_id=request.call_id,
        content="I'll write the program first, then run it and look at what it prints.",
        tool_calls=(call_of(run_id, request.key, request.turn),),
        model="qwen2.5-coder-1.5b-instruct",
        slot="primary",
        usage=Usage(prompt_tokens=1200, completion_tokens=96),
        prompt_sha256=SHA,
        queued_ms=0.1,
        first_token_ms=12.5,
        duration_ms=412.25,
    )


def tool_claim(request: ToolRequested) -> ToolStarted:
    return ToolStarted(call_id=request.call_id, tool=request.tool, server="workspace", owner="tools-0")


def tool_answer(request: ToolRequested) -> ToolCompleted:
    path = str(request.arguments.get("path", "a.py"))
    change = FileChange(path=path, after_sha256=SHA)
    return ToolCompleted(
        call_id=request.call_id, tool=request.tool, content=f"wrote {path} (98 bytes)", changes=(change,), duration_ms=3.25
    )


def facts_of_turn(run_id: str, turn: int, after: int) -> list[tuple[str, Event]]:
    """The five facts of one turn with its domains, as the topology and the worker write them; `after` = a sequence to refer to."""
    key = f"turn-{turn}/llm"
    ref = MessageRef(seq=after, digest=SHA[:16])
    asked = LlmRequested(
        key=key,
        call_id=place_id("llm", run_id, key),
        agent="coder",
        turn=turn,
        extends=after,
        adds=(ref, ref),
        sampling=Sampling(temperature=0.0, max_tokens=1024),
        prefix_digest=SHA[:16],
    )
    call = call_of(run_id, key, turn)
    acted = ToolRequested(
        key=f"turn-{turn}/tool/{call.call_id}", call_id=call.call_id, agent="coder", tool=call.name, arguments=call.arguments
    )
    return [
        ("run", asked),
        ("llm", model_answer(run_id, asked)),
        ("run", acted),
        ("tool", tool_claim(acted)),
        ("tool", tool_answer(acted)),
    ]
