from __future__ import annotations

import pytest

from services.orchestrator.owed import and_list, missing, named_files, owed_by
from tests.requirements import covers


@covers("run.owed_files")
@pytest.mark.parametrize(
    ("request_text", "files"),
    [
        ("Write primes.py that prints primes. Run it, and save its output to primes.txt.", ("primes.py", "primes.txt")),
        ("Put it in out/data.json, then in out/data.json again.", ("out/data.json",)),
        ("Read the docs at https://example.org/a.html and write notes.md", ("notes.md",)),
        ("Use version 3.11 of Python, e.g. with pytest.", ()),
        ("Mail me at me@example.org.", ()),
        ("Make a node.js server in server.js", ("server.js",)),
        ("Edit `config.yaml`, and (setup.cfg).", ("config.yaml", "setup.cfg")),
        ("archive.tar.gz is needed", ("archive.tar.gz",)),
    ],
)
def test_the_files_that_a_request_names_are_found(request_text: str, files: tuple[str, ...]) -> None:
    assert named_files(request_text) == files


def test_a_named_file_that_was_there_at_the_start_is_not_owed() -> None:
    assert owed_by("Turn data.csv into data.json", (), {"data.csv"}) == ("data.json",)


def test_what_a_node_requires_is_owed_whatever_the_request_says() -> None:
    assert owed_by("Do it.", ("report.md", "site/index.html self-contained", "images/*.png >= 6"), ()) == ("report.md", "site/index.html")


def test_missing_files_are_those_that_are_not_there() -> None:
    assert missing(("a", "b"), {"a"}) == ("b",)
    assert (and_list(["a"]), and_list(["a", "b"]), and_list("abc")) == ("a", "a and b", "a, b and c")
