"""The slot catalogue, what is wrong with its settings, and what runs where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.scheduler.model_names import base_of, same_model
from services.scheduler.placement import Probes, chat_model, pins, place_node, place_role
from services.scheduler.slot_checks import problems
from services.scheduler.slots import Catalogue, catalogue
from shared import config
from shared.scheduler_settings import SchedulerSettings
from tests.requirements import covers


def settings(**sections: Any) -> SchedulerSettings:
    return SchedulerSettings.model_validate(sections)


def known(**sections: Any) -> Catalogue:
    return catalogue(settings(**sections))


SLOTS: dict[str, Any] = {"art": {}, "secondary": {"card": "gpu0"}, "_judge": {}, "primary": {"card": "gpu0"}, "far": {}}


# ---- the catalogue


@covers("slots.catalogue")
def test_slots_stand_as_primary_secondary_then_the_others_in_slot_order_without_hidden_ones() -> None:
    assert known(slots=SLOTS).order == ("primary", "secondary", "art", "far")
    assert known(slots=SLOTS, slot_order=["far", "art"]).order == ("primary", "secondary", "far", "art")


@covers("slots.catalogue")
def test_a_hidden_slot_is_used_when_named_and_never_chosen() -> None:
    box = known(slots=SLOTS, role_placement={"decision": {"slot": "_judge"}})
    assert box.slots["_judge"].is_hidden
    assert "_judge" not in box.order
    assert all("_judge" not in slot.alternates for slot in box.slots.values())
    placed = place_role(box, "decision")
    assert placed is not None
    assert placed.slot == "_judge"


@covers("slots.catalogue")
def test_alternates_are_all_other_visible_slots_in_order_or_those_that_are_named() -> None:
    slots = {**SLOTS, "art": {"alternates": ["far", "art"]}}
    box = known(slots=slots)
    assert box.slots["primary"].alternates == ("secondary", "art", "far")
    assert box.slots["art"].alternates == ("far",), "no slot is its own alternate"


@covers("slots.catalogue")
def test_slots_share_the_card_that_they_name_and_others_have_one_of_their_own_of_unknown_size() -> None:
    box = known(cards={"gpu0": {"size_mib": 24_000}}, slots=SLOTS)
    assert [slot.name for slot in box.on_card("gpu0")] == ["secondary", "primary"]
    assert box.card_of("primary").size_mib == 24_000
    assert box.card_of("far").size_mib is None
    assert box.on_card(box.card_of("far").name) == (box.slots["far"],)


@covers("slots.catalogue")
def test_the_catalogue_is_read_from_the_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "aetherium.yaml"
    file.write_text(
        """
scheduler:
  cards: {gpu0: {size_mib: 24576, reserve_mib: 300}}
  slots:
    primary:
      url: http://127.0.0.1:1234
      card: gpu0
      concurrency: 4
      models: {qwen3-8b: {mib: 8000, context_tokens: 32768}}
      standard_set: [qwen3-8b]
      restore_delay_s: 90
  preempt_grace_s: 45
"""
    )
    box = catalogue(config.load({}, file).scheduler)
    slot = box.slots["primary"]
    assert (slot.concurrency, slot.standard_set, slot.restore_delay.total_seconds()) == (4, ("qwen3-8b",), 90)
    assert (slot.models["qwen3-8b"].mib, slot.models["qwen3-8b"].context_tokens) == (8000, 32768)
    assert (box.cards["gpu0"].size_mib, box.cards["gpu0"].reserve_mib) == (24576, 300)
    assert box.times.preempt_grace.total_seconds() == 45


@covers("slots.catalogue")
def test_a_child_process_reads_the_same_tables_from_its_environment(tmp_path: Path) -> None:
    tables = {"slots": {"primary": {"card": "gpu0", "api_key": "k", "models": {"m": {"mib": 5}}}}, "cards": {"gpu0": {"size_mib": 9}}}
    first = config.Settings.model_validate({"data_dir": tmp_path, "scheduler": tables})
    again = config.load(config.as_environ(first), file=None)
    assert again.scheduler == first.scheduler
    key = again.scheduler.slots["primary"].api_key
    assert key is not None
    assert key.get_secret_value() == "k"


@covers("stack.config", "lease.bad_input")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"slots": {"a.b": {}}}, "can't be a name"),
        ({"slots": {"a": {"concurrencey": 2}}}, "scheduler.slots.a.concurrencey"),
        ({"slots": {"a": {"models": {"m": {"mib": -5}}}}}, "scheduler.slots.a.models.m.mib"),
        ({"cards": {"gpu0": {"size_mib": 0}}}, "scheduler.cards.gpu0.size_mib"),
        ({"restore_attempts": 0}, "scheduler.restore_attempts"),
        ({"slots": "{"}, "JSON"),
    ],
)
def test_a_wrong_value_stops_the_start_and_is_named(tmp_path: Path, given: dict[str, Any], named: str) -> None:
    file = tmp_path / "aetherium.yaml"
    file.write_text(config.yaml.safe_dump({"scheduler": given}))
    with pytest.raises(config.BadSetting, match=named):
        config.load({}, file)


def test_a_misspelt_key_of_a_slot_is_told_its_nearest_neighbour(tmp_path: Path) -> None:
    file = tmp_path / "aetherium.yaml"
    file.write_text("scheduler: {slots: {primary: {standart_set: []}}}")
    with pytest.raises(config.BadSetting, match="standard_set"):
        config.load({}, file)


# ---- boot validation


@covers("slots.checks")
@pytest.mark.parametrize(
    ("sections", "tag", "setting"),
    [
        ({"slots": {"primary": {"card": "gpu7"}}}, "[GPU-CARDS]", "scheduler.slots.primary.card"),
        (
            {"slots": {"primary": {}}, "role_placement": {"verifier": {"slot": "none"}}},
            "[ROLE-PLACEMENT]",
            "scheduler.role_placement.verifier",
        ),
        (
            {"slots": {"primary": {}}, "role_placement": {"typist": {"slot": "primary"}}},
            "[ROLE-PLACEMENT]",
            "scheduler.role_placement.typist",
        ),
        ({"slots": {"primary": {}}, "offline_fallback_slot": "none"}, "[ROLE-PLACEMENT]", "scheduler.offline_fallback_slot"),
        ({"slots": {"primary": {}}, "slot_order": ["none"]}, "[SLOTS]", "scheduler.slot_order"),
        ({"slots": {"primary": {"alternates": ["none"]}}}, "[SLOTS]", "scheduler.slots.primary.alternates"),
        ({"slots": {"primary": {}}, "default_node_instance": "none"}, "[SLOTS]", "scheduler.default_node_instance"),
        ({"slots": {"primary": {"models": {"a": {}}, "standard_set": ["b"]}}}, "[SLOTS]", "scheduler.slots.primary.standard_set"),
        ({"slots": {"primary": {"max_models": 1, "standard_set": ["a", "b"]}}}, "[SLOTS]", "scheduler.slots.primary.standard_set"),
    ],
)
def test_settings_that_do_not_fit_together_are_told_and_the_start_goes_on(sections: dict[str, Any], tag: str, setting: str) -> None:
    (problem,) = problems(settings(**sections))
    assert problem.tag == tag
    assert problem.setting.startswith(setting)
    assert str(problem).startswith(f"{tag} {setting}")
    assert problem.instead
    catalogue(settings(**sections))


@covers("slots.checks")
def test_settings_that_fit_together_have_no_problems_and_nor_do_none_at_all() -> None:
    assert problems(settings()) == ()
    fine = settings(cards={"gpu0": {}}, slots=SLOTS, role_placement={"verifier": {"slot": "far"}}, offline_fallback_slot="primary")
    assert problems(fine) == ()
    assert known().order == ()


# ---- roles


ROLES: dict[str, Any] = {"verifier": {"slot": "far"}, "step_judge": {"slot": "far", "pinned": True}, "typist": {"slot": "far"}}


@covers("slots.roles")
def test_a_role_goes_to_its_slot_and_one_without_a_place_to_the_first() -> None:
    box = known(slots=SLOTS, role_placement=ROLES)
    assert [placed and (placed.slot, placed.binds) for placed in (place_role(box, "verifier"), place_role(box, "summary"))] == [
        ("far", False),
        ("primary", False),
    ]
    assert place_role(known(), "summary") is None


@covers("slots.roles")
def test_an_unpinned_role_leaves_a_slot_that_is_down_and_a_pinned_one_stays() -> None:
    box = known(slots=SLOTS, role_placement=ROLES, offline_fallback_slot="art")
    moved, stayed = place_role(box, "verifier", {"far"}), place_role(box, "step_judge", {"far"})
    assert moved is not None
    assert (moved.slot, moved.binds) == ("art", False)
    assert "far" in moved.reason
    assert stayed is not None
    assert (stayed.slot, stayed.binds) == ("far", True)
    both_down = place_role(box, "verifier", {"far", "art"})
    assert both_down is not None
    assert both_down.slot == "far", "a fallback that is down is none"


@covers("slots.roles")
def test_a_slot_is_down_after_two_failed_probes_in_a_row_and_up_after_one_that_was_answered() -> None:
    probes = Probes().after("far", answered=False)
    assert probes.down == frozenset()
    probes = probes.after("far", answered=True).after("far", answered=False)
    assert probes.down == frozenset()
    probes = probes.after("far", answered=False)
    assert probes.down == {"far"}
    assert probes.after("far", answered=True).down == frozenset()


@covers("slots.roles")
def test_an_embedding_model_is_never_chosen_for_a_chat_whatever_its_server_says_it_is() -> None:
    """A server listed `jina-embeddings-v3` as an llm; what the settings say decides."""
    listed = ["nomic-embed-text-v1.5", "jina-embeddings-v3", "qwen3-8b"]
    box = known(slots={"primary": {}}, embedding_models=["nomic-embed-text-v1.5", "jina-embeddings-v3"])
    assert chat_model(box, "primary", listed) == "qwen3-8b"
    assert chat_model(box, "primary", ["jinaai/jina-embeddings-v3@f16"]) is None
    placed = known(slots={"primary": {"standard_set": ["jina-embeddings-v3", "qwen3-8b"]}}, embedding_models=["jina-embeddings-v3"])
    assert chat_model(placed, "primary") == "qwen3-8b"


# ---- nodes and pins


@covers("slots.nodes")
@pytest.mark.parametrize(
    ("standard_set", "model", "instance", "slot"),
    [
        (["qwen3-8b"], "qwen3-8b", None, "primary"),
        (["acme/Qwen3-8B@q4_k_m"], "qwen3-8b", None, "primary"),
        (["qwen3-8b", "embed"], "qwen3-8b", None, "primary"),
        (["qwen3-8b"], "coder", None, None),
        (["acme/qwen3-8b", "other/qwen3-8b"], "qwen3-8b", None, None),
        (["qwen3-8b"], "qwen3-8b", "far", "far"),
        (["qwen3-8b"], None, None, None),
        ([], "qwen3-8b", None, None),
    ],
)
def test_a_node_that_names_only_a_model_goes_to_the_default_slot_if_its_standard_set_has_exactly_one_match(
    standard_set: list[str], model: str | None, instance: str | None, slot: str | None
) -> None:
    box = known(slots={"primary": {"standard_set": standard_set}, "far": {}}, default_node_instance="primary")
    assert place_node(box, model, instance) == slot


@covers("slots.nodes")
def test_a_slot_is_pinned_when_exactly_one_model_targets_it_and_its_standard_set_names_no_other() -> None:
    slots = {"empty": {}, "same": {"standard_set": ["qwen3-8b", "embed"]}, "other": {"standard_set": ["coder"]}, "two": {}}
    box = known(slots=slots, embedding_models=["embed"])
    targets = {"empty": ["qwen3-8b"], "same": ["Qwen3-8B"], "other": ["qwen3-8b"], "two": ["a", "b"], "gone": ["a"]}
    assert pins(box, targets) == {"empty": "qwen3-8b", "same": "Qwen3-8B"}


# ---- names


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("qwen3-8b", "QWEN3-8B", True),
        ("acme/qwen3-8b", "qwen3-8b", True),
        ("acme/qwen3-8b", "other/qwen3-8b", False),
        ("qwen3-8b@q4", "qwen3-8b", True),
        ("qwen3-8b@q4", "qwen3-8b@q8", False),
        ("qwen3-8b", "qwen3-80b", False),
        ("qwen3:8b", "qwen3:4b", False),
    ],
)
def test_ids_mean_one_model_where_nothing_that_both_name_differs(one: str, other: str, same: bool) -> None:
    assert same_model(one, other) is same
    assert same_model(other, one) is same


@pytest.mark.parametrize(
    ("instance", "base"), [("qwen3-8b:2", "qwen3-8b"), ("qwen3-8b:12", "qwen3-8b"), ("qwen3-8b:1", "qwen3-8b:1"), ("llama3:8", "llama3:8")]
)
def test_a_numbered_copy_is_its_model_only_where_that_is_known(instance: str, base: str) -> None:
    assert base_of(instance, ["qwen3-8b"]) == base
