"""What a guided agent may do next, and the sentence that tells it. Pure.

It may finish only when what the request asks for is there; a file that a command has to make may not be
written by hand; what was just done in the same state is not offered again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType

from services.orchestrator import lint, owed, promises
from services.orchestrator.actions import Tool
from services.orchestrator.workspace_view import WorkspaceView

SMALL_LINES, SMALL_CHARS = 80, 3000  # up to this, a file is edited by giving it anew
MANY_FILES = 40  # more than a first message lists

_CHANGES = re.compile(
    r"\b(fix|rename|append|change|set|write|create|make|add|remove|delete|update|convert|save|edit|refactor|replace"
    r"|move|copy|insert|generate|put|store|sort|split|merge|implement|redirect|build)\b",
    re.IGNORECASE,
)
_RUNS = re.compile(r"\b(run|execute|running|executing|shell|command|bash|terminal)\b", re.IGNORECASE)
_ANSWER = re.compile(r"\banswer\b", re.IGNORECASE)
_COUNTS = re.compile(r"\b(how (?:many|much|often|long)|count|sum|total|average|number of \w+s)\b", re.IGNORECASE)
_TESTED = re.compile(r"\btests?\b.*\bpass\b|\bpass\b.*\btests?\b|\bpytest\b", re.IGNORECASE | re.DOTALL)
_TESTING = re.compile(r"pytest|unittest|\btest", re.IGNORECASE)
_KEEP = re.compile(r"(?:do not|don't|never|without)\s+(?:chang|modif|edit|touch)\w*\s+([^.;]*\.\w+[^.;]*)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?;](?:\s+|$)")
_PACKAGE = re.compile(r"\bpackage\s+(?:named|called)\s+[`'\"]?([A-Za-z_]\w*)")
_RUNNERS = {".py": "python3", ".sh": "sh", ".js": "node", ".rb": "ruby", ".pl": "perl", ".php": "php"}
_CODE = frozenset({*_RUNNERS, ".ts", ".go", ".rs", ".c", ".cpp", ".java", ".lua", ".sql", ".html", ".css"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a guided agent has come with its request.

    `texts` holds what is known of files' content; `named` are the files of the request that were there at the
    start; `kept` those of them that it says not to change.
    """

    request: str
    owes: tuple[str, ...] = ()
    view: WorkspaceView = field(default_factory=WorkspaceView)
    named: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict[str, str]()))
    was_empty: bool = True  # the workspace, at the start
    has_shell: bool = False
    form_checked: bool = True  # a file that is broken by its kind counts as not done
    excused: frozenset[str] = frozenset()  # broken promises that it was told of in vain
    inspected: bool = False  # something of the workspace was shown, read, searched or run
    ran: bool = False  # a command succeeded since code was last written
    tested: bool = False  # so did a command that runs tests
    failed: bool = False  # the last call did not work

    @property
    def missing(self) -> tuple[str, ...]:
        return owed.missing(self.owes, self.view.filled)

    @property
    def owes_a_run(self) -> bool:
        return self.has_shell and not self.ran and _RUNS.search(self.request) is not None

    @property
    def owes_tests(self) -> bool:
        return self.has_shell and not self.tested and _TESTED.search(self.request) is not None

    @property
    def untouched(self) -> tuple[str, ...]:
        """The files of which at least one must change: the request names them, and no new one."""
        free = tuple(name for name in self.named if name not in self.kept)
        if self.owes or _CHANGES.search(self.request) is None or any(name in self.view.changed for name in free):
            return ()
        return free

    @property
    def faults(self) -> list[str]:
        """What is wrong, by the kind of file and by what the request says of it, with what it made."""
        made = [(name, self.texts[name]) for name in self.view.written if name in self.texts] if self.form_checked else []
        return [fault for name, text in made if (fault := lint.fault_in(name, text) or self._broken_promise(name, text))]

    def _broken_promise(self, name: str, text: str) -> str | None:
        files = self.view.files
        fault = lint.missing_import(name, text, files) or promises.broken(self.request, name, text, files)
        return None if fault in self.excused else fault

    @property
    def may_finish(self) -> bool:
        if self.missing or self.failed or self.owes_a_run or self.owes_tests or self.untouched or self.faults:
            return False
        return bool(self.view.changed) or _CHANGES.search(self.request) is None

    def knows(self, path: str, text: str) -> Progress:
        """The progress once a file's content is known."""
        return replace(self, texts=MappingProxyType({**self.texts, path: text}))


def started(request: str, owes: Sequence[str], view: WorkspaceView, *, has_shell: bool, form_checked: bool = True) -> Progress:
    """The progress of a request at its start."""
    named = tuple(name for name in owed.named_files(request) if name in view.files or _by_basename(name, view))
    kept = _kept(request, named, owes_new=any(name not in named for name in owes))
    # A package to make is a folder with an `__init__.py`.
    packages = [f"{name}/__init__.py" for name in _PACKAGE.findall(request) if f"{name}/__init__.py" not in view.files]
    owes = tuple(dict.fromkeys([*packages, *(name for name in owes if name not in named)]))
    real = tuple(dict.fromkeys(name if name in view.files else _by_basename(name, view) or name for name in named))
    return Progress(request, owes, view, real, kept, was_empty=not view.files, has_shell=has_shell, form_checked=form_checked)


def _kept(request: str, named: Sequence[str], *, owes_new: bool) -> frozenset[str]:
    """The named files that are not to be changed: those it says so of, and, where it wants a new file, those it only tells about."""
    spared = set[str]()
    if told := _KEEP.search(request):
        spared = {PurePosixPath(name).name for name in owed.named_files(told.group(1))}
    wanted = {name for sentence in _SENTENCE.split(request) if _CHANGES.search(sentence) for name in owed.named_files(sentence)}
    return frozenset(name for name in named if PurePosixPath(name).name in spared or (owes_new and name not in wanted))


def _by_basename(name: str, view: WorkspaceView) -> str | None:
    """The one file in a folder that a request calls by its bare name."""
    found = [file for file in view.files if "/" not in name and PurePosixPath(file).name == name]
    return found[0] if len(found) == 1 else None


def is_code(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in _CODE


def runs_tests(command: str) -> bool:
    return _TESTING.search(command) is not None


def is_small(text: str) -> bool:
    return len(text) <= SMALL_CHARS and len(text.splitlines()) <= SMALL_LINES


def paths_for(tools: Sequence[Tool], progress: Progress) -> dict[str, list[str]]:
    """The only files that each tool may name; an empty list leaves the tool out of this turn."""
    here = sorted(progress.view.files)[:60]
    narrow: dict[str, list[str]] = {}
    for tool in tools:
        match tool.name:
            case "read_file":
                narrow[tool.name] = [name for name in here if name not in progress.texts]
            case "edit_file":
                narrow[tool.name] = [name for name in here if name in progress.texts and name not in progress.kept][:6]
            case _ if tool.long_text:
                if (paths := _writable(progress)) is not None:
                    narrow[tool.name] = paths
            case _:
                pass
    return narrow


def _writable(progress: Progress) -> list[str] | None:
    """What may be written by hand: while a command is owed, or nothing was looked at, only code; None = anything."""
    missing = list(progress.missing)
    blind = not progress.was_empty and not progress.inspected
    if not progress.owes_a_run and not blind:
        return missing or None
    return [name for name in missing or [*progress.owes, *progress.named] if is_code(name) and name not in progress.kept]


def useless(tools: Sequence[Tool], progress: Progress) -> set[str]:
    """Tools that could tell nothing new: the first message lists the files, and all of them were read."""
    unread = any(name not in progress.texts for name in progress.view.files)
    few = len(progress.view.files) <= MANY_FILES
    names = {tool.name for tool in tools if (tool.name == "list_files" and few) or (tool.name == "search_files" and not unread)}
    return names | ({tool.name for tool in tools if tool.command} if _is_answered_by_reading(progress) else set())


def _is_answered_by_reading(progress: Progress) -> bool:
    """Whether it is a question about small files that were shown: a command would only pick the wrong words out of them."""
    request = progress.request
    if not ("?" in request or _ANSWER.search(request)) or _RUNS.search(request) or _COUNTS.search(request) or progress.failed:
        return False
    shown = [progress.texts.get(name) for name in progress.named]
    return bool(shown) and not progress.view.changed and all(text is not None and is_small(text) for text in shown)


def next_step(progress: Progress, wrote: str | None, command: str | None) -> str:
    """What to do now, after a call; `wrote` is the file just written or edited, `command` the command just run."""
    if progress.failed:
        return _after_failure(progress, command)
    missing, data = progress.missing, [name for name in progress.missing if not is_code(name)]
    if progress.faults:
        fault = progress.faults[0]
        return f"Problem: {fault}" if " Run: " in fault else f"Problem: {fault} Correct it with edit_file."
    if wrote and not missing and progress.owes_tests and not progress.untouched:
        return "Now run the tests with run_shell: python3 -m pytest -q"
    if wrote and progress.owes_a_run and not any(is_code(name) for name in missing):
        return _run_it(progress, wrote, data)
    if not missing and progress.untouched:
        return f"Nothing is changed yet. Change {' or '.join(progress.untouched)} with edit_file."
    if not missing and progress.owes_tests:
        return "Now run the tests with run_shell: python3 -m pytest -q"
    if not missing and not progress.view.changed:
        return "Nothing is changed yet. Do the next part of the request."
    if not missing:
        return "If every part of the request is done, finish; else do the next part."
    text = f"Still missing: {', '.join(missing)}."
    if command and ">" not in command and len(missing) == 1 and data:
        text += f" To save what the command prints, run: {command} > {missing[0]}"
    return text


def _after_failure(progress: Progress, command: str | None) -> str:
    folders = [folder for name in progress.missing if (folder := _absent_folder(progress, name))]
    if folders:
        return f"That did not work: make the folder first, with: mkdir -p {folders[0]}"
    code = sorted(name for name in progress.texts if is_code(name) and name not in progress.kept)
    if command and runs_tests(command) and code:
        return f"The command failed. Correct {' or '.join(code)} with edit_file, then run it again."
    return "That did not work. Try another way."


def _run_it(progress: Progress, path: str, data: Sequence[str]) -> str:
    runner = _RUNNERS.get(PurePosixPath(path).suffix.lower())
    if runner is None:
        return "Now run it."
    folder = _absent_folder(progress, data[0]) if len(data) == 1 else None
    before = f"mkdir -p {folder} && " if folder else ""
    into = f" > {data[0]}" if len(data) == 1 else ""
    return f"Now run it with run_shell, such as: {before}{runner} {path}{into}"


def _absent_folder(progress: Progress, path: str) -> str | None:
    folder = str(PurePosixPath(path).parent)
    known = any(name.startswith(f"{folder}/") for name in progress.view.files)
    return None if folder == "." or known else folder
