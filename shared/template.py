"""A workflow template: the blueprint of a team. The resolved form is stored with every run that uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from shared.errors import BadInput
from shared.ids import canonical, is_token


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CircuitBreaker(Part):
    """Limits of a team's agents (KS 6.8)."""

    max_turns_per_agent: PositiveInt = 10
    infinite_loop_threshold: PositiveInt = 3


class Node(Part):
    """One agent: persona, system prompt, tool allowlist, model (CC "Agent")."""

    id: str
    name: str
    role: str = "worker"
    description: str = ""
    system_prompt: str
    mcp_servers: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    model: str | None = None
    preferred_instance: str | None = None
    required_output: tuple[str, ...] = ()
    temperature: float | None = None
    max_tokens: PositiveInt = 1024

    @model_validator(mode="after")
    def _id_is_token(self) -> Node:
        if not is_token(self.id):
            raise ValueError(f"node id {self.id!r} must be of letters, digits, '_' and '-'")
        return self


class Features(Part):
    """What helps small models, switchable per template and run; from `text_apart` on in guided turns only."""

    constrained_turns: Literal["auto", "always", "never"] = "auto"  # one action a turn, under a schema; auto: as the model needs it
    hold_to_request: bool = True  # files that the message asks for are owed
    reask: bool = True  # a turn that calls no tool although one is due is asked once more
    files_listed: bool = True  # the first message lists the workspace
    text_apart: bool = True  # a file's content is asked for in a turn of its own, outside of JSON
    gated_finish: bool = True  # the end is offered only where nothing owed is missing
    narrowed_paths: bool = True  # tools and paths that could not help now are not offered
    repeats_barred: bool = True  # what was just done in the same state is not done again
    named_shown: bool = True  # the files that the request names are shown before the first turn
    changes_shown: bool = True  # what a command made of files is shown after it
    next_step_named: bool = True  # each result comes with what to do next
    form_checked: bool = True  # a made file that is broken by its kind is sent back
    edits_rewrite: bool = True  # a small file is edited by giving it anew, with its old content beside the question
    looked_over: bool = True  # what was made is shown beside the request before the first finish counts

    @classmethod
    def off(cls, name: str) -> bool | str:
        """The value of a field that switches it off.

        Raises:
            BadInput: there is no such field.
        """
        if name not in cls.model_fields:
            raise BadInput(f"no mechanism {name!r}. Known: {', '.join(cls.model_fields)}", field="features")
        return "never" if name == "constrained_turns" else False

    def without(self, names: Iterable[str]) -> Features:
        """These, with some switched off.

        Raises:
            BadInput: there is no such field.
        """
        return self.model_copy(update={name: self.off(name) for name in names})


class Template(Part):
    id: str
    name: str
    description: str = ""
    topology: Literal["single", "sequential", "roundtable", "hierarchical", "dynamic-parallel"] = "single"
    context_window: PositiveInt = 8192
    nodes: tuple[Node, ...] = Field(min_length=1)
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    features: Features = Features()

    @model_validator(mode="after")
    def _unique_nodes(self) -> Template:
        ids = [node.id for node in self.nodes]
        if len(set(ids)) != len(ids):
            raise ValueError("two nodes have the same id")
        return self

    def as_bytes(self) -> bytes:
        """Canonical JSON: what is stored with a run, and hashed."""
        return canonical(self.model_dump(mode="json"))

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)


def parse_template(content: bytes, origin: str) -> Template:
    """A template from JSON.

    Raises:
        BadInput: it is not JSON, or a field is wrong; the message names it.
    """
    try:
        return Template.model_validate(orjson.loads(content))
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{origin}: not valid JSON: {error}", field=origin) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{origin}: {place}: {first['msg']}", field=place) from error
