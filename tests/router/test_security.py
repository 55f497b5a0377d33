"""Keys, addresses, the log, TLS."""

import json
import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from runtime.contract.http import REUSE_PATH
from runtime.contract.node import Role
from runtime.errors import BadInput
from runtime.router import server
from runtime.router.app import Router
from runtime.router.auth import Gate
from runtime.router.logs import JsonLines
from tests.router.fleet import LONG_TEXT, MODEL, router_spec, running_fleet

KEY, ADMIN = "key-of-ann-1234567", "key-of-admin-12345"
KEYS = json.dumps(
    {
        "keys": [
            {"key": KEY, "tenant": "ann"},
            {"key": ADMIN, "tenant": "ops", "admin": True},
        ]
    }
)
HI = {"model": MODEL, "messages": [{"role": "user", "content": "my-secret-prompt"}]}


def bearer(key: str) -> dict[str, str]:
    """OpenAI's header."""
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, bearer("wrong-key-12345678"), {"Authorization": KEY}])
async def test_without_a_known_key_nothing_is_served(model: Path, headers: dict[str, str]) -> None:
    """401 in OpenAI's shape, before the body is looked at; no key is repeated."""
    async with running_fleet(model, gate=Gate(lambda: KEYS)) as fleet:
        reply = await fleet.post(b"{", headers=headers)
        assert (reply.status, reply.body["error"]["type"]) == (401, "authentication_error")
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert b"wrong-key" not in reply.raw
        assert KEY.encode() not in reply.raw
        async with fleet.session.get(f"{fleet.url}/v1/models", headers=headers) as models:
            assert models.status == 401


@pytest.mark.parametrize("headers", [bearer(KEY), {"X-Api-Key": KEY}])
async def test_known_key_is_served_by_either_header(model: Path, headers: dict[str, str]) -> None:
    """OpenAI's and Anthropic's clients both get in."""
    async with running_fleet(model, gate=Gate(lambda: KEYS)) as fleet:
        assert (await fleet.post(HI, headers=headers)).status == 200


async def test_only_administrators_switch_reuse(model: Path) -> None:
    """403 for others; the switch then holds for all turns."""
    async with running_fleet(model, gate=Gate(lambda: KEYS)) as fleet:
        url = fleet.url + REUSE_PATH
        off = {"reuse": "off", "reason": "looking into it"}
        async with fleet.session.put(url, json=off, headers=bearer(KEY)) as reply:
            assert reply.status == 403
        async with fleet.session.put(url, json=off, headers=bearer(ADMIN)) as reply:
            assert (await reply.json())["reuse"] == "off"
        await fleet.post(HI, headers=bearer(KEY))
        assert fleet.stored == []


async def test_engines_are_shown_the_routers_key_and_not_the_clients(model: Path) -> None:
    """With a key of its own for the engines the router sends no client's key on."""
    async with running_fleet(model) as fleet:
        fleet.turns._prefill._legs._authorization = "Bearer engines-only"
        await fleet.post(HI, headers=bearer(KEY))
        legs = [*fleet.prefills[0].requests, *fleet.decodes[0].requests]
        assert {leg.headers["Authorization"] for leg in legs} == {"Bearer engines-only"}


async def test_no_reply_shows_an_engines_address(model: Path) -> None:
    """Whatever fails, clients hear of nodes by name."""
    async with running_fleet(model, dead_prefills=1, health_interval_s=60) as fleet:
        ports = [str(node.url.rsplit(":", 1)[1]) for node in fleet.turns.fleet.nodes]
        fleet.decodes[0].faults.fail_next = [500, 500]
        replies = [await fleet.post(HI)]
        fleet.decodes[0].faults.reset_next = 2
        replies.append(await fleet.post(HI))
        fleet.decodes[0].faults.die_after_chunks = 1
        replies.append(await fleet.post(HI | {"stream": True}))
        fleet.prefills[0].faults.garbage_next = 1
        replies.append(await fleet.post(HI))
        async with fleet.session.get(f"{fleet.url}/health") as health:
            texts = [reply.raw.decode() for reply in replies] + [await health.text()]
        for text in texts:
            assert not [port for port in ports if f":{port}" in text]
            assert "remote_host" not in text
        assert "decode-1" in texts[1]


async def test_log_holds_neither_keys_nor_prompts(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through failures and --explain: request ids and decisions, and nothing of the client's."""
    caplog.set_level(logging.DEBUG)
    async with running_fleet(model, gate=Gate(lambda: KEYS), explain=True) as fleet:
        caplog.handler.setFormatter(JsonLines())
        for fault in ("fail_next", "garbage_next"):
            setattr(fleet.decodes[0].faults, fault, [500, 500] if fault == "fail_next" else 1)
            await fleet.post(HI, key="my-secret-talk", headers=bearer(KEY))
        await fleet.post(b'{"messages": "my-secret-prompt"}', headers=bearer(KEY))
        await fleet.post(HI, headers=bearer("wrong-key-12345678"))
    lines = [JsonLines().format(record) for record in caplog.records]
    told = "\n".join(line for line in lines if '"turn"' in line)
    assert '"path":"cold"' in told
    assert "my-secret" not in "\n".join(lines)
    assert KEY not in "\n".join(lines)
    assert "wrong-key" not in "\n".join(lines)


async def test_request_id_is_the_clients_and_stands_in_the_log(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply names its request, and so does every line about it; an odd id is replaced."""
    async with running_fleet(model) as fleet:
        caplog.handler.setFormatter(JsonLines())
        fleet.prefills[0].faults.reset_next = 1
        reply = await fleet.post(HI, headers={"X-Request-ID": "mine-7"})
        assert reply.headers["X-Request-ID"] == "mine-7"
        odd = await fleet.post(HI, headers={"X-Request-ID": "x" * 200})
        assert len(odd.headers["X-Request-ID"]) == 32
    assert '"request_id":"mine-7"' in caplog.text


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for this machine."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    argv += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*argv, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_tls(model: Path, tmp_path: Path) -> None:
    """With a certificate the router speaks HTTPS, and only that."""
    cert, key = certificate(tmp_path)
    spec: dict[str, Any] = {"tls_certificate": cert, "tls_key": key}
    async with running_fleet(model) as fleet:
        urls = {f"{role}_urls": [n.url for n in fleet.turns.fleet.usable(role)] for role in ROLES}
        router = Router(router_spec(**urls, **spec))
        async with server.listening(router, server.tls_of(router.spec)) as port:
            trust = ssl.create_default_context(cafile=str(cert))
            url = f"https://127.0.0.1:{port}/v1/chat/completions"
            async with fleet.session.post(url, json=HI, ssl=trust) as reply:
                assert reply.status == 200
            with pytest.raises(aiohttp.ClientError):
                await fleet.session.post(url.replace("https", "http"), json=HI)


ROLES: tuple[Role, ...] = ("prefill", "decode")


def test_bad_certificate_is_told(tmp_path: Path) -> None:
    """What, got, allowed and fix; before anything listens."""
    bad = tmp_path / "bad.pem"
    bad.write_text(LONG_TEXT)
    urls = {f"{role}_urls": ["http://127.0.0.1:1"] for role in ROLES}
    with pytest.raises(BadInput, match="certificate"):
        server.tls_of(router_spec(tls_certificate=bad, tls_key=bad, **urls))
