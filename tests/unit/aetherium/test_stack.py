from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from aetherium.launcher import stack
from aetherium.launcher.stack import Plan, make_plan
from shared import config
from shared.config import ChromaSettings, GatewaySettings, InferenceSettings, NatsSettings, PostgresSettings, Settings
from tests.requirements import covers

NO_MODEL = InferenceSettings(detect=False, local_model=False)
ELSEWHERE: dict[str, Any] = {
    "nats": NatsSettings(url="nats://db.example:4222"),
    "postgres": PostgresSettings(dsn=SecretStr("postgresql://u:p@db.example/x")),
    "chroma": ChromaSettings(url="http://db.example:8000"),
    "inference": InferenceSettings(url="http://gpu.example:1234"),
}


def settings(tmp_path: Path, **sections: Any) -> Settings:
    return Settings(data_dir=tmp_path, **{"inference": NO_MODEL, **sections})


def child_settings(plan: Plan, name: str) -> Settings:
    """What a service would read."""
    return config.load(next(spec.env for spec in plan.specs if spec.name == name), file=None)


async def test_everything_that_has_no_address_is_started(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path))
    names = [spec.name for spec in plan.specs]
    assert names == ["nats", "postgres", "chroma", "containers", "tools", "scheduler", "recorder", "orchestrator", "gateway"]


async def test_what_has_an_address_is_not_started_and_not_waited_for(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path, **ELSEWHERE))
    assert {spec.name for spec in plan.specs} == set(stack.PARTS.after)
    assert all(spec.after == () for spec in plan.specs)
    assert plan.urls["inference"] == "http://gpu.example:1234"
    assert plan.model.source == "configured"


async def test_chroma_can_be_left_out(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path, chroma=ChromaSettings(enabled=False)))
    assert "chroma" not in {spec.name for spec in plan.specs}


async def test_every_service_gets_the_same_addresses_and_a_health_port_of_its_own(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path))
    services = [child_settings(plan, name) for name in stack.PARTS.after]
    assert {service.nats.url for service in services} == {plan.urls["nats"]}
    assert {service.postgres.dsn.get_secret_value() for service in services if service.postgres.dsn} == {plan.urls["postgres"]}
    ports = [service.health.port for service in services if service.health.port]
    assert len(set(ports)) == len(services) - 1  # the gateway answers on its own port
    assert {service.data_dir for service in services} == {tmp_path}


@covers("slots.reload")
async def test_the_scheduler_can_read_its_section_of_the_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "scheduler: {lease_ttl_s: 60, slots: {primary: {url: 'http://gpu:1', api_key: k}}}\ngateway: {max_message_chars: 500}\n"
    )
    monkeypatch.setenv("AETHERIUM_CONFIG", str(file))
    monkeypatch.setenv("AETHERIUM_SCHEDULER__LEASE_SWEEP_S", "3")
    given = config.load().model_copy(update={"data_dir": tmp_path, "inference": NO_MODEL})
    plan = await make_plan(given)
    assert child_settings(plan, "scheduler").scheduler == given.scheduler
    file.write_text(file.read_text().replace("60", "90").replace("500", "700"))
    changed = child_settings(plan, "scheduler")
    assert (changed.scheduler.lease_ttl_s, changed.scheduler.lease_sweep_s) == (90, 3)
    assert changed.gateway.max_message_chars == 500  # the other sections are as the engine was started with
    assert child_settings(plan, "gateway").scheduler == given.scheduler


@covers("slots.reload")
async def test_settings_that_came_from_elsewhere_than_the_file_stay_as_they_are(tmp_path: Path) -> None:
    given = settings(tmp_path, scheduler=config.SchedulerSettings(lease_ttl_s=33))
    assert child_settings(await make_plan(given), "scheduler").scheduler == given.scheduler


@covers("stack.ports")
async def test_a_taken_gateway_port_is_replaced_and_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        plan = await make_plan(settings(tmp_path, gateway=GatewaySettings(port=taken)))
    assert plan.settings.gateway.port != taken
    assert plan.urls["gateway"] == f"http://127.0.0.1:{plan.settings.gateway.port}"
    assert any(sentence.startswith(f"port {taken} is taken: gateway uses") for sentence in plan.moved)


async def test_a_scripted_model_takes_the_place_of_every_other(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path, inference=InferenceSettings(url="http://gpu.example:1234", model="big")), scripted=True)
    assert plan.model.is_scripted
    assert "model" in {spec.name for spec in plan.specs}
    assert child_settings(plan, "scheduler").inference.url == plan.model.url
    assert child_settings(plan, "scheduler").inference.model is None


async def test_without_any_model_the_engine_starts_and_says_what_to_do(tmp_path: Path) -> None:
    plan = await make_plan(settings(tmp_path))
    assert plan.model.source == "none"
    assert "AETHERIUM_INFERENCE__URL" in plan.model.text
    assert "inference" not in plan.urls


def test_settings_of_this_process_reach_children_only_as_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERIUM_CONFIG", "/some/aetherium.yaml")
    monkeypatch.setenv("AETHERIUM_GATEWAY__PORT", "1")
    assert not [name for name in stack.base_environ() if name.startswith("AETHERIUM_")]


def test_children_do_not_talk_to_loopback_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    assert stack.base_environ()["NO_PROXY"] == "intranet.example,127.0.0.1,localhost,::1"


@pytest.mark.parametrize(
    ("host", "there"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "localhost")]
)
def test_a_server_is_reached_where_it_was_told_to_listen(host: str, there: str) -> None:
    assert stack.reachable(host) == there
