"""A request that is made for a tenant reaches public addresses only, whatever names resolve to, and keeps nothing of
its answer."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from receivers import HOSTS, LOCAL, Receiver, receiving

from octavo.service.webhooks import outgoing
from octavo.service.webhooks.addresses import Networks
from octavo.service.webhooks.outgoing import Answer, Outgoing
from octavo.terms.errors import InvalidRequest

NOT_PUBLIC = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.1.2.3"),
    *("169.254.169.254", "169.254.0.1", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.170", "192.0.2.1"),
    *("192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "192.175.48.1", "198.18.0.1"),
    *("198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:2::1", "2001:10::1"),
    *("2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2620:4f:8000::1", "3fff::1", "5f00::1"),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "ff02::1", "ff0e::1"),
    *("4000::1", "not an address", ""),
)
PUBLIC = (
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.1.1.1", "128.0.0.1"),
    *("169.253.1.1", "172.15.0.1", "172.32.0.1", "192.0.1.1", "192.167.1.1", "192.169.1.1", "198.17.0.1"),
    *("198.20.0.1", "223.255.255.255", "2001:200::1", "2606:4700::1", "2a00:1450::1", "64:ff9b::808:808"),
    "::ffff:8.8.8.8",
)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not Networks().admits(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_admitted(address: str) -> None:
    assert Networks().admits(address)


def test_a_network_that_is_named_is_admitted_and_nothing_beside() -> None:
    networks = Networks(["10.1.0.0/16", "fd00:1::/32"])
    assert all(networks.admits(text) for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5", "8.8.8.8"))
    assert not any(networks.admits(text) for text in ("10.2.0.1", "fd00:2::1", "127.0.0.1"))
    with pytest.raises(ValueError, match="host bits"):
        Networks(["10.1.0.1/16"])


@pytest.mark.parametrize("host", HOSTS)
async def test_no_way_to_write_this_machine_is_let_through(host: str) -> None:
    sender = Outgoing(http=True)
    url = f"http://{host}/hook"
    with pytest.raises(InvalidRequest):
        await sender.check(url)
    assert (await sender.post(url, b"{}", {})).status == 0


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.com", "ftp://example.com/", "https://", "https:///x", "https://u:p@example.com/"),
        *("https://example.com/#x", "https://example.com:0/", "https://example.com:99999/", "https://ex ample.com/"),
        *("https://example.com/\r\nX: y", "https://exämple.com/", "https://[::1", "https://example.com\\@127.0.0.1/"),
        *("https://[fe80::1%25eth0]/", "https://example.com/" + "x" * 2048, "file:///etc/passwd", "//example.com/"),
    ],
)
async def test_what_is_no_address_of_a_receiver_is_refused(url: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["8.8.8.8"]

    sender = Outgoing(http=True, resolver=resolve)
    with pytest.raises(InvalidRequest) as refused:
        await sender.check(url)
    assert (refused.value.code, refused.value.param) == ("invalid_url", "url")
    assert (await sender.post(url, b"{}", {})).problem == "invalid_url"


async def test_http_is_refused_unless_it_is_admitted() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["8.8.8.8"]

    with pytest.raises(InvalidRequest, match="OCTAVO_WEBHOOK_HTTP"):
        await Outgoing(resolver=resolve).check("http://example.com/")
    await Outgoing(resolver=resolve).check("https://example.com/")
    await Outgoing(resolver=resolve, http=True).check("http://example.com/")


class Fickle:
    """A resolver whose answer changes between two questions."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0)


@pytest.mark.parametrize("address", [text for text in NOT_PUBLIC if ":" in text or text[:1].isdigit()])
async def test_a_name_that_turns_to_a_private_address_is_refused_at_the_request(address: str) -> None:
    resolver = Fickle(["8.8.8.8"], [address], ["8.8.8.8", address])
    sender = Outgoing(http=True, resolver=resolver)
    await sender.check("http://receiver.test/")
    assert (await sender.post("http://receiver.test/", b"{}", {})).problem == "address_refused"
    with pytest.raises(InvalidRequest):  # of several addresses each is checked
        await sender.check("http://receiver.test/")
    assert len(resolver.asked) == 3


async def test_the_connection_is_made_to_the_address_that_was_checked(receiver: Receiver) -> None:
    resolver = Fickle(["127.0.0.1"], ["10.0.0.1"])
    sender = Outgoing(http=True, networks=LOCAL, resolver=resolver)
    url = f"http://receiver.test:{receiver.port}/200/x?a=b"
    assert (await sender.post(url, b'{"a":1}', {"webhook-id": "e"})).status == 200
    assert resolver.asked == ["receiver.test"]  # once: a second question could have another answer
    (got,) = receiver.received
    assert (got.path, got.body) == ("/200/x?a=b", b'{"a":1}')
    assert got.headers["host"] == f"receiver.test:{receiver.port}"
    assert (await sender.post(url, b"{}", {})).problem == "address_refused"


async def test_a_proxy_of_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    sender = Outgoing(http=True, networks=LOCAL)
    assert (await sender.post(receiver.url("/204"), b"{}", {})).is_taken


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("/200", 200, ""),
        ("/500", 500, ""),
        ("/410", 410, ""),
        ("/redirect", 302, ""),
        ("/close", 0, "unreachable"),
        ("/garbage", 0, "unreachable"),
        ("/lie", 200, ""),
        ("/flood", 200, ""),
    ],
)
async def test_an_answer_is_its_status(receiver: Receiver, path: str, status: int, problem: str) -> None:
    sender = Outgoing(http=True, networks=LOCAL)
    answer = await sender.post(receiver.url(path), b"{}", {})
    assert (answer.status, answer.problem) == (status, problem)
    assert answer.is_taken == (200 <= status < 300)
    assert len(receiver.received) == 1, "a redirect was followed, or the request repeated"
    assert receiver.read_by_client < 32 << 20  # most of it lies in buffers of sockets


async def test_a_receiver_that_hangs_is_left(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WHOLE_S", 1.0)
    sender = Outgoing(http=True, networks=LOCAL)
    answers = await asyncio.gather(*(sender.post(receiver.url(path), b"{}", {}) for path in ("/hang", "/trickle")))
    assert answers == [Answer(0, "timeout"), Answer(200)]


async def test_a_name_server_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "CONNECT_S", 0.2)

    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.sleep(3600)
        return []

    sender = Outgoing(resolver=resolve)
    assert (await sender.post("https://receiver.test/", b"{}", {})).problem == "timeout"
    with pytest.raises(InvalidRequest):
        await sender.check("https://receiver.test/")


async def test_retry_after_is_read(receiver: Receiver) -> None:
    sender = Outgoing(http=True, networks=LOCAL)
    assert (await sender.post(receiver.url("/later"), b"{}", {})).retry_after_s == 3000.0
    assert outgoing._retry_after([(b"Retry-After", b"Wed, 21 Oct 2015 07:28:00 GMT")]) == 0.0
    assert outgoing._retry_after([(b"Retry-After", b"Wed, 21 Oct 2195 07:28:00 GMT")]) > 1e9
    assert outgoing._retry_after([(b"retry-after", b"-5")]) == outgoing._retry_after([]) == 0.0


async def test_a_certificate_of_the_host_is_asked_for(tmp_path: Path) -> None:
    certificate = made_certificate(tmp_path, "receiver.test")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with receiving(context) as receiver:
        trusting = ssl.create_default_context(cafile=str(certificate))
        known = Outgoing(networks=LOCAL, resolver=resolve, context=trusting)
        urls = [f"https://{host}:{receiver.port}/200" for host in ("receiver.test", "other.test")]
        assert [str(await known.post(url, b"{}", {})) for url in urls] == ["200", "unreachable"]
        assert str(await Outgoing(networks=LOCAL, resolver=resolve).post(urls[0], b"{}", {})) == "unreachable"
        assert len(receiver.received) == 1


def made_certificate(folder: Path, host: str) -> Path:
    """A certificate without an authority behind it, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{host}.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path


def test_the_tables_have_sixty_rows_and_python_would_let_some_through() -> None:
    assert len(NOT_PUBLIC) + len(HOSTS) >= 60
    let_through = []
    for text in NOT_PUBLIC:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(text).is_global:
                let_through.append(text)
    assert {"64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fec0::1", "224.0.0.1"} & set(let_through)
