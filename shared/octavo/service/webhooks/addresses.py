"""Addresses that a request for a tenant may go to: public ones, and those of networks that the operator admits.

Python's `is_global` says of NAT64, 6to4, site-local and multicast addresses that they are public, so the list is our
own: the special-purpose registries of IANA.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
_UNICAST_6 = IPv6Network("2000::/3")  # all that was ever given out
_NOT_PUBLIC_6 = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_WITH_IPV4 = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))  # mapped, and NAT64: the last 32 bits are one


class Networks:
    """Judge of addresses. `admitted` are networks in CIDR notation that are no public ones and may be reached all the
    same. Raises ValueError for what is no network."""

    def __init__(self, admitted: Iterable[str] = ()) -> None:
        self._admitted = tuple(ip_network(text) for text in admitted)

    def admits(self, text: str) -> bool:
        """True if a request may go there; False also for what is no address."""
        try:
            address = _unwrapped(ip_address(text))
        except ValueError:
            return False
        if any(address in network for network in self._admitted):
            return True
        if isinstance(address, IPv4Address):
            return not any(address in network for network in _NOT_PUBLIC_4)
        return address in _UNICAST_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address) and any(address in network for network in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
