"""What callers may ask for: bodies as they stand on the wire, camelCase, with no field that is not known."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from shared.bodies import Body
from shared.events.content import Budgets, Sampling
from shared.ids import digest
from shared.template import Features, Template

MAX_FILES = 64
MAX_FILES_BYTES = 256 * 1024  # of all contents together
MAX_PATH_BYTES = 255


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class BudgetOverrides(Body):
    """Hard bounds of this run; a field left out keeps the engine's own."""

    model_calls: PositiveInt | None = None
    tokens: PositiveInt | None = None
    tool_calls: PositiveInt | None = None
    wall_s: PositiveFloat | None = None


class FeatureOverrides(Features):
    """Mechanisms of the engine switched for this run; a field left out keeps the template's own."""

    model_config = ConfigDict(alias_generator=to_camel)

    def over(self, features: Features) -> Features:
        return features.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Overrides(Body):
    """What this run does otherwise than its template says."""

    model_id: Name | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: int | None = None
    budgets: BudgetOverrides = BudgetOverrides()
    slot: Name | None = None  # where the agents' models are asked first
    features: FeatureOverrides = FeatureOverrides()

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, seed=self.seed)

    def budgets_over(self, defaults: Budgets) -> Budgets:
        return defaults.model_copy(update={key: value for key, value in self.budgets.model_dump().items() if value is not None})

    def resolved(self, template: Template) -> Template:
        """The template as this run follows it, and as it is stored with the run."""
        slot = {"preferred_instance": self.slot} if self.slot else {}
        nodes = tuple(node.model_copy(update=slot) for node in template.nodes)
        return template.model_copy(update={"nodes": nodes, "features": self.features.over(template.features)})


class Ask(Body):
    """What both ways of starting a run have in common."""

    message: str
    source_agent: Name = "ui"
    overrides: Overrides = Overrides()

    @field_validator("message")
    @classmethod
    def _says_something(cls, message: str) -> str:
        if not message.strip():
            raise ValueError("the message is empty: say what the team is to do.")
        return message

    def digest(self) -> str:
        """Equal for equal requests, to tell a retry from another request under the same key.

        Fields that came later count only where they are set: a retry may meet a newer engine than its first try.
        """
        plain = self.model_dump(mode="json", exclude={"files": True, "overrides": {"features", "slot"}})
        later = self.model_dump(mode="json", exclude_unset=True, include={"files": True, "overrides": {"features", "slot"}})
        return digest({"kind": type(self).__name__, **plain, **({"later": later} if any(later.values()) else {})})


class RunFromTemplate(Ask):
    """Create a project from a template and start its first run."""

    template_id: Name
    project_name: Name
    description: Annotated[str, StringConstraints(max_length=4000)] = ""
    workspace_tier: Name = "Standard"
    files: dict[str, str] = Field(default={})  # path → text; the workspace begins with them

    @field_validator("files")
    @classmethod
    def _can_be_laid(cls, files: dict[str, str]) -> dict[str, str]:
        if len(files) > MAX_FILES:
            raise ValueError(f"there are {len(files)} files; at most {MAX_FILES} are taken.")
        size = sum(len(text.encode()) for text in files.values())
        if size > MAX_FILES_BYTES:
            raise ValueError(f"the files have {size} bytes together; at most {MAX_FILES_BYTES} are taken.")
        for path in files:
            check_path(path)
            if taken := next((other for other in files if other.startswith(f"{path}/")), None):
                raise ValueError(f"{path!r} cannot be a file and the folder of {taken!r}: rename one of them.")
        return files


def check_path(path: str) -> None:
    """Hold the path of a file to its one plain form, so that no two names mean one file.

    Raises:
        ValueError: it is not relative to the workspace, or not in that form.
    """
    parts = path.split("/")
    if not path or path.startswith(("/", "~")) or ".." in parts:
        raise ValueError(f"{path!r} is not a path inside the workspace: use one such as src/notes.txt.")
    if "" in parts or "." in parts or "\\" in path or any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        raise ValueError(f"{path!r} is not a plain path: use one such as src/notes.txt.")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"the path {path[:40]!r}… is too long; at most {MAX_PATH_BYTES} bytes are taken.")


class RunOnProject(Ask):
    """Start a run on a project that exists."""

    project_id: PositiveInt


class Cancel(Body):
    reason: Annotated[str, StringConstraints(max_length=4000)] = ""


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """How a body is described in /openapi.json."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
