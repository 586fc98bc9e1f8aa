"""What a host's name says about who can reach it."""

import ipaddress


def loopback(host: str) -> bool:
    """Whether what listens on `host` is reached from this machine only. Other names are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
