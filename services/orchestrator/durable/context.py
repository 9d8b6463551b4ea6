"""The run context: all that a topology sees of the world.

Every effect has a key that names its place and is used once. What the log already holds is returned
from there; what it does not is appended and waited for. A request whose recorded shape differs raises
`NonDeterminism` with both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from services.orchestrator.durable import budgets
from services.orchestrator.durable.faults import BudgetExhausted, ModelCallFailed, NonDeterminism
from services.orchestrator.durable.history import place_of
from services.orchestrator.durable.journal import Journal
from shared.clock import Clock
from shared.events import llm, run
from shared.events.content import MessageRef, Sampling, ToolCall
from shared.events.envelope import Event, Fact
from shared.ids import place_id
from shared.template import Node, Template
from shared.transcript import extend_digest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """Tool schemas as offered to an agent: the fact that holds them, and what the loop needs of them."""

    seq: int
    tools: tuple[dict[str, Any], ...]
    read_only: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(tool["function"]["name"]) for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Ask:
    """A model call: what it extends, what it adds, and how it is sampled."""

    agent: str
    turn: int
    adds: tuple[MessageRef, ...]
    extends: Fact | None = None
    tools_seq: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    model: str | None = None
    slot: str | None = None
    response_format: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    timeout_s: float = 600.0
    estimate_tokens: int = 0


class Sources(Protocol):
    """What a run is told by other services at its start, recorded once and then kept."""

    async def tools(self, node: Node) -> run.ToolsOffered:
        """The tools that a node may use."""
        ...

    async def model(self, node: Node, model: str | None) -> run.ModelProfiled:
        """What is known of the model that the node's calls will reach."""
        ...


@dataclass
class World:
    """What all scopes of one execution share."""

    journal: Journal
    template: Template
    clock: Clock
    sources: Sources
    used: set[str] = field(default_factory=set[str])
    touched: set[int] = field(default_factory=set[int])
    warned: set[str] = field(default_factory=set[str])


@dataclass
class Run:
    """A scope of a run's code. Sub-scopes name places: `run.at("turn-2").at("tool")`."""

    world: World
    path: str = ""
    parent: Run | None = None
    _now: datetime | None = None

    # ---- what is known without an effect

    @property
    def run_id(self) -> str:
        return self.world.journal.history.run_id

    @property
    def submission(self) -> run.RunSubmitted:
        return self.world.journal.history.submission

    @property
    def template(self) -> Template:
        return self.world.template

    def at(self, name: str) -> Run:
        """A scope below this one."""
        return Run(self.world, f"{self.path}/{name}" if self.path else name, self, self.now())

    def now(self) -> datetime:
        """The time of the last fact that this scope, or one inside it, consumed. Never the wall clock."""
        if self._now is None:
            started = self.world.journal.history.started or self.world.journal.history.submitted
            assert started is not None
            self._now = started.time
        return self._now

    def fresh_id(self, key: str) -> str:
        """An id that is random to others and the same in every replay."""
        return place_id("id", self.run_id, self._place(key))

    # ---- effects

    async def message(self, key: str, agent: str, role: str, content: str, *, answers: str | None = None) -> Fact:
        """A message of a conversation that no other fact holds; `answers` = the tool call it stands for."""
        return await self._record(run.MessageAdded(key=self._place(key), agent=agent, role=role, content=content, tool_call_id=answers))

    async def offer_tools(self, key: str, node: Node) -> Offer:
        """The schemas of the tools that an agent may use, read from the tools service once and then kept."""
        place = self._once("run.tools_offered", key)
        fact = self._recorded(("run.tools_offered", place))
        if fact is None:
            offered = await self.world.sources.tools(node)
            fact = await self._append(offered.model_copy(update={"key": place, "agent": node.id}))
        assert isinstance(fact.event, run.ToolsOffered)
        return Offer(fact.seq, fact.event.tools, frozenset(fact.event.read_only))

    async def profile(self, key: str, node: Node) -> run.ModelProfiled:
        """What the scheduler knows of the node's model, asked once and then kept."""
        place = self._once("run.model_profiled", key)
        fact = self._recorded(("run.model_profiled", place))
        if fact is None:
            told = await self.world.sources.model(node, self.submission.model or node.model)
            fact = await self._append(told.model_copy(update={"key": place, "agent": node.id}))
        assert isinstance(fact.event, run.ModelProfiled)
        return fact.event

    async def llm(self, key: str, ask: Ask) -> Fact:
        """A model call; gives the fact that holds the answer.

        Raises:
            ModelCallFailed: the scheduler gave up.
            BudgetExhausted: a hard budget does not allow the call.
        """
        place = self._once("call", key)
        fact = await self._call(
            place,
            self._llm_request(place, ask),
            lambda: budgets.refusal_of_model_call(
                self.submission.budgets,
                self.world.journal.history.spending.spent,
                ask.estimate_tokens + (ask.sampling.max_tokens or 0),
            ),
        )
        if isinstance(fact.event, llm.LlmFailed):
            raise ModelCallFailed(fact.event.message, code=fact.event.code, seq=fact.seq)
        return fact

    def _llm_request(self, place: str, ask: Ask) -> run.LlmRequested:
        prefix = ""
        if ask.extends is not None:
            assert isinstance(ask.extends.event, run.LlmRequested)
            prefix = ask.extends.event.prefix_digest
        return run.LlmRequested(
            key=place,
            call_id=place_id("llm", self.run_id, place),
            agent=ask.agent,
            turn=ask.turn,
            extends=ask.extends.seq if ask.extends else None,
            adds=ask.adds,
            tools_seq=ask.tools_seq,
            model=ask.model,
            slot=ask.slot,
            sampling=ask.sampling,
            response_format=ask.response_format,
            stop=ask.stop,
            prefix_digest=extend_digest(prefix, ask.adds),
            timeout_s=ask.timeout_s,
        )

    def request_at(self, key: str) -> Fact:
        """The request fact of a call that this scope has made."""
        return self.world.journal.history.at["call", self._place(key)]

    async def tool(self, key: str, agent: str, call: ToolCall) -> Fact:
        """A tool call; gives the fact of `tool.<run>` that ended it, whatever the end was.

        Raises:
            BudgetExhausted: a hard budget does not allow the call.
        """
        place = self._once("call", key)
        request = run.ToolRequested(key=place, call_id=call.call_id, agent=agent, tool=call.name, arguments=call.arguments)
        return await self._call(
            place,
            request,
            lambda: budgets.refusal_of_tool_call(self.submission.budgets, self.world.journal.history.spending.spent),
        )

    async def note(self, key: str, tag: str, text: str) -> None:
        """Something that a reader of the run should know."""
        await self._record(run.Noted(key=self._place(key), tag=tag, text=text))

    async def step_started(self, agent: str, title: str) -> None:
        await self._record(run.StepStarted(key=self.path, agent=agent, title=title))

    async def step_completed(self, files: Sequence[str]) -> None:
        await self._record(run.StepCompleted(key=self.path, files=tuple(files)))

    async def step_failed(self, code: str, reason: str) -> None:
        await self._record(run.StepFailed(key=self.path, code=code, reason=reason))

    async def version(self, name: str, newest: int) -> int:
        """Which version of a changed code path this run follows: the newest, unless it began on an older one."""
        place = self._once("run.version_chosen", name)
        fact = self._recorded(("run.version_chosen", place))
        if fact is None:
            if self._is_past(place):
                return 1  # the run passed here before there was a choice
            fact = await self._append(run.VersionChosen(key=place, version=newest))
        assert isinstance(fact.event, run.VersionChosen)
        return fact.event.version

    async def sleep(self, key: str, seconds: float) -> None:
        """Wait on log time: the timer is a fact, and so is its firing."""
        place = self._place(key)
        timer = await self._record(run.TimerSet(key=place, fires_at=self.now() + timedelta(seconds=seconds)))
        fired = self.world.journal.history.fired.get(place)
        if fired is None:
            assert isinstance(timer.event, run.TimerSet)
            await self.world.clock.sleep((timer.event.fires_at - self.world.clock.now()).total_seconds())
            (fired,) = await self.world.journal.append(run.TimerFired(key=place))
        self._consumed(fired)

    async def together(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        """Run branches at the same time. One failure cancels and awaits the rest, and is raised by itself."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(branch) for branch in branches]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    # ---- how

    def _place(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    def _once(self, kind: str, key: str) -> str:
        place = self._place(key)
        if f"{kind}:{place}" in self.world.used:
            raise ValueError(f"the effect key {place!r} is used twice: a key names one place")
        self.world.used.add(f"{kind}:{place}")
        return place

    def _recorded(self, place: tuple[str, str]) -> Fact | None:
        fact = self.world.journal.history.at.get(place)
        if fact is not None:
            self.world.touched.add(fact.seq)
            self._consumed(fact)
        return fact

    async def _append(self, event: Event) -> Fact:
        (fact,) = await self.world.journal.append(event)
        self.world.touched.add(fact.seq)
        self._consumed(fact)
        return fact

    async def _record(self, event: Event) -> Fact:
        """A fact of the code's own, which nothing answers."""
        place = place_of(event)
        assert place is not None
        name = f"{place[0]}:{place[1]}"
        if name in self.world.used:
            raise ValueError(f"the effect key {place[1]!r} is used twice: a key names one place")
        self.world.used.add(name)
        fact = self._recorded(place)
        if fact is None:
            return await self._append(event)
        _same(fact, event)
        return fact

    async def _call(self, place: str, request: run.LlmRequested | run.ToolRequested, refuse: Callable[[], budgets.Refusal | None]) -> Fact:
        fact = self._recorded(("call", place))
        if fact is None:
            refusal = refuse()
            if refusal is None:
                fact = await self._append(request)
                await self._warn()
            else:
                fact = await self._append(run.BudgetRefused(key=place, budget=refusal.budget, limit=refusal.limit, used=refusal.used))
        if isinstance(fact.event, run.BudgetRefused):
            event = fact.event
            raise BudgetExhausted(f"the budget of {event.limit:g} {event.budget} is spent ({event.used:g} used)", budget=event.budget)
        _same(fact, request)
        answer = await self.world.journal.answer(request.call_id)
        self._consumed(answer)
        return answer

    async def _warn(self) -> None:
        history = self.world.journal.history
        for name, text in budgets.warnings(self.submission.budgets, history.spending.spent):
            key = f"budget/{name}"
            if name not in self.world.warned and ("run.noted", key) not in history.at:
                self.world.warned.add(name)
                await self.world.journal.append(run.Noted(key=key, tag="BUDGET", text=text))

    def _is_past(self, place: str) -> bool:
        """Whether the log already holds effects at or behind this scope, so that an older release was here."""
        scope = place.rpartition("/")[0]
        return any(
            key.startswith(f"{scope}/" if scope else "") and kind != "run.version_chosen" for kind, key in self.world.journal.history.at
        )

    def _consumed(self, fact: Fact) -> None:
        scope: Run | None = self
        while scope is not None:
            if scope.now() < fact.time:
                scope._now = fact.time
            scope = scope.parent


def _same(fact: Fact, wanted: Event) -> None:
    """Raise `NonDeterminism` unless the log holds what the code asks for."""
    held = fact.event
    if held is wanted or held == wanted:
        return
    if isinstance(held, run.LlmRequested) and isinstance(wanted, run.LlmRequested):
        for was, would in zip(held.adds, wanted.adds, strict=False):
            if was.seq == would.seq and was.digest != would.digest:
                raise NonDeterminism(
                    was.seq, f"fact {was.seq} does not read as the model saw it (digest {would.digest}, recorded {was.digest})"
                )
    raise NonDeterminism(fact.seq, f"fact {fact.seq} is {fact.type} {_difference(held, wanted)}")


def _difference(held: Event, wanted: Event) -> str:
    if type(held) is not type(wanted):
        return f"where the code now asks for {wanted.TYPE}"
    left, right = held.model_dump(mode="json"), wanted.model_dump(mode="json")
    names = [name for name in left if left[name] != right.get(name)]
    return "; ".join(f"{name}: recorded {str(left[name])[:200]!r}, now {str(right.get(name))[:200]!r}" for name in names)
