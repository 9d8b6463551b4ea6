"""The decision layer: a bounded question to a model that is loaded already; wherever that fails, the caller's rule holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.arbiter.commands import HoldCard
from services.scheduler.backends.base import ChatReply, ChatRequest, Health, ModelInfo, OnDelta
from services.scheduler.backends.faults import InferenceUnreachable
from services.scheduler.decision_layer import AT_ONCE, DecisionLayer
from services.scheduler.decisions import Place, chat_request, conclude, find_place, schema_of
from services.scheduler.invariants import violations
from services.scheduler.office import Office
from services.scheduler.slots import catalogue
from shared.config import DecisionSettings
from shared.decision_requests import DecisionRequest
from shared.errors import BadInput
from shared.events.content import Usage
from shared.events.decision import DecisionConcluded
from shared.scheduler_settings import RoleSettings
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryLog
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.scheduler.arbiter.world import BATCH, RUN, World, box, started
from tests.unit.scheduler.test_office import at_rest, at_work, granted, run_lease, servers

ASK: dict[str, Any] = {"caller": "test", "question": "Retry it?", "options": ["retry", "stop"], "fallback": "stop"}
ON = DecisionSettings(enabled=True)


def asked(**more: Any) -> DecisionRequest:
    return DecisionRequest.model_validate({**ASK, **more})


def says(choice: Any = "retry", confidence: Any = 90, **more: Any) -> str:
    return json.dumps({"reason": "it was the network", "choice": choice, "confidence": confidence, **more})


# ---- reading an answer


@covers("decisions.answer")
def test_a_readable_answer_that_is_sure_enough_decides() -> None:
    found = conclude(asked(), ChatReply(says()), 0.6)
    assert (found.choice, found.source, found.outcome, found.confidence) == ("retry", "model", "decided", 0.9)
    assert found.reason == "it was the network"


@covers("decisions.answer")
@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (ChatReply("Retry, I think."), "unreadable"),
        (ChatReply(f"```json\n{says()}\n```"), "unreadable"),
        (ChatReply(says()[:-1]), "unreadable"),
        (ChatReply(says(), finish_reason="length"), "unreadable"),
        (ChatReply(says("perhaps")), "unreadable"),
        (ChatReply(says(["retry"])), "unreadable"),
        (ChatReply(says(confidence=True)), "unreadable"),
        (ChatReply(says(confidence=101)), "unreadable"),
        (ChatReply(says(confidence=float("nan"))), "unreadable"),
        (ChatReply(says(confidence=None)), "unreadable"),
        (ChatReply("[]"), "unreadable"),
        (ChatReply("[" * 100_000), "unreadable"),
        (ChatReply(""), "unreadable"),
        (ChatReply(says(confidence=59)), "unsure"),
    ],
)
def test_any_other_answer_leaves_it_to_the_rule(reply: ChatReply, outcome: str) -> None:
    found = conclude(asked(), reply, 0.6)
    assert (found.choice, found.source, found.outcome) == ("stop", "rule", outcome)
    assert found.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
ANSWERS = (
    st.text()
    | JSON.map(json.dumps)
    | st.fixed_dictionaries({}, optional={"choice": JSON | st.just("retry"), "confidence": JSON}).map(json.dumps)
)


@covers("decisions.answer")
@given(ANSWERS, st.sampled_from(["stop", "length"]), st.floats(0, 1))
def test_whatever_a_model_writes_one_of_the_options_comes_back_and_a_model_only_decides_when_it_is_sure(
    text: str, finish: str, bound: float
) -> None:
    found = conclude(asked(), ChatReply(text, finish_reason=finish), bound)
    assert found.choice in ASK["options"]
    assert found.source == "rule" or (finish == "stop" and found.confidence is not None and found.confidence >= bound)
    assert found.source == "model" or found.choice == ASK["fallback"]


@covers("decisions.answer")
@given(st.lists(st.text(min_size=1).map(str.strip).filter(bool), min_size=2, max_size=12, unique=True), st.integers(0, 100))
def test_what_the_schema_lets_through_can_be_read(options: list[str], confidence: int) -> None:
    for option in options:
        answer = {"reason": "so", "choice": option, "confidence": confidence}
        jsonschema.validate(answer, schema_of(tuple(options)))
        request = DecisionRequest.model_construct(**{**ASK, "options": tuple(options), "fallback": options[0]})
        assert conclude(request, ChatReply(json.dumps(answer)), 0.0).outcome == "decided"


@covers("decisions.answer")
def test_the_question_is_bounded_and_without_chance() -> None:
    request = chat_request(asked(context="two failures in a row"), "std", 7.0)
    assert (request.temperature, request.timeout_s, request.max_tokens, request.tools) == (0.0, 7.0, 300, ())
    assert request.response_format is not None
    assert request.response_format["json_schema"]["schema"]["properties"]["choice"]["enum"] == ["retry", "stop"]
    text = request.messages[1]["content"]
    assert "Retry it?" in text
    assert "two failures in a row" in text
    assert "- retry\n- stop" in text


@covers("decisions.answer")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"options": ["retry"]}, "options"),
        ({"options": ["a", "a"], "fallback": "a"}, "options"),
        ({"options": [str(n) for n in range(13)]}, "options"),
        ({"fallback": "perhaps"}, "fallback"),
        ({"question": " "}, "question"),
        ({"question": "x" * 2001}, "question"),
        ({"context": "x" * 8001}, "context"),
        ({"caller": ""}, "caller"),
        ({"timeoutS": 0}, "timeoutS"),
        ({"color": "red"}, "color"),
    ],
)
async def test_a_wrong_question_is_refused_by_its_field_though_the_layer_is_off(wrong: dict[str, Any], field: str) -> None:
    layer = DecisionLayer(DecisionSettings(), Office(MemoryLog(), catalogue(box()), {}, FakeClock()), {}, MemoryLog())
    with pytest.raises(BadInput) as raised:
        await layer.verb({**ASK, **wrong})
    assert str(raised.value.details["field"]).startswith(field)


# ---- where


def placed(world: World, wanted: str | None = None, down: frozenset[str] = frozenset()) -> Place | str:
    return find_place(world.state, down, wanted)


@covers("decisions.resident")
def test_a_model_that_is_loaded_on_the_roles_slot_is_asked_and_never_the_embedding_model() -> None:
    world = started()
    world.put("primary", "tiny")
    world.probe()
    assert placed(world) == Place("primary", "std")
    assert placed(world, "tiny") == Place("primary", "tiny")
    assert "embed is not loaded on primary" in str(placed(world, "embed"))
    assert "big is not loaded" in str(placed(world, "big"))


@covers("decisions.resident")
def test_alternates_are_asked_unless_the_role_is_pinned() -> None:
    world = started()
    world.put("secondary", "coder")
    world.probe()
    assert placed(world, "coder") == Place("secondary", "coder")
    assert placed(world, down=frozenset({"primary"})) == Place("secondary", "coder")
    pinned = started(role_placement={"decision": RoleSettings(slot="primary", pinned=True)})
    pinned.put("secondary", "coder")
    pinned.probe()
    assert "no model" in str(placed(pinned, down=frozenset({"primary"})))
    assert placed(pinned) == Place("primary", "std")


@covers("decisions.resident")
def test_without_slots_there_is_nobody_to_ask() -> None:
    assert "set scheduler.slots" in str(find_place(World(catalogue(box(slots={}))).state, (), None))


# ---- at work


@dataclass
class Answering:
    """A backend that answers what it is told to, once it may."""

    text: str = field(default_factory=says)
    error: Exception | None = None
    going: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[ChatRequest] = field(default_factory=list[ChatRequest])
    cancelled: int = 0
    name: str = "answering"

    def __post_init__(self) -> None:
        self.going.set()

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        self.asked.append(request)
        try:
            await self.going.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return ChatReply(self.text, usage=Usage(prompt_tokens=50, completion_tokens=9))

    async def models(self) -> list[ModelInfo]:
        return []

    async def healthy(self) -> Health:
        return Health("ready")

    async def close(self) -> None:
        return None


@dataclass
class Room:
    layer: DecisionLayer
    office: Office
    log: MemoryLog
    model: Answering

    async def decide(self, **more: Any) -> Mapping[str, Any]:
        return await self.layer.verb({**ASK, **more})

    async def rows(self) -> list[DecisionConcluded]:
        await self.layer.settled()
        return [fact.event for fact in self.log.facts if isinstance(fact.event, DecisionConcluded)]

    def types(self) -> list[str]:
        return [fact.type for fact in self.log.facts]


@asynccontextmanager
async def room(settings: DecisionSettings = ON) -> AsyncGenerator[Room]:
    made, log, model = servers(), MemoryLog(), Answering()
    async with asyncio.timeout(5), at_work(log, FakeClock(), made) as office:
        await until(at_rest(office, made))
        yield Room(DecisionLayer(settings, office, dict.fromkeys(made, model), log), office, log, model)
        assert violations(log.facts, frozenset({"embed"})) == []


@covers("decisions.resident")
async def test_a_loaded_model_decides_under_a_batch_lease_that_is_given_back_and_nothing_is_loaded_or_unloaded() -> None:
    async with room() as at:
        before = at.types()
        found = await at.decide(runId="run-1")
        (row,) = await at.rows()
        assert (found["choice"], found["source"], found["outcome"], found["confidence"]) == ("retry", "model", "decided", 0.9)
        new = at.types()[len(before) :]
        assert sorted(new) == ["decision.concluded", "lease.granted", "lease.released", "lease.requested"]
        assert (row.slot, row.model, row.run_id, row.tier, row.usage.prompt_tokens) == ("primary", "std", "run-1", 0, 50)
        lease = at.office.state.ending(row.lease_id)
        assert lease is not None
        assert (lease.asked.priority.value, lease.asked.resident_only) == ("batch", True)
        assert list(at.office.state.leases()) == []
        assert at.office.answering["primary", "std"] == 0


@covers("decisions.resident")
async def test_a_decision_is_made_beside_a_live_run() -> None:
    async with room() as at:
        await at.office.do(run_lease("a", "std"))
        await until(granted(at.office, "a"))
        assert (await at.decide())["source"] == "model"
        await at.layer.settled()
        assert granted(at.office, "a")()


@covers("decisions.off")
async def test_off_nothing_is_asked_leased_or_recorded() -> None:
    async with room(DecisionSettings()) as at:
        before = at.types()
        found = await at.decide()
        assert (found["choice"], found["source"], found["outcome"], found["decisionId"]) == ("stop", "rule", "off", None)
        assert await at.rows() == []
        assert (at.types(), at.model.asked) == (before, [])


async def nothing_loaded(at: Room) -> None:
    await at.office.do(HoldCard("hold", "a game", "gpu0"))
    await until(lambda: not at.office.state.slot("primary").is_loaded("std"))


async def unreachable(at: Room) -> None:
    at.model.error = InferenceUnreachable("nothing listens there")


async def a_bug(at: Room) -> None:
    at.model.error = ZeroDivisionError("oops")


async def prose(at: Room) -> None:
    at.model.text = "Well, it depends."


async def a_guess(at: Room) -> None:
    at.model.text = says(confidence=10)


async def silence(at: Room) -> None:
    at.model.going.clear()


async def a_hold_waits(at: Room) -> None:
    """A hold that waits for batch work lets none of it in."""
    at.office.answering["primary", "std"] += 1
    await at.office.do(HoldCard("hold", "a game", "gpu0"))


@covers("decisions.off")
@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        (nothing_loaded, "no_model"),
        (unreachable, "failed"),
        (a_bug, "failed"),
        (prose, "unreadable"),
        (a_guess, "unsure"),
        (silence, "timeout"),
        (a_hold_waits, "busy"),
    ],
)
async def test_whatever_fails_the_rule_decides_and_the_row_says_why(trouble: Callable[[Room], Any], outcome: str) -> None:
    async with room() as at:
        await trouble(at)
        found = await at.decide(**({"timeoutS": 0.05} if outcome == "timeout" else {}))
        assert (found["choice"], found["source"], found["outcome"]) == ("stop", "rule", outcome)
        (row,) = await at.rows()
        assert (row.choice, row.outcome, row.reason) == ("stop", outcome, found["reason"])
        assert row.reason
        assert list(at.office.state.leases()) == []
        assert at.model.cancelled == (outcome == "timeout")
        at.office.answering.clear()


@covers("decisions.off")
async def test_a_log_that_is_away_neither_delays_nor_fails_a_decision_beyond_its_bound() -> None:
    async with room() as at:
        at.log.crash_at = len(at.log.facts)  # from here on it never answers
        found = await at.decide(timeoutS=0.05)
        assert (found["choice"], found["outcome"]) == ("stop", "timeout")
        await at.layer.close(patience_s=0.01)


@covers("decisions.off")
async def test_more_decisions_than_a_slot_should_bear_are_left_to_the_rule_at_once() -> None:
    async with room() as at:
        at.model.going.clear()
        first = [asyncio.create_task(at.decide()) for _ in range(AT_ONCE)]
        await until(lambda: len(at.model.asked) == AT_ONCE)
        found = await at.decide()
        assert (found["choice"], found["outcome"]) == ("stop", "busy")
        at.model.going.set()
        assert [each["source"] for each in await asyncio.gather(*first)] == ["model"] * AT_ONCE
        assert len(await at.rows()) == AT_ONCE + 1


def test_a_run_goes_first_at_once_where_a_decision_holds_its_model() -> None:
    """A decision's lease is batch work like any other: a run that needs its room asks for it, and has it after the grace."""
    world = started()
    world.ask("decision", BATCH, "primary", "std", resident_only=True)
    world.ask("run", RUN, "primary", "big")
    assert world.lease("decision").preemption is not None
    world.release("decision")
    assert world.status("run") == "granted"
