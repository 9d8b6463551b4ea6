"""The engine's policy: as few swaps as plain grouping, and nobody waits as long. `design.md` derives it.

1. The model whose oldest call has waited longest is next; of equally old ones the one that most wait for (and where agents ask
   again, many that wait make up for some age). No clock makes a call "overdue": under load all would be, and the order would become
   that of arrival, with a swap for each call.
2. A loaded model answers everybody who waited when it came. For calls that came later it stays only as long as that is fair.
3. A model is not left while it answers, nor in the short pause after which an agent it has answered uses to ask again.
"""

from __future__ import annotations

from services.scheduler.ordering.situation import Group, Situation
from services.scheduler.ordering.slots import Decision, Dispatch, Leave, Load, Pause
from services.scheduler.ordering.waiting import Priority

NEWCOMERS = 0.5
WARM = 1.6
PAUSES = 0.6
"""Shares of what the others need (to load and answer all that wait): how long a model stays for calls of agents that are new to it,
for calls of agents whose prompt it has cached, and how long it is kept idle for an agent that will ask again."""

AHEAD = 2.0
"""How many seconds of age a second of waiting answers is worth where agents ask again."""

LONGEST_NEED_S = 300.0
"""What the others need counts no further than this, or a flood of their calls would lengthen their own wait."""


def fair(now: Situation) -> Decision | None:
    """What to do with a slot that is neither loading nor about to; None: wait for what happens next."""
    if now.mine is not None:
        if not now.slot.has_room:
            return None
        if now.others and may_change(now) and is_over(now, now.mine):
            return _leave(now, "its newcomers have had their share")
        return _dispatch(now, now.mine)
    if not now.others or now.slot.running or not may_change(now):
        return None
    return _pause(now) or _leave(now, "nothing waits for the model that is loaded")


def may_change(now: Situation) -> bool:
    return now.slot.kept_for is None


def is_over(now: Situation, mine: Group) -> bool:
    """Whether the resident model's turn is over although calls wait for it.

    Both must hold: it has stayed for its share, and leaving makes the longest wait that can be foreseen shorter. While the
    others are answered, about half as many more of their calls come as wait now, and the newcomer waits for those too.
    """
    call, slot = now.next_call(), now.slot
    if call.asked_s <= slot.loaded_at_s:
        return False  # it waited while the model was loaded
    loads_s, answers_s = needs(now)
    share = WARM if call.agent and call.agent in slot.warm else NEWCOMERS
    if now.now_s - slot.loaded_at_s <= share * min(loads_s + answers_s, LONGEST_NEED_S):
        return False
    if_stays_s = oldest(now).age_s(now.now_s) + mine.count * now.estimates.answer_s(mine.model) / slot.concurrency
    if_left_s = mine.age_s(now.now_s) + min(loads_s + 1.5 * answers_s, LONGEST_NEED_S)
    return if_stays_s > if_left_s


def needs(now: Situation) -> tuple[float, float]:
    """Seconds to load what the others wait for, and to answer them."""
    loads_s = sum(now.estimates.load_s(group.model) for group in now.others)
    answers_s = sum(group.count * now.estimates.answer_s(group.model) for group in now.others)
    return loads_s, answers_s / now.slot.concurrency


def oldest(now: Situation) -> Group:
    return min(now.others, key=lambda group: (group.since[0], -group.count, group.since[1]))


def next_model(now: Situation) -> Group:
    """The group to load for. While agents are known to ask again, those that wait ask nothing: then a model that more wait for is
    somewhat ahead of its age, since it sets more of them going with one swap."""
    if now.estimates.pause is None:
        return oldest(now)

    def merit(group: Group) -> tuple[float, int]:
        answers_s = group.count * now.estimates.answer_s(group.model) / now.slot.concurrency
        return (group.age_s(now.now_s) + AHEAD * answers_s, -group.since[1])

    return max(now.others, key=merit)


def _dispatch(now: Situation, mine: Group) -> Dispatch:
    call = now.next_call()
    if call.agent and call.agent == now.slot.last_agent:
        return Dispatch(now.slot.name, call, f"its agent was answered last by {mine.model}, so its prompt is cached")
    return Dispatch(now.slot.name, call, f"{mine.model} is loaded and this is the oldest of {mine.count} that wait for it")


def _pause(now: Situation) -> Pause | None:
    """Wait a moment for agents that use to ask again at once, or for whom a normal run may still come before low work."""
    slot, back_by_s = now.slot, max(now.slot.back_by_s.values(), default=0.0)
    fair_until_s = slot.loaded_at_s + PAUSES * min(sum(needs(now)), LONGEST_NEED_S)
    if now.priority is Priority.LOW:
        back_by_s = fair_until_s = slot.busy_at_s + now.estimates.load_s(oldest(now).model)
    if now.now_s < back_by_s and now.now_s <= fair_until_s and slot.resident is not None:
        return Pause(slot.name, back_by_s, f"{slot.resident} is kept: an agent that it has answered may ask again at once")
    return None


def _leave(now: Situation, because: str) -> Leave | Load:
    first = next_model(now)
    waited = f"the oldest of {first.count} that wait for {first.model} has waited {first.age_s(now.now_s):.1f} s"
    if now.slot.resident is None:
        return Load(now.slot.name, first.model, f"nothing is loaded, and {waited}")
    change = Leave if now.slot.running else Load
    return change(now.slot.name, first.model, f"{because}, and {waited}")
