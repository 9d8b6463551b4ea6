"""Every required behaviour has a test, and every id that a test cites is a required behaviour."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import requirements
from tests.requirements import PENDING, REQUIRED, covers

TESTS = Path(requirements.__file__).parent
Citation = tuple[str, str]
"""An id, and the test that cites it; the test is empty where pytest does not run it."""
SKIPPED = {"pytest.mark.skip", "pytest.mark.xfail"}


def citations(source: str, file: str) -> Iterator[Citation]:
    """The ids that a file cites. A test that is always skipped covers nothing."""
    tree = ast.parse(source)
    is_test_file = Path(file).name.startswith("test_")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
        names = {ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list}
        runs = is_test_file and node in tree.body and node.name.startswith("test_") and names.isdisjoint(SKIPPED)
        for call in calls:
            if ast.unparse(call.func).rpartition(".")[2] == "covers":
                yield from ((ast.literal_eval(argument), f"{file}::{node.name}" if runs else "") for argument in call.args)


def all_citations() -> list[Citation]:
    files = sorted(TESTS.rglob("*.py"))
    return [each for file in files for each in citations(file.read_text(), str(file.relative_to(TESTS)))]


def test_every_required_behaviour_is_covered_by_a_test_that_runs() -> None:
    covered = {cited for cited, test in all_citations() if test}
    missing = sorted(set(REQUIRED) - covered - set(PENDING))
    assert missing == [], f"no test says @covers of: {', '.join(missing)}"


def test_every_cited_behaviour_is_a_required_one_and_cited_by_a_test_that_runs() -> None:
    for cited, test in all_citations():
        assert cited in REQUIRED, f"{test} covers {cited!r}, which tests/requirements.py does not list"
        assert test, f"{cited!r} is cited by a function that pytest does not run"


def test_what_is_pending_is_required_and_not_covered_yet() -> None:
    covered = {cited for cited, test in all_citations() if test}
    assert set(PENDING) <= set(REQUIRED)
    assert sorted(set(PENDING) & covered) == [], "these have a test now: take them out of PENDING"


@pytest.mark.parametrize("name", REQUIRED)
def test_a_behaviour_is_told_in_one_sentence(name: str) -> None:
    sentence = REQUIRED[name]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_an_unknown_id_stops_the_import_of_its_test() -> None:
    with pytest.raises(ValueError, match=r"run\.resumed"):
        covers("run.resumed")
    with pytest.raises(ValueError, match="no required behaviour"):
        covers()


def test_only_a_function_that_pytest_runs_counts() -> None:
    source = """
@covers("a", "b")
async def test_it(): ...

@covers("c")
def other(): ...

@pytest.mark.skip
@covers("d")
def test_no(): ...

def outer():
    @covers("e")
    def test_inner(): ...
"""
    in_a_test_file = [("a", "test_x.py::test_it"), ("b", "test_x.py::test_it"), ("c", ""), ("d", ""), ("e", "")]
    assert list(citations(source, "test_x.py")) == in_a_test_file
    assert all(test == "" for _, test in citations(source, "support/world.py"))
