"""The templates that runs may be started from: those that ship, and a user's own, which override by id."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog

from shared.errors import BadInput, NotFound
from shared.template import Template, parse_template

logger = structlog.get_logger()


class File(Protocol):
    """A file in a folder or in an installed package."""

    @property
    def name(self) -> str: ...

    def read_bytes(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Library:
    """All templates by id, and what is wrong with the user's files that could not be read."""

    templates: Mapping[str, Template]
    broken: Mapping[str, str]

    def get(self, template_id: str) -> Template:
        """A template.

        Raises:
            NotFound: none has this id; the message lists those that exist.
        """
        found = self.templates.get(template_id)
        if found is None:
            known = sorted(self.templates)
            raise NotFound(f"no template {template_id!r}. Known: {', '.join(known) or 'none'}", field="templateId", known=known)
        return found


def read(user_folder: Path) -> Library:
    """Today's templates. A broken file of a user is reported, and hides neither the others nor a shipped one."""
    shipped = [file for file in importlib.resources.files("templates").iterdir() if file.name.endswith(".json")]
    templates = {template.id: template for template in (parse_template(file.read_bytes(), file.name) for file in shipped)}
    broken: dict[str, str] = {}
    own = sorted(user_folder.glob("*.json")) if user_folder.is_dir() else []
    for template in _readable(own, broken):
        templates[template.id] = template
    return Library(MappingProxyType(templates), MappingProxyType(broken))


def _readable(files: Iterable[File], broken: dict[str, str]) -> Iterable[Template]:
    for file in files:
        try:
            yield parse_template(file.read_bytes(), file.name)
        except (BadInput, OSError) as error:
            reason = error.message if isinstance(error, BadInput) else f"{file.name}: {error.strerror}"
            logger.warning("template_left_out", file=file.name, reason=reason)
            broken[file.name] = reason
