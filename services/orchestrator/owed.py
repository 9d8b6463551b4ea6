"""What a request or a node owes, as files. Pure.

Files that a request names and the workspace did not have are what the person expects to find at the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

# A name with an extension of letters and digits, perhaps in folders; not part of a URL, a domain or a version number.
_FILE = re.compile(r"(?<![\w/.:@-])((?:[\w-]+/)*[\w-]+(?:\.[\w-]+)*\.[A-Za-z][A-Za-z0-9]{0,7})(?![\w/@-]|\.\w)")
_NOT_FILES = frozenset({"e.g", "i.e", "etc", "node.js", "vue.js", "next.js"})


def named_files(request: str) -> tuple[str, ...]:
    """The file names in a text, in order, each once."""
    found: dict[str, None] = {}
    for match in _FILE.finditer(request):
        name = match.group(1)
        if name.lower() not in _NOT_FILES:
            found[name] = None
    return tuple(found)


def owed_by(request: str, required: Iterable[str], present_at_start: Collection[str]) -> tuple[str, ...]:
    """The files that must be there at the end: those a node requires, and those the request names anew."""
    plain = [clause.split()[0] for clause in required if clause.split() and "*" not in clause.split()[0]]
    new = [name for name in named_files(request) if name not in present_at_start]
    return tuple(dict.fromkeys([*plain, *new]))


def missing(owed: Iterable[str], present: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in owed if name not in present)


def and_list(names: Iterable[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    row = list(names)
    return row[0] if len(row) == 1 else f"{', '.join(row[:-1])} and {row[-1]}"
