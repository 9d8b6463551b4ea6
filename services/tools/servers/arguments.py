"""Arguments of a call checked against the tool's schema, with one sentence that says what to mend.

Only what the schema asks for is converted: a whole number written as text where a number is declared, a list
or object written as JSON text where one of these is declared. A declared text stays the text it is, whatever
it looks like.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema import exceptions as schema_errors

from services.tools.paths import ToolRefusal
from services.tools.servers.base import ToolSpec

_PLAIN = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}

_TYPES: dict[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,), "object": (dict,)}


class BadArguments(ToolRefusal):
    """The call does not fit the tool; nothing ran."""

    code = "tool.bad_arguments"


def fitted(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool gets them.

    Raises:
        BadArguments: an argument is unknown, missing or of another kind; the message shows a right call.
    """
    properties = cast(dict[str, dict[str, Any]], spec.parameters["properties"])
    for name in arguments:
        if name not in properties:
            raise BadArguments(f"{_unknown(spec, name, list(properties))} {_right_call(spec)}")
    required = cast(list[str], spec.parameters.get("required", []))
    fit = {
        name: _converted(value, properties[name].get("type"))
        for name, value in arguments.items()
        if value is not None or name in required  # null for an optional value means that it is left out
    }
    validator: Any = Draft202012Validator(spec.parameters)
    error = cast(ValidationError | None, cast(Any, schema_errors).best_match(validator.iter_errors(fit)))
    if error is not None:
        raise BadArguments(f"{_sentence(spec, error)} {_right_call(spec)}")
    return fit


def _converted(value: Any, declared: Any) -> Any:
    if not isinstance(value, str) or declared in (None, "string"):
        return value
    try:
        parsed: Any = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if isinstance(parsed, bool) and declared != "boolean":
        return value  # to Python, true is a number
    return parsed if isinstance(parsed, _TYPES.get(str(declared), ())) else value


def _unknown(spec: ToolSpec, name: str, known: list[str]) -> str:
    if not known:
        return f"{spec.name} takes no arguments, so {name!r} cannot be given."
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if not near:
        near = [candidate for candidate in known if candidate in name.lower() or name.lower() in candidate][:1]
    hint = f"Did you mean {near[0]!r}?" if near else f"Its arguments are {', '.join(known)}."
    return f"{spec.name} has no argument {name!r}. {hint}"


def _sentence(spec: ToolSpec, error: ValidationError) -> str:
    path = [str(part) for part in error.absolute_path]
    where = ".".join(path)
    rule, bound = str(error.validator), cast(Any, error.validator_value)
    if rule == "required" and not path:
        given = cast(Mapping[str, Any], error.instance)
        missing = [name for name in cast(list[str], bound) if name not in given]
        return f"{spec.name} needs {' and '.join(repr(name) for name in missing)}."
    said = {
        "type": f"must be {_PLAIN.get(str(bound), str(bound))}, not {_given(error.instance)}",
        "minimum": f"must be at least {bound}, not {_given(error.instance)}",
        "maximum": f"must be at most {bound}, not {_given(error.instance)}",
        "maxLength": f"is too long: at most {bound} characters",
        "minLength": "must not be empty",
        "enum": f"must be one of {_given(bound)}, not {_given(error.instance)}",
    }.get(rule, f"is not valid: {error.message[:200]}")
    return f"{where or 'The arguments'!r} of {spec.name} {said}."


def _given(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _right_call(spec: ToolSpec) -> str:
    return f"A right call: {spec.name}({json.dumps(spec.example, ensure_ascii=False)})"
