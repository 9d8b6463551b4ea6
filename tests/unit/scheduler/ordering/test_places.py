from __future__ import annotations

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.places import Place, places
from services.scheduler.ordering.slots import Slot
from tests.requirements import covers
from tests.unit.scheduler.ordering.cases import call, decided


@covers("order.places")
def test_whoever_waits_is_told_its_position_the_holder_and_why() -> None:
    desk = Desk([Slot("card", resident="a")])
    desk.asked(call("1", agent="run/x"))
    decided(desk, "card", 0.0)
    for each in (call("2", "b", 1.0), call("3", "a", 2.0), call("4", "b", 3.0), call("5", "c", 0.5, low=True)):
        desk.asked(each)
    assert dict(places(desk, 4.0)) == {
        "3": Place("card", 1, "card answers 1 at once, as many as it may; it is next", "run/x"),
        "2": Place("card", 2, "card has a, and b must be loaded; 1 go before it", "run/x"),
        "4": Place("card", 3, "card has a, and b must be loaded; 2 go before it", "run/x"),
        "5": Place("card", 4, "card has a, and c must be loaded; 3 go before it", "run/x"),
    }


@covers("order.places")
def test_a_call_is_told_of_a_load_a_change_and_whoever_keeps_the_slot() -> None:
    desk = Desk([Slot("card"), Slot("kept", serves=frozenset({"z"}), resident="y", kept_for="run 7")])
    desk.asked(call("1", "a"))
    desk.asked(call("2", "z"))
    desk.load_began("card", "a", 0.0)
    found = places(desk, 1.0)
    assert found["1"].why == "a is being loaded; it is next"
    desk.loaded("card", "a", 8.0)
    decided(desk, "card", 8.0)
    desk.asked(call("3", "b", 9.0))
    desk.leaving("card", "b")
    assert places(desk, 10.0)["3"].why == "b is loaded when 1 in flight have their answers; it is next"
    pinned = Desk([Slot("kept", resident="y", kept_for="run 7")])
    pinned.asked(call("4", "z", pin="kept"))
    assert places(pinned, 1.0)["4"] == Place("kept", 1, "kept is kept for run 7, and z is not loaded there", "run 7")


@covers("order.places")
def test_a_call_that_nothing_can_serve_is_told_so() -> None:
    desk = Desk([Slot("card", serves=frozenset({"a"}))])
    desk.asked(call("1", "b"))
    assert places(desk, 0.0)["1"] == Place("", 0, "no slot lists the model 'b': name one that `aetherium models` shows", "")
