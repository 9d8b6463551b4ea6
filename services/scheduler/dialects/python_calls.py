"""Calls as Python writes them: `read_file(path="a")`, `[list_dir(), read_file("a")]`, `print(default_api.finish())`.

Such a call stands alone on its line. It is parsed, never run: every argument is a literal, and what is not
makes the whole no call. How far a call reaches is found here, since a string in it may hold any mark.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

# Behind a line's start, a tag or a marker; within a line it is prose that speaks of the tool.
OPEN = r"(?<![^\n>\]])[ \t]{0,40}(?:\[\s{0,40})?(?:print[ \t]?\()?(?:[A-Za-z_]\w{0,63}\.){0,2}[A-Za-z_]\w{0,127}\("
_HEAD = re.compile(r"[ \t]*(?P<outer>\[\s{0,40})?(?P<print>print[ \t]?\()?(?P<name>(?:[A-Za-z_]\w{0,63}\.){0,2}[A-Za-z_]\w{0,127})\(")
_ASSIGNED = re.compile(r"[ \t]*[A-Za-z_]\w{0,63}[ \t]{0,8}=[ \t]{0,8}(?=[A-Za-z_])")
_MEANT = re.compile(r"""\s{0,200}(?:[A-Za-z_]\w{0,63}\s{0,8}=(?!=)|[rR]?["'{\[\d-])""")
_STRING = re.compile(r"""(?P<quote>'''|\"\"\"|'|")(?:\\.|(?!(?P=quote)).)*+(?P=quote)""", re.DOTALL)
_TOKEN = re.compile(r"""[()\[\]{}]|["']""")
_AFTER = re.compile(r"[ \t]*[;,]?[ \t]*(?:#[^\n]*)?(?=\n|\Z|```|<|\[)")
_WORDS = {"true": True, "false": False, "null": None}  # JSON's, which models write here too


@dataclass(frozen=True, slots=True)
class Head:
    """How a call begins: the name as written, where the expression starts, and where its outermost bracket opens."""

    name: str
    start: int
    opens: int
    inside: int  # behind the bracket of the call itself
    is_list: bool

    def is_meant(self, text: str) -> bool:
        """Whether what follows can be arguments with values, and is not a signature that is talked about."""
        return self.is_list or _MEANT.match(text, self.inside) is not None


@dataclass(frozen=True, slots=True)
class Written:
    """A call as written, its values taken from their literals."""

    name: str
    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict[str, Any])


class NotLiteral(Exception):
    """The expression is not made of calls with literal arguments."""


def head_at(text: str, start: int, *, assigned: bool = False) -> Head | None:
    """The head that begins at `start`; with `assigned` a result may be given a name, as programs do."""
    if assigned and (named := _ASSIGNED.match(text, start)):
        start = named.end()
    head = _HEAD.match(text, start)
    if head is None:
        return None
    begins = head.start("outer") if head["outer"] else head.start("print") if head["print"] else head.start("name")
    opens = begins if head["outer"] else head.end("print") - 1 if head["print"] else head.end() - 1
    return Head(head["name"], begins, opens, head.end(), bool(head["outer"]))


def close_of(text: str, opens: int) -> tuple[int | None, int]:
    """The bracket that closes the one at `opens`, None if there is none, and how far was looked for it."""
    depth, position = 0, opens
    while (token := _TOKEN.search(text, position)) is not None:
        position = token.end()
        if token.group() in "\"'":
            string = _STRING.match(text, token.start())
            if string is None:
                return None, len(text)
            position = string.end()
        elif token.group() in "([{":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return token.start(), position
    return None, len(text)


def end_of_line(text: str, start: int) -> int | None:
    """Where a statement that ends at `start` is over; None if more of the line follows, which makes it prose."""
    after = _AFTER.match(text, start)
    return after.end() if after else None


def parse(expression: str) -> tuple[list[Written], bool]:
    """The calls of an expression, and whether raw newlines in its strings had to be escaped.

    >>> parse('f("a", n=[1, -2])')
    ([Written(name='f', positional=('a',), named={'n': [1, -2]})], False)

    Raises:
        NotLiteral: it is anything else than calls of literals.
    """
    try:
        return _calls(_tree(expression)), False
    except SyntaxError:
        pass
    try:
        return _calls(_tree(_STRING.sub(_one_line, expression))), True
    except SyntaxError as error:
        raise NotLiteral from error


def keywords(text: str) -> dict[str, Any] | None:
    """The arguments of `path="a", n=3`; None if it is something else."""
    try:
        (call,) = parse(f"f({text})")[0]
    except (NotLiteral, ValueError):
        return None
    return call.named if not call.positional and call.name == "f" else None


def _tree(expression: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `\d` in a string is a model's, not ours
            return ast.parse(expression, mode="eval").body
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotLiteral from error


def _one_line(string: re.Match[str]) -> str:
    text = string.group()
    return text if len(string["quote"]) == 3 else text.replace("\r", "\\r").replace("\n", "\\n")


def _calls(node: ast.expr) -> list[Written]:
    nodes = node.elts if isinstance(node, ast.List) else [node]
    if not nodes:
        raise NotLiteral
    try:
        return [_call(each) for each in nodes]
    except RecursionError as error:
        raise NotLiteral from error


def _call(node: ast.expr) -> Written:
    if not isinstance(node, ast.Call):
        raise NotLiteral
    if isinstance(node.func, ast.Name) and node.func.id == "print" and len(node.args) == 1 and not node.keywords:
        return _call(node.args[0])
    named = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if len(named) < len(node.keywords):
        raise NotLiteral
    return Written(_dotted(node.func), tuple(_value(each) for each in node.args), named)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return f"{_dotted(node.value)}.{node.attr}"
        case _:
            raise NotLiteral


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(each) for each in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise NotLiteral
            return dict(zip(names, (_value(each) for each in values), strict=True))
        case _:
            raise NotLiteral
