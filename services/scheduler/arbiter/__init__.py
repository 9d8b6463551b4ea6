"""The lease arbiter: every GPU consumer of the box goes through it (KS 6.1, 6.10). Pure.

    facts, state = decide_and_evolve(state, command, now, answering)
    # store the facts of one decision together; only then
    for effect in effects(facts): ...

`design.md` has the states, the command for each happening, and the facts that acknowledge each effect.
"""

from services.scheduler.arbiter.decide import aggregate_of, decide, decide_and_evolve
from services.scheduler.arbiter.effects import Effect, Load, Notify, Unload, effects, next_at, owed
from services.scheduler.arbiter.evolve import evolve, fold
from services.scheduler.arbiter.explain import Waiting, explain, waiting
from services.scheduler.arbiter.state import NOTHING, Answering, Lease, State, Status

__all__ = [
    "NOTHING",
    "Answering",
    "Effect",
    "Lease",
    "Load",
    "Notify",
    "State",
    "Status",
    "Unload",
    "Waiting",
    "aggregate_of",
    "decide",
    "decide_and_evolve",
    "effects",
    "evolve",
    "explain",
    "fold",
    "next_at",
    "owed",
    "waiting",
]
