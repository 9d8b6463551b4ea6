"""The scripted model server: which turn answers, and how it goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from simulators.script import DEFAULT_SCRIPT, Script, load_script, parse_script
from simulators.testing import running

ASK = {"role": "user", "content": "do it"}
SAID = {"role": "assistant", "content": "done"}


def content_of(script: Script, messages: list[dict[str, Any]]) -> str:
    chosen = script.choose(messages)
    assert chosen is not None
    return chosen.spec.content


async def post(url: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        return await client.post(f"{url}/v1/chat/completions", json={"messages": [ASK], **body})


def test_the_turn_follows_from_the_assistant_messages_and_the_last_one_repeats() -> None:
    script = parse_script("[{content: a, times: 2}, {content: b}]")
    assert [content_of(script, [ASK, *[SAID] * done]) for done in range(5)] == ["a", "a", "b", "b", "b"]


def test_a_conversation_is_found_by_the_newest_user_message_that_matches() -> None:
    script = parse_script("""
        conversations:
          - {match: primes, turns: [{content: p}]}
          - {match: poem, turns: [{content: q}]}
        turns: [{content: other}]
    """)
    primes, poem, nudge = ({"role": "user", "content": text} for text in ("print primes", "write a poem", "go on"))
    assert content_of(script, [primes]) == "p"
    assert content_of(script, [primes, SAID, nudge]) == "p"
    assert content_of(script, [poem]) == "q"
    assert content_of(script, [nudge]) == "other"


def test_a_wrong_key_in_a_script_is_named() -> None:
    with pytest.raises(ValidationError, match="contnt"):
        parse_script("[{contnt: a}]")


def test_a_script_without_turns_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs `turns`"):
        parse_script("model: m")


async def test_places_in_texts_and_arguments_are_filled_in() -> None:
    turn = {"content": "${turn}: ${user}", "tool_calls": [{"name": "t", "arguments": {"line": ["${turn}"]}}]}
    async with running([turn]) as simulator:
        message = (await post(simulator.url, messages=[ASK, SAID])).json()["choices"][0]["message"]
    assert message["content"] == "1: do it"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"line": ["1"]}'


async def test_equal_requests_get_equal_answers_ids_included() -> None:
    async with running([{"content": "a", "tool_calls": [{"name": "t"}]}]) as simulator:
        first, again = [(await post(simulator.url)).json() for _ in range(2)]
    assert first == again


async def test_requests_are_kept_in_order_with_how_they_ended() -> None:
    async with running([{"content": "a", "fault": "http_500", "first_n": 1}]) as simulator:
        assert [(await post(simulator.url, seed=seed)).status_code for seed in range(2)] == [500, 200]
        async with httpx.AsyncClient(trust_env=False) as client:
            kept = (await client.get(f"{simulator.url}/_requests")).json()["requests"]
    assert [(one["index"], one["body"]["seed"], one["outcome"]) for one in kept] == [(0, 0, "faulted"), (1, 1, "served")]


async def test_a_server_stops_although_an_answer_never_comes() -> None:
    async with asyncio.timeout(5):
        async with running([{"fault": "never"}]) as simulator:
            waiting = asyncio.create_task(post(simulator.url))
            await simulator.until_outcome(0, "open")
        with pytest.raises(httpx.TransportError):
            await waiting


async def test_a_body_that_is_no_chat_is_a_server_error_as_with_llama_server() -> None:
    async with running([{"content": "a"}]) as simulator, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.post(f"{simulator.url}/v1/chat/completions", content=b"{")).status_code == 500
        assert (await client.get(f"{simulator.url}/nowhere")).json()["error"]["code"] == 404


def test_the_demo_script_does_the_demos_task(tmp_path: Path) -> None:
    script = load_script(DEFAULT_SCRIPT)
    asked = {
        "role": "user",
        "content": "Write primes.py that prints the prime numbers below 100, one per line. Run it, and save its output.",
    }
    turns = [script.choose([asked, *[SAID] * done]) for done in range(4)]
    calls = [(call.name, call.arguments) for turn in turns if turn for call in turn.spec.tool_calls]
    assert [name for name, _ in calls] == ["write_file", "run_shell", "read_file"]
    (_, written), (_, ran), (_, read) = calls
    assert isinstance(written, dict)
    assert isinstance(ran, dict)
    assert isinstance(read, dict)
    (tmp_path / written["path"]).write_text(written["content"])
    subprocess.run(["sh", "-c", ran["command"]], cwd=tmp_path, check=True, timeout=20)
    primes = [number for number in range(2, 100) if all(number % divisor for divisor in range(2, number))]
    assert (tmp_path / read["path"]).read_text().split() == [str(prime) for prime in primes]


async def test_the_command_writes_its_port_once_it_serves(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "simulators.openai_server", "--port", "0", "--port-file", str(port_file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(20):
            assert process.stdout is not None
            assert b"scripted model at" in await process.stdout.readline()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{int(port_file.read_text())}/health")).json() == {"status": "ok"}
    finally:
        process.terminate()
        await process.wait()
