"""Pages of other origins, and names that point at a gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S

JOB = {"model": MODEL, "prompt": "x"}


async def submit(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        return await http.post("/v1/jobs", json=JOB, headers=headers)


STRANGERS = (
    *("https://evil.example", "http://evil.example", "http://evil.example:8000", "null", "", "file://", "*"),
    *("http://127.0.0.1.evil.example", "http://localhost.evil.example", "http://localhost.evil.example:3000"),
    *("http://evil-localhost", "http://evil.localhost.example", "http://localhost@evil.example", "http://localhost."),
    *("http://evil.example/http://localhost", "http://evil.example#http://localhost:3000", "http://localhost:3000/"),
    *("http://localhost:3000@evil.example", "http://localhost:3000.evil.example", "http://localhost,https://e.example"),
    *("http://127.0.0.1evil.example", "http://127.evil.example", "http://127.0.0.1:x", "http://128.0.0.1:3000"),
    *("http://2130706433", "http://0x7f.0.0.1", "http://0.0.0.0:3000", "http://10.1.2.3:3000", "http://172.17.0.1"),
    *("http://[::2]:3000", "http://[::ffff:127.0.0.1]:3000", "http://host.docker.internal:3000", "http://web:3000"),
    *("http://localtest.me", "http://127.0.0.1.nip.io", "ws://localhost:3000", "chrome-extension://abcdefgh"),
    *("localhost:3000", "//localhost:3000", "HTTP://EVIL.EXAMPLE", "http://\u0131ocalhost", "javascript://localhost"),
)
LOCAL = (
    *("http://localhost:3000", "http://127.0.0.1:5173", "https://localhost", "http://[::1]:8080", "http://127.0.0.2"),
    *("http://app.localhost:3000", "http://tenant-1.app.localhost:3000"),
)


async def refused(url: str, forms: Iterable[str], header: str, **headers: str) -> set[str]:
    """The forms of a header with which a job is refused. One that is, is told to no page."""
    found = set()
    others = [(name.encode(), value.encode()) for name, value in headers.items()]
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for form in forms:
            reply = await http.post("/v1/jobs", json=JOB, headers=[(header.encode(), form.encode()), *others])
            if reply.status_code != 202:
                assert reply.json()["error"]["code"] == {"Origin": "foreign_origin", "Host": "unknown_host"}[header]
                assert "access-control-allow-origin" not in reply.headers
                found.add(form)
    return found


@pytest.mark.parametrize("keys", [None, "acme:a-key"])
async def test_a_page_of_another_origin_submits_nothing(
    own_gateway: Callable[..., str], redis_url: str, keys: str | None
) -> None:
    url = own_gateway(api_keys=keys)
    async with ScriptedWorker(redis_url) as worker:
        assert await refused(url, STRANGERS, "Origin", Authorization="Bearer a-key") == set(STRANGERS)
        assert worker.seen == []
        assert (await submit(url, Origin=url, Authorization="Bearer a-key")).status_code == 202


async def test_local_pages_need_no_setting_unless_there_are_keys(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    """With keys a browser may know one of them, which any page would then make it use."""
    async with ScriptedWorker(redis_url):
        url = own_gateway()
        assert await refused(url, LOCAL, "Origin") == set()
        reply = await submit(url, Origin=LOCAL[0])
        assert (reply.headers["access-control-allow-origin"], reply.headers["vary"]) == (LOCAL[0], "Origin")
        for host in ("evil.example", "localhost.evil.example:8000"):
            assert (await submit(url, Origin=LOCAL[0], Host=host)).status_code == 403
        with_keys = own_gateway(api_keys="acme:a-key", cors_origins=LOCAL[0])
        assert await refused(with_keys, LOCAL, "Origin", Authorization="Bearer a-key") == set(LOCAL[1:])


@pytest.mark.parametrize(("origin", "status"), [(LOCAL[1], 200), *((form, 400) for form in STRANGERS[:12])])
async def test_a_preflight_is_for_local_pages(gateway_url: str, origin: str, status: int) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    async with httpx.AsyncClient(base_url=gateway_url, timeout=STALL_S) as http:
        reply = await http.options("/v1/chat/completions", headers={"Origin": origin, **asked})
    assert reply.status_code == status
    assert reply.headers.get("access-control-allow-origin") == (origin if status == 200 else None)


async def test_configured_origins_are_told_that_they_may(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(cors_origins="https://app.example, https://other.example", api_keys="acme:a-key")
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        preflight = await http.options(
            "/v1/jobs", headers={**asked, "Access-Control-Request-Headers": "authorization,content-type"}
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        reply = await submit(url, Origin="https://app.example", Authorization="Bearer a-key")
        assert reply.status_code == 202
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        refused = await submit(url, Origin="https://app.example")  # the page may read why
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (401, True)
        assert (await submit(url, Origin="https://evil.example", Authorization="Bearer a-key")).status_code == 403


async def test_all_origins_may_be_admitted(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(cors_origins="*")
    async with ScriptedWorker(redis_url):
        assert (await submit(url, Origin="https://any.example")).status_code == 202


UNKNOWN = (
    *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example.", "EVIL.EXAMPLE", "["),
    *("localhost@evil.example", "evil.example@localhost.example", "127.0.0.1.nip.io", "localtest.me:8000"),
    *("host.docker.internal.evil.example", "evil.docker.internal", "x.host.docker.internal", "docker.internal"),
    *("host-docker.internal", "metadata.google.internal", "octavo.default.svc.cluster.local", "printer.local", "a.b"),
    *("[::1.example]", "10.1.2.3.example"),
)
KNOWN = (
    *("localhost:8000", "LOCALHOST", "octavo.localhost", "10.1.2.3:8000", "[::1]:8000", "127.0.0.1", "192.168.1.7"),
    *("gateway:8000", "octavo-gateway-1:8000", "my_service", "172.17.0.1:8000", "172.17.0.1", "api.corp.example"),
    *("host.docker.internal:8000", "host.docker.internal", "HOST.DOCKER.INTERNAL:8000", "gateway.docker.internal:8000"),
    *("host.containers.internal:8000", "host.minikube.internal", "host.lima.internal:8000", "host.orb.internal"),
)


async def test_names_that_a_stranger_can_make_point_here_need_a_key(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    async with ScriptedWorker(redis_url):
        url = own_gateway(allowed_hosts="api.corp.example")
        assert await refused(url, UNKNOWN + KNOWN, "Host") == set(UNKNOWN)
        with_keys = own_gateway(api_keys="acme:a-key")
        assert await refused(with_keys, UNKNOWN + KNOWN, "Host", Authorization="Bearer a-key") == set()


@pytest.mark.parametrize("name", ["host.docker.internal:8000", "HOST.containers.internal", "host.docker.internal."])
async def test_a_page_from_the_name_of_a_containers_machine_presses_no_buttons(
    own_gateway: Callable[..., str], redis_url: str, name: str
) -> None:
    """The network, not the machine, may be the one that knows such a name."""
    async with ScriptedWorker(redis_url):
        assert (await submit(own_gateway(), Host=name, Origin=f"http://{name}")).status_code == 403
        named = own_gateway(cors_origins=f"http://{name}")
        assert (await submit(named, Host=name, Origin=f"http://{name}")).status_code == 202


@pytest.mark.parametrize(
    ("host", "keys", "warned"), [("0.0.0.0", None, True), ("0.0.0.0", "acme:a-key", False), ("127.0.0.1", None, False)]
)
def test_a_gateway_that_is_open_to_other_hosts_says_so(
    own_gateway: Callable[..., str], caplog: pytest.LogCaptureFixture, host: str, keys: str | None, warned: bool
) -> None:
    own_gateway(host=host, api_keys=keys)
    assert ("no API keys" in caplog.text) == warned
