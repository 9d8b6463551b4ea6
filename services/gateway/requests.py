"""What callers may ask for: bodies as they stand on the wire, camelCase, with no field that is not known."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, StringConstraints, field_validator
from pydantic.alias_generators import to_camel

from shared.events.content import Budgets, Sampling
from shared.ids import digest


class Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class BudgetOverrides(Body):
    """Hard bounds of this run; a field left out keeps the engine's own."""

    model_calls: PositiveInt | None = None
    tokens: PositiveInt | None = None
    tool_calls: PositiveInt | None = None
    wall_s: PositiveFloat | None = None


class Overrides(Body):
    """What this run does otherwise than its template says."""

    model_id: Name | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: int | None = None
    budgets: BudgetOverrides = BudgetOverrides()

    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, seed=self.seed)

    def budgets_over(self, defaults: Budgets) -> Budgets:
        return defaults.model_copy(update={key: value for key, value in self.budgets.model_dump().items() if value is not None})


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
        """Equal for equal requests, to tell a retry from another request under the same key."""
        return digest({"kind": type(self).__name__, **self.model_dump(mode="json")})


class RunFromTemplate(Ask):
    """Create a project from a template and start its first run."""

    template_id: Name
    project_name: Name
    description: Annotated[str, StringConstraints(max_length=4000)] = ""
    workspace_tier: Name = "Standard"


class RunOnProject(Ask):
    """Start a run on a project that exists."""

    project_id: PositiveInt


class Cancel(Body):
    reason: Annotated[str, StringConstraints(max_length=4000)] = ""


def example_of(model: type[BaseModel]) -> dict[str, Any]:
    """How a body is described in /openapi.json."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}
