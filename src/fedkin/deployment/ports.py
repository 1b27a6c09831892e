"""Whether a port can be had on this machine, said before a server fails over it."""

from __future__ import annotations

import errno
import socket

from fedkin.errors import FedkinError


def port_fault(host: str, port: int) -> str | None:
    """Why nothing could be started at this port, or None.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     number = server.getsockname()[1]
    ...     told = port_fault("127.0.0.1", number)
    >>> told == f"port {number} of 127.0.0.1 is taken by another program; end it, or choose another port", port_fault(
    ...     "127.0.0.1", number
    ... )
    (True, None)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except PermissionError:
        return f"port {port} is for the administrator alone; choose one above 1023"
    except OSError as problem:
        taken = problem.errno == errno.EADDRINUSE
        if taken:
            return f"port {port} of {host} is taken by another program; end it, or choose another port"
        return f"nothing can listen at {host}:{port}: {problem.strerror}"
    return None


def refuse_taken(host: str, port: int) -> None:
    """One line where a port cannot be had."""
    fault = port_fault(host, port)
    if fault:
        raise FedkinError(fault)
