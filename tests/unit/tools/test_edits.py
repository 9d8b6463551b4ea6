"""Replacing a piece of text: exact where it can be, forgiving where that is safe, clear where it is neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tools.servers.edits import NoEdit, replace_once
from services.tools.servers.textfile import decode

CODE = "def area(w, h):\n    if w < 0:\n        return 0\n    return w * h\n"


def test_an_exact_piece_is_replaced_and_the_rest_is_untouched() -> None:
    edited = replace_once(CODE, "return w * h", "return h * w")
    assert (edited.text, edited.line, edited.tolerant) == (CODE.replace("w * h", "h * w"), 4, False)


def test_an_exact_piece_wins_over_places_that_only_differ_in_white_space() -> None:
    assert replace_once("a  =  1\na = 1\n", "a = 1", "a = 2").text == "a  =  1\na = 2\n"


def test_a_piece_that_occurs_several_times_is_refused_with_its_lines() -> None:
    with pytest.raises(NoEdit, match=r"occurs 2 times \(lines 1, 3\).*Copy more of the lines around it"):
        replace_once("x = 1\ny = 2\nx = 1\n", "x = 1", "x = 3")


def test_a_block_without_its_indentation_is_found_and_the_new_text_is_indented_like_it() -> None:
    edited = replace_once(CODE, "if w < 0:\n    return 0\n", "if w < 0 or h < 0:\n    return None\n")
    assert edited.text == "def area(w, h):\n    if w < 0 or h < 0:\n        return None\n    return w * h\n"
    assert edited.tolerant


def test_spaces_written_for_tabs_become_tabs() -> None:
    edited = replace_once("def f():\n\tif x:\n\t\treturn 1\n", "    if x:\n        return 1", "    if x:\n        y()\n        return 2")
    assert edited.text == "def f():\n\tif x:\n\t\ty()\n\t\treturn 2\n"


def test_quotes_of_the_other_kind_are_forgiven() -> None:
    assert replace_once('print("hi")\n', "print('hi')", "print('ho')").text == "print('ho')\n"


def test_white_space_inside_a_piece_of_a_line_is_forgiven() -> None:
    assert replace_once("total = add( 1,  2 ) # sum\n", "add( 1, 2 )", "add(3, 4)").text == "total = add(3, 4) # sum\n"


def test_a_tolerant_match_in_two_places_is_refused() -> None:
    with pytest.raises(NoEdit, match="occurs 2 times"):
        replace_once("a  = 1\nb\na =  1\n", "a = 1", "a = 2")


def test_indentation_that_cannot_be_mapped_is_not_guessed() -> None:
    with pytest.raises(NoEdit, match="nearest lines"):
        replace_once("if a:\n    b()\nelse:\n  c('x y')\n", "if a:\nb()\nelse:\nc('x  z')", "pass")


def test_deleting_whole_lines_takes_their_line_end_with_them() -> None:
    assert replace_once("a\n  b\nc\n", "b", "").text == "a\n  \nc\n"  # exact: only the piece goes
    assert replace_once("a\n\tb  b\nc\n", "    b b\n", "").text == "a\nc\n"


def test_a_piece_that_is_not_there_answers_with_the_nearest_lines() -> None:
    with pytest.raises(NoEdit) as refusal:
        replace_once(CODE, "    return w + h", "    return 1")
    assert str(refusal.value) == (
        "old is not in the file. The nearest lines are 4 to 4:\n    return w * h\n"
        "Call edit_file again with old copied exactly from these lines."
    )


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (CODE, "", "x", "old is empty"),
        (CODE, "return 0", "return 0", "same text"),
        (CODE, "zzzzzz qqqq", "x", "Call read_file"),
        (CODE, "return 99", "return w * h", "is there already"),
        ("", "a", "b", "The file is empty"),
    ],
)
def test_an_edit_that_makes_no_sense_is_answered_with_what_to_do(text: str, old: str, new: str, words: str) -> None:
    with pytest.raises(NoEdit, match=words):
        replace_once(text, old, new)


def test_line_ends_of_a_windows_file_and_of_a_mixed_file_are_kept() -> None:
    assert replace_once("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "\r\n").text == "x\r\ny\r\nz\r\nc\r\n"
    assert replace_once("a\r\nb\nc\r\nd\n", "b\nc", "B", "\r\n").text == "a\r\nB\r\nd\n"


@given(st.lists(st.sampled_from(["a", "bb", "\n", "\r\n", " ", "é"]), max_size=30).map("".join), st.text("xyz", min_size=1, max_size=4))
def test_only_the_replaced_piece_of_any_text_changes(rest: str, new: str) -> None:
    text = rest + "OLD" + rest
    assert replace_once(text, "OLD", new).text == rest + new + rest


@pytest.mark.parametrize(
    "data",
    [b"plain\n", b"\xef\xbb\xbfmarked\r\n", "\ufeffwide é".encode("utf-16-le"), "caf\xe9\n".encode("latin-1"), b"", "é 😀".encode()],
)
def test_text_goes_back_to_the_same_bytes(data: bytes) -> None:
    file = decode(data)
    assert file is not None
    assert file.encoded(file.text) == data
    assert not file.text.startswith("\ufeff")


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\x00", b"\x7fELF\x02\x00", b"\xff\xfe\x00", b"a\x00b"])
def test_binary_data_is_not_taken_for_text(data: bytes) -> None:
    assert decode(data) is None
