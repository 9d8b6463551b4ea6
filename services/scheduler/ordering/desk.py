"""Who waits and what every slot does, folded from facts, and the decision that follows. No clock, no I/O.

The owner tells the desk each fact in the log's order, and asks `decide` until it answers None or Pause. Same facts, same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from services.scheduler.ordering.estimates import Estimates
from services.scheduler.ordering.fair import fair
from services.scheduler.ordering.references import Policy
from services.scheduler.ordering.situation import may_serve, situation
from services.scheduler.ordering.slots import Decision, Dispatch, Leave, Load, Refuse, Slot
from services.scheduler.ordering.waiting import Call, Lane, Priority, Waiting

T = TypeVar("T")


class Desk:
    """The state that decisions are made from. One task owns it; nothing in it is shared."""

    def __init__(self, slots: Iterable[Slot], policy: Policy = fair, estimates: Estimates | None = None) -> None:
        self.slots: dict[str, Slot] = {slot.name: slot for slot in slots}
        self.waiting = Waiting()
        self.estimates = estimates or Estimates()
        self._policy = policy
        self._began_s: dict[str, float] = {}  # of calls in flight and, by the slot's name, of loads
        self._answered_s: dict[str, float] = {}  # when each agent had its last answer
        self._elsewhere: dict[str, frozenset[str]] = {}
        self._changed()

    # facts

    def asked(self, call: Call) -> None:
        """A call waits. Its agent is back, so no slot waits for it any longer."""
        self.waiting.add(call)
        answered_s = self._answered_s.pop(call.agent, None) if call.agent else None
        if answered_s is not None:
            self.estimates = self.estimates.paused(call.asked_s - answered_s)
        for slot in self.slots.values():
            if call.agent in slot.back_by_s:
                self._set(slot, back_by_s=_without(slot.back_by_s, call.agent))

    def withdrawn(self, call_id: str) -> None:
        """A call that waited was cancelled or refused."""
        self.waiting.remove(call_id)
        self._drop_idle_swaps()

    def dispatched(self, call_id: str, slot_name: str, now_s: float) -> None:
        call, slot = self.waiting.remove(call_id), self.slots[slot_name]
        assert call is not None, f"call {call_id!r} was dispatched but does not wait"
        self._began_s[call_id] = now_s
        again = bool(call.agent) and call.agent == slot.last_agent
        self._set(
            slot,
            running={**slot.running, call_id: call},
            warm=slot.warm | {call.agent} if call.agent else slot.warm,
            last_agent=call.agent,
            in_a_row=slot.in_a_row + 1 if again else 1,
            busy_at_s=now_s if call.priority is Priority.NORMAL else slot.busy_at_s,
        )
        self._drop_idle_swaps()

    def answered(self, call_id: str, slot_name: str, now_s: float) -> None:
        """A call in flight has ended, well or not."""
        slot = self.slots[slot_name]
        call = slot.running[call_id]
        self.estimates = self.estimates.answered(call.model, now_s - self._began_s.pop(call_id))
        back_by_s = {agent: until for agent, until in slot.back_by_s.items() if until > now_s}
        if call.agent:
            self._answered_s[call.agent] = now_s
            if self.estimates.patience_s:
                back_by_s[call.agent] = now_s + self.estimates.patience_s
        busy_at_s = now_s if call.priority is Priority.NORMAL else slot.busy_at_s
        self._set(slot, running=_without(slot.running, call_id), back_by_s=back_by_s, busy_at_s=busy_at_s)

    def leaving(self, slot_name: str, model: str) -> None:
        self._set(self.slots[slot_name], leaving_for=model)

    def load_began(self, slot_name: str, model: str, now_s: float) -> None:
        slot = self.slots[slot_name]
        assert not slot.running, f"{slot_name} answers: its model must stay"
        assert slot.loading is None, f"{slot_name} loads: its model must stay"
        self._began_s[slot_name] = now_s
        self._set(slot, loading=model, resident=None, leaving_for=None, warm=frozenset(), back_by_s={}, last_agent="", in_a_row=0)

    def loaded(self, slot_name: str, model: str, now_s: float) -> None:
        """A model is there: ours, or one that somebody else loaded."""
        began_s = self._began_s.pop(slot_name, None)
        if began_s is not None:
            self.estimates = self.estimates.loaded(model, now_s - began_s)
        slot = self.slots[slot_name]
        if slot.loading is None and slot.resident != model:  # not by a load of ours: nobody's prompt is cached
            self._set(slot, warm=frozenset(), back_by_s={}, last_agent="", in_a_row=0)
        self._set(self.slots[slot_name], loading=None, resident=model, loaded_at_s=now_s)

    def unloaded(self, slot_name: str) -> None:
        """The slot's model is gone, or its load failed."""
        self._began_s.pop(slot_name, None)
        self._set(self.slots[slot_name], loading=None, resident=None, leaving_for=None)

    def configured(self, slot: Slot) -> None:
        """A slot was added, or what it is (not what it does) has changed: concurrency, models, who keeps it, whether it is down."""
        before = self.slots.get(slot.name, slot)
        self._set(before, concurrency=slot.concurrency, serves=slot.serves, kept_for=slot.kept_for, down=slot.down)
        self._drop_idle_swaps()

    def forget_agents(self, prefix: str) -> None:
        """A run has ended: none of its agents will ask again."""
        self._answered_s = {agent: at for agent, at in self._answered_s.items() if not agent.startswith(prefix)}
        for slot in list(self.slots.values()):
            gone = [agent for agent in slot.back_by_s if agent.startswith(prefix)]
            if gone:
                self._set(slot, back_by_s=_without(slot.back_by_s, *gone))

    # decisions

    def decide(self, slot_name: str, now_s: float) -> Decision | None:
        """What to do next with a slot; None: nothing until the next fact."""
        slot = self.slots[slot_name]
        if slot.down is not None or slot.loading is not None:
            return None
        if slot.leaving_for is not None:
            return None if slot.running else Load(slot_name, slot.leaving_for, f"it was next, and {slot.resident} has answered")
        now = situation(now_s, slot, self._elsewhere[slot_name], self.waiting, self.estimates)
        return self._policy(now) if now.mine is not None or now.others else None

    def follow(self, decision: Decision, now_s: float) -> None:
        """Take a decision as done: what its fact will say."""
        match decision:
            case Dispatch():
                self.dispatched(decision.call.id, decision.slot, now_s)
            case Leave():
                self.leaving(decision.slot, decision.model)
            case Load():
                self.load_began(decision.slot, decision.model, now_s)
            case _:
                pass

    def refusals(self) -> Iterator[Refuse]:
        """Calls that wait for what they can't get; asked when calls come and when slots change."""
        for lane in list(self.waiting.lanes()):
            why = self.refusal(lane.model, lane.pin)
            if why:
                yield from (Refuse(call, why) for call in list(lane.calls.values()))

    def refusal(self, model: str, pin: str | None) -> str:
        """Why a call for a model, pinned to a slot or not, can't be served; empty if it can."""
        if pin is None:
            can = any(slot.can_serve(model) for slot in self.slots.values())
            return "" if can else f"no slot lists the model {model!r}: name one that `aetherium models` shows"
        slot = self.slots.get(pin)
        if slot is None:
            return f"it named the slot {pin!r}, which there is not; the slots are {', '.join(sorted(self.slots)) or 'none'}"
        if not slot.can_serve(model):
            return f"it named the slot {pin!r}, which does not list the model {model!r}"
        return f"it named the slot {pin!r}, which is down: {slot.down}" if slot.down is not None else ""

    def may_serve(self, slot_name: str, lane: Lane) -> bool:
        """Whether a slot may take a lane's calls: not what is pinned to another, nor what another slot's model would answer."""
        return may_serve(self.slots[slot_name], self._elsewhere[slot_name], lane)

    def _drop_idle_swaps(self) -> None:
        """Forget a swap that nobody waits for any more, or that is forbidden by now: it must not come back with the next such call."""
        for slot in [slot for slot in self.slots.values() if slot.leaving_for is not None]:
            if slot.kept_for is not None or not self._is_wanted(slot, str(slot.leaving_for)):
                self._set(slot, leaving_for=None)

    def _is_wanted(self, slot: Slot, model: str) -> bool:
        """Whether a model that was decided on is still waited for; its calls may have been cancelled meanwhile."""
        return any(self.waiting.lanes_of(model, slot.name, priority) for priority in Priority)

    def _set(self, slot: Slot, **changes: Any) -> None:
        self.slots[slot.name] = replace(slot, **changes)
        if changes.keys() & {"resident", "loading", "leaving_for", "down"} or slot.name not in self._elsewhere:
            self._changed()

    def _changed(self) -> None:
        """Note for each slot the models that others hold, which is asked far more often than it changes."""
        held = {slot.name: _held(slot) for slot in self.slots.values()}
        self._elsewhere = {
            name: frozenset(model for other, models in held.items() if other != name for model in models) for name in self.slots
        }


def _held(slot: Slot) -> tuple[str, ...]:
    models = {model for model in (slot.resident, slot.loading, slot.leaving_for) if model is not None and slot.holds(model)}
    return tuple(sorted(models)) if slot.down is None else ()


def _without(mapping: Mapping[str, T], *keys: str) -> dict[str, T]:
    return {key: value for key, value in mapping.items() if key not in keys}
