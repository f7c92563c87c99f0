"""Encrypted lines between machines, as tunnels that the rest knows nothing of.

The client compares the certificate with the fingerprint that it was given: no authority is asked, and no name is
checked. A tunnel is a thread that moves bytes between a plain socket of this process and an encrypted one: OpenSSL
must not be used from two threads at a time, while a line may be.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import select
import socket
import ssl
import threading
import time

from virtualflow.errors import LaunchError
from virtualflow.system.identity import Identity, fingerprint

HANDSHAKE_SECONDS = 10.0
DEAD_SECONDS = 20  # without an answer from the other machine's kernel
PIECE = 1 << 16


def is_loopback(host: str) -> bool:
    """Whether *host* names this machine alone, so that nothing need be encrypted."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def client_context() -> ssl.SSLContext:
    """For connections whose certificate ``check`` compares with a fingerprint; no authority does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def check(connection: ssl.SSLSocket, where: str, expected: str) -> None:
    """Close *connection* and raise LaunchError if the certificate there has another fingerprint than *expected*."""
    shown = fingerprint(connection.getpeercert(binary_form=True) or b"")
    if not hmac.compare_digest(shown, expected):
        connection.close()
        raise LaunchError(
            f"the server at {where} is not the one of the token file: it shows the certificate {shown}, and the "
            f"file names {expected or 'none'}. If the machine there has a new one, copy its token file again."
        )


def server_context(own: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    own.load_into(context)
    return context


def serve(connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
    """The plain end of a tunnel to a client; it is closed if the client does not speak TLS.

    Once it is closed here, nothing is left of the tunnel, even if the client has sent nothing.
    """
    ours, theirs = socket.socketpair()
    _keep_alive(connection)

    def run() -> None:
        with theirs, connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.getpeername()  # fails if it is gone by now, as after a port scan: ssl would leave it open
            with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as encrypted:
                if _handshake(theirs, encrypted):
                    _pump(theirs, encrypted)

    threading.Thread(target=run, daemon=True).start()
    return ours


def connect(host: str, port: int, expected: str, seconds: float) -> tuple[socket.socket, str]:
    """The plain end of a tunnel to *host*, and this machine's own address there.

    Raises LaunchError if the certificate there has another fingerprint than *expected*.
    """
    with socket.create_connection((host, port), timeout=seconds) as connection:
        _keep_alive(connection)
        encrypted = client_context().wrap_socket(connection)  # which is the connection's owner from here on
    check(encrypted, f"{host}:{port}", expected)
    address = str(encrypted.getsockname()[0])
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs, encrypted, contextlib.suppress(OSError):
            _pump(theirs, encrypted)

    threading.Thread(target=run, daemon=True).start()
    return ours, address


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out when the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", DEAD_SECONDS // 5 - 1)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * DEAD_SECONDS)


def _handshake(plain: socket.socket, encrypted: ssl.SSLSocket) -> bool:
    """Return whether there is a tunnel: False if the other end of *plain* is closed before, or it takes too long."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    waiting = select.poll()
    waiting.register(plain, 0)  # for its end alone, which is always reported
    while (left := deadline - time.monotonic()) > 0:
        try:
            encrypted.do_handshake()
            return True
        except ssl.SSLWantReadError:
            waiting.register(encrypted, select.POLLIN)
        except ssl.SSLWantWriteError:
            waiting.register(encrypted, select.POLLOUT)
        if any(descriptor == plain.fileno() for descriptor, _ in waiting.poll(1000 * left)):
            return False
    return False


def _pump(plain: socket.socket, encrypted: ssl.SSLSocket) -> None:
    """Move bytes both ways until either side ends; what one side has not taken yet holds the other back."""
    for side in (plain, encrypted):
        side.setblocking(False)
    outgoing, incoming = bytearray(), bytearray()
    open_ = True
    while open_ or incoming:
        ready = select.poll()  # not select, which can't watch a descriptor above 1023
        for side, from_it, to_it in ((plain, outgoing, incoming), (encrypted, incoming, outgoing)):
            reads = select.POLLIN if open_ and len(from_it) < PIECE else 0
            if events := reads | (select.POLLOUT if to_it else 0):
                ready.register(side, events)
        # What OpenSSL has decrypted already, no poll shows.
        ready.poll(0 if encrypted.pending() else None)
        if open_ and len(outgoing) < PIECE:
            open_ &= _receive(plain, outgoing)
        _send(encrypted, outgoing)
        if len(incoming) < PIECE:
            open_ &= _receive(encrypted, incoming)
        _send(plain, incoming)
        if not open_ and not incoming:
            encrypted.settimeout(HANDSHAKE_SECONDS)
            encrypted.sendall(outgoing)


def _receive(side: socket.socket, waiting: bytearray) -> bool:
    """Take what has come; return whether more may come."""
    try:
        while len(waiting) < PIECE:
            if not (data := side.recv(PIECE)):
                return False
            waiting += data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass
    return True


def _send(side: socket.socket, waiting: bytearray) -> None:
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        while waiting:
            del waiting[: side.send(waiting)]
