"""No change to an event may break a stored log: a sample of every type and version is read by today's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shared.events import envelope
from shared.events.envelope import Event, Unknown, body_of, decode, parse, upcast
from tests.replay import golden
from tests.replay.golden import FOLDER, Sample, engine_types, load, path_of, sample_of
from tests.requirements import covers

FILES = sorted(FOLDER.glob("*.json"))
ADD = "run `python -m tests.replay.golden` and keep the file it adds"


@covers("log.versions.golden")
@pytest.mark.parametrize("event_type", engine_types())
def test_every_event_type_has_a_sample_of_each_version(event_type: str) -> None:
    lacking = [version for version in range(1, engine_types()[event_type].VERSION + 1) if not path_of(event_type, version).exists()]
    assert not lacking, f"{event_type} has no sample of version {lacking}: {ADD}"


def test_every_sample_is_of_a_type_that_still_exists() -> None:
    assert {path.name.rpartition(".v")[0] for path in FILES} <= set(engine_types()), "a type was removed or renamed: stored logs hold it"


@covers("log.versions.golden")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sample_is_read_by_todays_code_and_comes_back_as_it_was_read(path: Path) -> None:
    sample = load(path)
    fact = sample.fact()
    assert not isinstance(fact.event, Unknown)
    assert (fact.id, fact.type, fact.scope) == (sample.headers["ce-id"], sample.headers["ce-type"], sample.headers["ce-subject"])
    assert fact.causation_id
    assert fact.time == golden.AT
    again = decode(1, sample.subject, {"ce-type": fact.type, "ce-dataschema": f"/v{fact.event.VERSION}"}, body_of(fact.event))
    assert again.event == fact.event


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_that_a_sample_of_todays_version_holds_is_lost(path: Path) -> None:
    sample = load(path)
    event = sample.fact().event
    if sample.headers["ce-dataschema"].endswith(f"/v{event.VERSION}"):
        unread = sorted(_unread(event, sample.body, ""))
        assert not unread, f"today's {event.TYPE} would drop {unread}: give it a new VERSION and an upcaster"


def _unread(model: BaseModel, stored: dict[str, Any], place: str) -> Iterator[str]:
    """The places of a stored value that the model read from it does not know, or reads as something else."""
    read = model.model_dump(mode="json")
    for name, value in stored.items():
        if name not in type(model).model_fields:
            yield place + name
            continue
        inner = getattr(model, name)
        if isinstance(inner, BaseModel) and isinstance(value, dict):
            yield from _unread(inner, value, f"{place}{name}.")
        elif isinstance(inner, tuple) and inner and isinstance(inner[0], BaseModel):
            for each, part in zip(inner, value, strict=True):
                yield from _unread(each, part, f"{place}{name}.")
        elif read[name] != value:
            yield place + name


@pytest.mark.parametrize("event_type", engine_types())
def test_a_new_sample_fills_every_field(event_type: str) -> None:
    model = engine_types()[event_type]
    assert set(sample_of(model).body) == set(model.model_fields)


def test_the_generator_adds_what_is_missing_and_never_rewrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path / "events")
    added = golden.add_missing()
    assert [path.name for path in added] == [f"{event_type}.v{model.VERSION}.json" for event_type, model in engine_types().items()]
    kept, removed = added[0], added[1]
    kept.write_text("as a user has it")
    removed.unlink()
    assert golden.add_missing() == [removed]
    assert kept.read_text() == "as a user has it"


# ---- upcasting, on a type made up here


class Painted(Event):
    """Version 1 held `color`; version 2 `colour`; version 3 holds a list."""

    TYPE = "test.painted"
    VERSION = 3

    colours: tuple[str, ...]
    coats: int = 1


@upcast(Painted.TYPE, from_version=1)
def _spelling(data: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in data.items() if name != "color"}, "colour": data["color"]}


@upcast(Painted.TYPE, from_version=2)
def _several(data: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in data.items() if name != "colour"}, "colours": [data["colour"]]}


@covers("log.versions.golden")
@pytest.mark.parametrize(
    ("version", "body"),
    [(1, {"color": "red", "coats": 2}), (2, {"colour": "red", "coats": 2}), (3, {"colours": ["red"], "coats": 2})],
)
def test_every_old_version_reads_as_todays(version: int, body: dict[str, Any]) -> None:
    sample = Sample("aetherium.evt.test.s.painted", {"ce-type": Painted.TYPE, "ce-dataschema": f"/schemas/test.painted/v{version}"}, body)
    assert sample.fact().event == Painted(colours=("red",), coats=2)


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = json.dumps({"colours": ["red"], "coats": 2, "gloss": True})
    assert parse(Painted.TYPE, 4, newer) == Painted(colours=("red",), coats=2)


def test_a_type_of_a_newer_engine_keeps_its_data() -> None:
    assert parse("test.sanded", 7, b'{"grit":80}') == Unknown(type="test.sanded", data={"grit": 80})


def test_two_events_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match=r"two events are called 'test\.painted'"):
        type("Other", (Event,), {"TYPE": "test.painted", "__module__": __name__})


@covers("log.versions.golden")
def test_every_version_before_todays_has_an_upcaster() -> None:
    for event_type, model in engine_types().items():
        for version in range(1, model.VERSION):
            assert (event_type, version) in envelope._UPCASTERS, f"{event_type} v{version} cannot be read any more"
