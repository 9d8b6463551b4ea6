"""What a request says of a file's content, held against it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator import lint, promises

FILES = frozenset({"docs/a.md", "docs/b.md", "out.txt"})


@pytest.mark.parametrize(
    ("request_text", "path", "kept", "not_kept", "told"),
    [
        ("Write only the number of rows to out.txt.", "out.txt", "17\n", "17 rows\n", "only a number"),
        ("Count them, and put that number, and nothing else, into out.txt.", "out.txt", "1,024\n", "total 5\n", "only a number"),
        ("Find the note and write its path to out.txt.", "out.txt", "./docs/a.md\n", "the note\n", "just a path"),
        (
            "Write all e-mail addresses to out.txt: one address per line.",
            "out.txt",
            "a.b@c.example\n",
            "Ann: a.b@c.example\n",
            "one e-mail address a line and nothing else; line 1",
        ),
        ("Put the IP addresses into out.txt, one per line.", "out.txt", "10.0.0.1\n", "10.0.0.1 GET\n", "one IP address a line"),
        ("Write the names to out.txt: one a line, sorted.", "out.txt", "Ann\nbob\n", "b\na\nc\n", "Run: sort -o out.txt out.txt"),
        ("Write the names to out.txt, each name only once.", "out.txt", "b\na\n", "a\na\n", "Run: sort -u -o out.txt out.txt"),
        ("List the ids in out.txt, sorted.", "out.txt", "9\n10\n", "10\n9\n11\n", "not sorted"),
        ('Write x.md with the headings "# A" and "## B".', "x.md", "# A\ntext\n## B\ntext\n", "# A\ntext\n", "lacks the heading '## B'"),
        ('Write x.md with exactly these headings: "# A".', "x.md", "# A\nt\n", "# A\nt\n## C\nt\n", "just the headings # A"),
        ("Write x.md. Put text under each heading.", "x.md", "# A\nt\n## B\nt\n", "# A\n## B\nt\n", "no text under the heading '# A'"),
        ("Write x.md with a bullet list of them.", "x.md", "- one\n- two\n", "one, two\n", "lines that begin with '- '"),
        ("Make p.json with the keys name and age.", "p.json", '[{"name":"a","age":1}]', '[{"name":"a"}]', "keys name and age"),
        ("Make p.json of them. The age must be a number.", "p.json", '[{"age":1}]', '[{"age":"1"}]', "age as a number"),
        ("Make p.csv with the header line a,b,c and a row for each.", "p.csv", "a, b,c\n1,2,3\n", "1,2,3\n", "begin with the line a,b,c"),
    ],
)
def test_what_the_request_says_of_a_file_is_held_against_it(request_text: str, path: str, kept: str, not_kept: str, told: str) -> None:
    assert promises.broken(request_text, path, kept, FILES) is None
    assert told in str(promises.broken(request_text, path, not_kept, FILES))


def test_what_finds_the_wanted_things_is_named_with_the_file_that_they_are_in() -> None:
    told = promises.broken(
        "Write all URLs of docs/a.md to out.txt, one per line, each only once.", "out.txt", "see http://a.example\n", FILES
    )
    assert str(told).endswith("""Run: grep -oE 'https?://[^ "<>]+' docs/a.md | sort -u > out.txt""")


@pytest.mark.parametrize(
    ("request_text", "path", "text"),
    [
        ("Sort names.txt by age into out.txt.", "out.txt", "zoe 3\nann 9\nbob 1\n"),  # not the order of the lines
        ("Write a story to out.txt. Then write only the number of its words to n.txt.", "out.txt", "Once there was.\n"),
        ("Write only the number to n.json.", "n.json", '{"n": 4}'),  # its kind has a form of its own
        ("Write the dates to out.txt, one per line.", "out.txt", "3 May\n4 June\n"),
        ("Write the names and e-mail addresses to out.txt.", "out.txt", "Ann a@b.example\n"),
        ("Say in out.txt what the path of life is.", "out.txt", "Long.\n"),
        ("Make p.json with the keys name and age.", "p.json", "{"),
    ],
)
def test_nothing_is_read_into_a_request_that_it_does_not_say(request_text: str, path: str, text: str) -> None:
    assert promises.broken(request_text, path, text, FILES) is None


@given(st.text(max_size=200), st.sampled_from(["a.txt", "a.json", "a.md", "a.csv", "a"]), st.text(max_size=200))
def test_any_request_and_any_text_can_be_read(request_text: str, path: str, text: str) -> None:
    told = promises.broken(f"{request_text} sorted {path} with the keys a and b, only the number", path, text, FILES)
    assert told is None or told.startswith(path)
    assert lint.fault_in(path, text) is None or str(lint.fault_in(path, text)).startswith(path)


def test_a_row_with_more_values_than_the_header_is_a_fault_of_form() -> None:
    assert lint.fault_in("a.csv", 'n,c\n"Lee, Ann",Rome\n') is None
    assert lint.fault_in("a.csv", "n,c\nLee, Ann,Rome\n") == (
        "a.csv line 2 has 3 values, the first line 2: a value that holds a comma goes in double quotes."
    )


@pytest.mark.parametrize(
    ("path", "text", "is_missing"),
    [
        ("shop/__init__.py", "from .cart import Cart\n", True),
        ("shop/__init__.py", "from .items import ITEMS\n", False),
        ("shop/__init__.py", "from .parts.bolts import M4\n", False),
        ("shop/__init__.py", "from . import cart\n", False),  # may be a name of the package's own
        ("shop/parts/bolts.py", "from ..items import ITEMS\n", False),
        ("shop/parts/bolts.py", "from ...outside import X\n", True),
        ("shop/parts/bolts.py", "from ....beyond import X\n", False),  # beyond the workspace: Python says so better
        ("shop/__init__.py", "import cart\n", False),  # may be installed
        ("shop/__init__.py", "from .cart import (\n", False),
        ("shop.txt", "from .cart import Cart\n", False),
    ],
)
def test_a_module_that_a_package_imports_of_itself_has_to_be_there(path: str, text: str, is_missing: bool) -> None:
    files = {"shop/__init__.py", "shop/items.py", "shop/parts/bolts.py"}
    assert (lint.missing_import(path, text, files) is not None) is is_missing
