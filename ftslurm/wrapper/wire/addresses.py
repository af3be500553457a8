"""The address on which ftrun listens, if several networks lead to its node. Pure, except `of_this_node`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network

from ftslurm.errors import LaunchFailed


def chosen(wanted: str, interfaces: Mapping[str, Sequence[str]]) -> str:
    """The address that `nodes.address` means on a node: an interface's, the one in a network, or the given one.

    interfaces: name -> addresses. A name that is not an interface is a host name for the resolver. Raises: LaunchFailed.
    """
    if wanted in interfaces:
        if not (own := [address for address in interfaces[wanted] if not _of_the_link(address)]):
            raise _none(f"{wanted} has no address", interfaces)
        return own[0]
    if "/" not in wanted:
        return wanted
    try:
        network = ip_network(wanted, strict=False)
    except ValueError as error:
        raise _none(f"{wanted} is not a network: {error}", interfaces) from None
    for addresses in interfaces.values():
        for address in addresses:
            if ip_address(address) in network:
                return address
    raise _none(f"no address of this node is in {wanted}", interfaces)


def _none(why: str, interfaces: Mapping[str, Sequence[str]]) -> LaunchFailed:
    there = "; ".join(f"{name} {', '.join(addresses)}" for name, addresses in sorted(interfaces.items()) if addresses)
    return LaunchFailed(f"nodes.address: {why}", hint=f"there are {there}")


def _of_the_link(address: str) -> bool:
    """Is it a link-local address? It needs an interface name, which differs on other nodes."""
    return ip_address(address).is_link_local


def of_this_node() -> dict[str, list[str]]:
    """Name of an interface -> its addresses, IPv4 first."""
    import socket

    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [each.address.partition("%")[0] for family in families for each in found if each.family == family]
        for name, found in psutil.net_if_addrs().items()
    }
