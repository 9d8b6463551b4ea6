"""The planner: what is loaded, what goes for it, and the arithmetic in words."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.vram import Held, Level, Need, Room, needed_mib, plan
from tests.requirements import covers


def room(*held: Held, needs: tuple[Need, ...] = (Need("new", 10_000),), **more: Any) -> Room:
    return Room(**{"card": "gpu0", "slot": "primary", "size_mib": 24_000, "held": held, "needs": needs, **more})


def idle(name: str, mib: int | None, level: Level = Level.IDLE, **more: Any) -> Held:
    return Held(name, mib, level, slot="primary", **more)


@covers("lease.plan")
def test_nothing_goes_where_there_is_room() -> None:
    planned = plan(room(idle("old", 14_000)), Level.BATCH)
    assert (planned.fits, planned.evicts, planned.words) == (True, (), "new (10000 MiB) on card gpu0 fits: 24000 of 24000 MiB will be held")


@covers("lease.plan")
def test_no_more_goes_than_the_shortfall_requires() -> None:
    held = (idle("a", 9_000), idle("b", 4_000), idle("c", 5_000), idle("d", 2_000))
    planned = plan(room(*held), Level.BATCH)  # 6,000 are missing
    assert [each.name for each in planned.evicts] == ["a"], "one that is enough goes before two"
    planned = plan(room(*held, needs=(Need("new", 8_000),)), Level.BATCH)  # 4,000 are missing
    assert [each.name for each in planned.evicts] == ["b"], "of those that are enough, the one that frees least"


@covers("lease.plan", "lease.protected")
def test_what_nobody_needs_goes_before_the_standard_set_and_that_before_what_is_leased() -> None:
    held = (idle("batch", 12_000, Level.BATCH), idle("standard", 6_000, Level.STANDARD), idle("spare", 6_000))
    assert [each.name for each in plan(room(*held, needs=(Need("new", 6_000),)), Level.BATCH).evicts] == ["spare"]
    assert {each.name for each in plan(room(*held, needs=(Need("new", 12_000),)), Level.BATCH).evicts} == {"spare", "standard"}
    assert "batch" in {each.name for each in plan(room(*held, needs=(Need("new", 20_000),)), Level.BATCH).evicts}


@covers("lease.plan")
def test_what_cannot_fit_is_refused_with_who_holds_what_and_how_much_is_missing() -> None:
    held = (idle("embed", 500, Level.NEVER, why="the embedding model"), idle("spare", 3_000))
    planned = plan(room(*held, needs=(Need("huge", 24_000),), outside_mib=600, reserve_mib=200), Level.BATCH)
    assert not planned.fits
    assert planned.missing_mib == 24_000 + 500 + 600 + 200 - 24_000
    assert planned.words == (
        "huge (24000 MiB) does not fit on card gpu0: it has 24000 MiB; held: embed (500 MiB, the embedding model); 600 MiB by programs "
        "outside the engine; 200 MiB in reserve; unloading spare (3000 MiB) would free 3000 MiB; 1300 MiB are missing. "
        "Name a smaller model, or free the card"
    )


@covers("lease.plan")
def test_an_unknown_size_counts_as_the_whole_card_and_the_words_say_what_to_set() -> None:
    planned = plan(room(idle("kept", 100, Level.NEVER), needs=(Need("mystery", None),)), Level.BATCH)
    assert not planned.fits
    assert "set its mib in scheduler.slots" in planned.words


@covers("lease.plan")
def test_a_card_of_unknown_size_leaves_the_limit_to_its_backend() -> None:
    planned = plan(room(idle("old", 90_000, Level.NEVER), size_mib=None), Level.BATCH)
    assert planned.fits
    assert "its backend's own limit decides" in planned.words


@covers("lease.plan")
def test_a_server_that_holds_so_many_models_at_most_gives_one_up_for_the_next() -> None:
    planned = plan(room(idle("old", 1), Held("elsewhere", 1, Level.IDLE, slot="other"), size_mib=None, max_models=1), Level.BATCH)
    assert [each.name for each in planned.evicts] == ["old"]
    stuck = plan(room(idle("old", 1, Level.NEVER, why="run lease of A"), size_mib=None, max_models=1), Level.BATCH)
    assert not stuck.fits
    assert "slot primary holds at most 1 model(s), and old (1 MiB, run lease of A) stays" in stuck.words


@covers("lease.turns")
def test_models_that_take_turns_have_the_memory_of_the_largest_between_them() -> None:
    turns = room(idle("a", 9_000, rotating=True), needs=(Need("b", 7_000, rotating=True),), shared_mib=9_000, size_mib=16_000)
    assert needed_mib(turns) == 16_000
    assert needed_mib(room(needs=(Need("b", 7_000, rotating=True),), shared_mib=9_000)) == 9_000


@covers("lease.plan")
def test_with_many_models_on_a_card_no_needless_one_goes_either() -> None:
    held = [idle(f"m{number}", 1_000) for number in range(14)]
    planned = plan(room(*held, needs=(Need("new", 12_000),)), Level.BATCH)
    assert len(planned.evicts) == 2


SIZES = st.one_of(st.none(), st.integers(1, 9_000))
HELD = st.builds(
    Held,
    name=st.sampled_from("abcd"),
    mib=SIZES,
    level=st.sampled_from(Level),
    slot=st.sampled_from(["primary", "other"]),
    rotating=st.booleans(),
)


@covers("lease.plan", "lease.protected")
@given(
    held=st.lists(HELD, max_size=7),
    needs=st.lists(st.builds(Need, st.just("new"), SIZES, st.booleans()), min_size=1, max_size=2),
    limit=st.sampled_from([Level.IDLE, Level.ANSWERING, Level.BATCH, Level.LEASED]),
    size_mib=st.one_of(st.none(), st.integers(1, 24_000)),
    outside_mib=st.one_of(st.none(), st.integers(0, 6_000)),
    max_models=st.one_of(st.none(), st.integers(1, 4)),
)
def test_a_plan_fits_evicts_nothing_above_its_limit_and_nothing_needless(
    held: list[Held], needs: list[Need], limit: Level, size_mib: int | None, outside_mib: int | None, max_models: int | None
) -> None:
    asked = room(*held, needs=tuple(needs), size_mib=size_mib, outside_mib=outside_mib, max_models=max_models)
    planned = plan(asked, limit)
    assert all(each.level <= limit for each in planned.evicts)
    if planned.fits:
        assert fits(asked, planned.evicts)
        assert all(not fits(asked, [each for each in planned.evicts if each is not kept]) for kept in planned.evicts)
    else:
        assert not fits(asked, [each for each in held if each.level <= limit]), planned.words


def fits(asked: Room, gone: Any) -> bool:
    left = [each for each in asked.held if not any(each is one for one in gone)]
    count = sum(each.slot == asked.slot for each in left) + len(asked.needs)
    has_room = asked.size_mib is None or needed_mib(asked, gone) <= asked.size_mib
    return has_room and (asked.max_models is None or count <= asked.max_models)
