"""When two ids mean one model. Servers, settings and templates spell them differently. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

_COPY = re.compile(r":[2-9]\d*$|:1\d+$")  # the suffix that LM Studio gives to a second instance


def same_model(one: str, other: str) -> bool:
    """Whether two ids mean one model: without case, publisher, quantization and number of the copy.

    An id that names a publisher or a quantization matches only where the other does not name a different one.

    >>> same_model("acme/Writer-8B@q4_k_m", "writer-8b"), same_model("acme/writer-8b", "other/writer-8b")
    (True, False)
    """
    (pub_a, name_a, quant_a), (pub_b, name_b, quant_b) = _parts(one), _parts(other)
    return name_a == name_b and _agree(pub_a, pub_b) and _agree(quant_a, quant_b)


def _agree(one: str, other: str) -> bool:
    return not one or not other or one == other


@lru_cache(maxsize=1024)
def _parts(model: str) -> tuple[str, str, str]:
    name, _, quant = model.casefold().partition("@")
    publisher, _, name = name.rpartition("/")
    return publisher, name, quant


def base_of(instance: str, known: Collection[str]) -> str:
    """The model of which a listed id is a further copy (`qwen3-8b:2`), else the id itself.

    Only where the base is known too: with other servers `name:7b` is a tag, and a model of its own.

    >>> base_of("qwen3-8b:2", ["qwen3-8b"]), base_of("qwen3:8", ["qwen3:4"])
    ('qwen3-8b', 'qwen3:8')
    """
    stem = _COPY.sub("", instance)
    return stem if stem != instance and stem in known else instance
