"""Arrivals for the model scheduler: recorded ones where a folder of them is given, else made from seeds, of the same kinds.

The kinds are those of the recorded arrivals' README: three models on a card that holds one, half of the calls for the first, three
tenths for the second; answer times log-normal around 2 s. `burst`: 500 calls at once. `open020`, `open035`: Poisson, 0.20 and 0.35
calls a second, which is less than the card could do and more than it can if it swaps for each. `agents`: 25 that ask 20 times each,
half a second after every answer.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import orjson

from services.scheduler.ordering.simulate import Arrival

FOLDER_VARIABLE = "AETHERIUM_BENCH_TRACES"
FOLDER = Path(__file__).resolve().parents[2] / "shared" / "traces"
RATES: Mapping[str, float] = {"open020": 0.20, "open035": 0.35}
KINDS = ("burst", *RATES, "agents")
CALLS, AGENTS = 500, 25
MODELS, SHARES = ("a", "b", "c"), (0.5, 0.3, 0.2)
MEAN_ANSWER_S, SPREAD = 2.0, 0.6


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals of one kind and seed."""

    kind: str
    seed: int
    arrivals: tuple[Arrival, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"

    @property
    def is_open(self) -> bool:
        """Whether calls come whatever the card does; agents wait for their answers."""
        return self.kind != "agents"


def folder() -> Path | None:
    """Where recorded arrivals are: what the variable names, else the project's shared folder; None if there are none.

    Raises:
        FileNotFoundError: the variable names a folder without recorded arrivals.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named and not _files(Path(named)):
        raise FileNotFoundError(f"{FOLDER_VARIABLE} names {named!r}, where there is no <kind>-<seed>.jsonl")
    path = Path(named) if named else FOLDER
    return path if _files(path) else None


def recorded(path: Path) -> Iterator[Trace]:
    """The traces of a folder, by name."""
    for file in _files(path):
        kind, _, seed = file.stem.rpartition("-")
        yield Trace(kind, int(seed), tuple(_arrival(orjson.loads(line)) for line in file.read_bytes().splitlines()))


def _files(path: Path) -> list[Path]:
    return sorted(file for kind in KINDS for file in path.glob(f"{kind}-*.jsonl"))


def _arrival(line: Mapping[str, float | str]) -> Arrival:
    """One line of a file; a call of an agent has no time, since it depends on the answer before it."""
    agent, asked_s = line.get("agent"), line.get("arrival")
    return Arrival(
        str(line["id"]),
        str(line["model"]),
        float(line["service"]),
        None if asked_s is None else float(asked_s),
        "" if agent is None else f"agent-{agent}",
    )


def made(kind: str, seed: int) -> Trace:
    """A trace of a kind; the same seed gives the same one."""
    chance = random.Random(f"{kind}-{seed}")
    models = chance.choices(MODELS, SHARES, k=CALLS)
    median_s = math.log(MEAN_ANSWER_S) - SPREAD**2 / 2  # so that the mean is what it should be
    answers_s = [chance.lognormvariate(median_s, SPREAD) for _ in models]
    if kind == "agents":
        each = CALLS // AGENTS
        whose: list[tuple[float | None, str]] = [(None, f"agent-{place // each}") for place in range(CALLS)]
    elif kind == "burst":
        whose = [(0.0, "")] * CALLS
    else:
        whose = [(asked_s, "") for asked_s in accumulate(chance.expovariate(RATES[kind]) for _ in models)]
    rows = zip(models, answers_s, whose, strict=True)
    return Trace(kind, seed, tuple(Arrival(str(place), model, answer_s, *who) for place, (model, answer_s, who) in enumerate(rows)))
