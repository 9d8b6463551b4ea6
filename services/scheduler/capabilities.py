"""What is known of models: which must be asked action by action under a schema (feature O28). Pure.

A model of a few billion parameters that was not trained to call tools breaks its own JSON; one that was is
slowed by the schema. The settings override the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Turns = Literal["auto", "guided", "native"]

# Measured on the real model: qwen2.5-coder 1.5B writes calls as text and says that it is done when it is not.
_GUIDED = re.compile(r"qwen2\.5-coder-(0\.5|1\.5|3)b|gemma-?3-?(270m|1b)|smollm|tinyllama|llama-?3\.2-?1b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Profile:
    """How a model is asked; `source` says where that is known from."""

    model: str
    guided: bool
    source: str


def profile(model: str, turns: Turns = "auto") -> Profile:
    """The profile of a model by its name."""
    if turns != "auto":
        return Profile(model, turns == "guided", "settings")
    if _GUIDED.search(model):
        return Profile(model, True, "table")
    return Profile(model, False, "default")
