"""`python -m tests.replay.golden`: a stored sample of every event type and version, as the log holds it.

A sample is written once and never changed: it stands for the logs that users have. It is made while its
version is the newest; later versions must still be able to read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel
from pydantic.fields import FieldInfo

import shared.events  # every module of events registers its types
from shared.events.envelope import Event, Fact, body_of, decode, event_types, headers_of, subject_of
from shared.ids import derived_id
from shared.subjects import Aggregate

FOLDER = Path(__file__).parent / "events"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
OUR_OWN = shared.events.__name__


@dataclass(frozen=True, slots=True)
class Sample:
    """A message as stored: subject, headers and body."""

    subject: str
    headers: dict[str, str]
    body: dict[str, Any]

    def fact(self) -> Fact:
        """What today's code reads."""
        return decode(1, self.subject, self.headers, json.dumps(self.body).encode())


def path_of(event_type: str, version: int) -> Path:
    return FOLDER / f"{event_type}.v{version}.json"


def load(path: Path) -> Sample:
    stored = json.loads(path.read_text())
    return Sample(stored["subject"], stored["headers"], stored["body"])


def engine_types() -> Mapping[str, type[Event]]:
    """The engine's event types, without those that tests make up."""
    return {name: model for name, model in sorted(event_types().items()) if model.__module__.startswith(f"{OUR_OWN}.")}


def sample_of(model: type[Event]) -> Sample:
    """A sample of the newest version, every field filled with something that is not its default."""
    event = model.model_validate(_fields(model))
    scope = "7" if model.TYPE.startswith("project.") else derived_id("golden", "run")
    headers = headers_of(
        event,
        id=derived_id("golden", model.TYPE),
        time=AT,
        source="aetherium/golden",
        scope=scope,
        causation_id=derived_id("golden", "cause"),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    domain = model.TYPE.partition(".")[0]
    return Sample(subject_of(Aggregate(domain, scope), event), headers, json.loads(body_of(event)))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {name: _value(name, field) for name, field in model.model_fields.items()}


def _value(name: str, field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True, validated_data={})
    return _of(field.annotation, name, default)


def _of(kind: Any, name: str, default: Any) -> Any:
    """A value of a type, other than the default."""
    if get_origin(kind) is Annotated:
        return _of(get_args(kind)[0], name, default)
    if get_origin(kind) in (Union, UnionType):
        return _of(next(each for each in get_args(kind) if each is not NoneType), name, default)
    if get_origin(kind) is tuple:
        return [_of(get_args(kind)[0], name, None)]
    if get_origin(kind) is dict:
        return {"path": "notes.txt", "deep": [{"n": 1, "text": "ünï 😀 \u2028", "none": None}]}
    if get_origin(kind) is Literal:
        return next(each for each in get_args(kind) if each != default)
    if kind is AwareDatetime:
        return AT.isoformat()
    if isinstance(kind, type):
        return _of_class(kind, name, default)
    raise TypeError(f"no sample for {name!r} of type {kind!r}: teach tests/replay/golden.py")


def _of_class(kind: type, name: str, default: Any) -> Any:
    if issubclass(kind, BaseModel):
        return _fields(kind)
    if issubclass(kind, Enum):
        return next(each.value for each in kind if each is not default)
    if kind is bool:
        return default is not True
    if kind is int:
        return 3 if default != 3 else 4
    if kind is float:
        return 0.25 if default != 0.25 else 0.5
    if kind is str:
        return f"{name} ünï 😀"
    raise TypeError(f"no sample for {name!r} of type {kind!r}: teach tests/replay/golden.py")


def add_missing() -> list[Path]:
    """Write the samples that the newest versions lack. Those that exist stay as they are."""
    FOLDER.mkdir(exist_ok=True)
    added: list[Path] = []
    for event_type, model in engine_types().items():
        path = path_of(event_type, model.VERSION)
        if not path.exists():
            sample = sample_of(model)
            stored = {"subject": sample.subject, "headers": sample.headers, "body": sample.body}
            path.write_text(json.dumps(stored, indent=2, ensure_ascii=False) + "\n")
            added.append(path)
    return added


if __name__ == "__main__":
    for each in add_missing():
        print(f"added {each.name}")
