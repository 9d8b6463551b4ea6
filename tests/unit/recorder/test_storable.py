"""Whatever a fact holds can be stored, and what had to change is counted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.recorder.projections.base import KEY_CHARS, Json, key_text
from services.recorder.storable import BIGINT, Mending

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "stored", "changed"),
    [
        ("plain", "plain", 0),
        ("done \x00 ok", "done \ufffd ok", 1),
        ("cut \ud83d", "cut \ufffd", 1),
        ("\ud83d\ude00", "😀", 1),
        ("\x01 \\u0000 😀", "\x01 \\u0000 😀", 0),
        (["a", "b\x00"], ["a", "b\ufffd"], 1),
        (10**30, BIGINT, 1),
        (-(10**30), -BIGINT, 1),
        (float("nan"), None, 1),
        (0.5, 0.5, 0),
        (True, True, 0),
        (None, None, 0),
        (NOW, NOW, 0),
    ],
)
def test_a_value_is_kept_or_mended_and_counted(value: Any, stored: Any, changed: int) -> None:
    mending = Mending()
    assert mending.values({"column": value}) == {"column": stored}
    assert mending.changed == changed


def test_json_is_mended_in_keys_and_at_any_depth() -> None:
    mending = Mending()
    stored = mending.value(Json({"a\x00": [{"b": ("\x00", float("inf"), 10**30)}], "kept": 1}))
    assert stored.obj == {"a\ufffd": [{"b": ["\ufffd", None, 10**30]}], "kept": 1}
    assert mending.changed == 3


@given(st.text(st.characters() | st.characters(categories=["Cs"]) | st.just("\x00")))
def test_any_text_can_be_stored(text: str) -> None:
    stored = Mending().value(text)
    assert "\x00" not in stored
    stored.encode()


def test_a_long_key_is_cut_and_stays_itself() -> None:
    first, second = "k" * 5000 + "1", "k" * 5000 + "2"
    assert key_text("short") == "short"
    assert key_text(first) == key_text(first) != key_text(second)
    assert len(key_text(first)) < KEY_CHARS + 20
