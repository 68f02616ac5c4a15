"""Serve stores: check the settings before listening, open the socket, and end without losing anything.

A server that only this machine can reach needs a token, and makes one. One that others can reach has to be given its
names, its tokens, and who does TLS: itself, or a proxy. An error names what is missing before a port is open.

Does not answer requests (gate.py, app.py).
"""

import asyncio
import ctypes
import ipaddress
import math
import os
import re
import secrets
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from softkv.doors.server.app import make_app
from softkv.doors.server.gate import LOOPBACK, Gate, Rules, authority, digest_of
from softkv.doors.server.metrics import Metrics
from softkv.doors.server.protocol import CONNECTIONS, OWN, Listener, PatientServer
from softkv.doors.server.served import Stores, named
from softkv.errors import InputError, StoreError
from softkv.storage.disk import announced, files

FREED = 8 << 20  # bytes
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
# With = at its end alone, as base64 has it: the page takes k=… behind the # of its URL for a state.
_TOKEN = re.compile(r"(?=.{20,200}\Z)[A-Za-z0-9._~+/-]{18,}={0,2}\Z")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to serve: address, host names, tokens, and what clients may start."""

    host: str = "127.0.0.1"
    port: int = 7411
    token_file: str | None = None
    reader_token_file: str | None = None
    allow_hosts: Sequence[str] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: str | None = None
    read_only: bool = False
    backups: str | None = None
    model: str | None = None
    idle_end: float | None = None  # seconds without a question after which it ends
    wait: float = 0.0  # seconds for which another process that writes to a store is waited for


def serve(given: Sequence[str], settings: Settings, began: Callable[[str, Sequence[str]], None]) -> None:
    """Serve stores until SIGTERM or Ctrl-C, or until nobody has asked anything for `idle_end` seconds.

    Once clients are answered, `began` is called with the URL, with a token that was made here behind its #, and with
    the names of the stores.
    """
    _give_memory_back()
    paths, (writers, readers) = [os.path.realpath(path) for path in given], _tokens(settings)
    _require_plain(paths)
    context = _context(settings)
    with ExitStack() as ending:
        listener = ending.enter_context(_bound(settings, len(paths)))
        address, port = listener.getsockname()[:2]
        _require_safe(settings, address)
        stores = Stores.open(
            paths, read_only=settings.read_only, backups=settings.backups, model=settings.model, wait=settings.wait
        )
        ending.callback(stores.close)
        url = _url(settings, address, port)

        def started() -> None:
            for path in () if settings.read_only else paths:
                announced.announce(path, announced.Announcement(f"{url}/{named(path)}", writers[0], os.getpid()))
                ending.callback(announced.withdraw, path)
            began(f"{url}/" + ("" if settings.token_file else f"#{writers[0]}"), [named(path) for path in paths])

        metrics, longest = Metrics(stores), math.inf if settings.idle_end is None else settings.idle_end
        gate = Gate(make_app(stores), _rules(settings, address, port, writers, readers), metrics)
        asyncio.run(PatientServer(gate, context, started, lambda: metrics.idle() > longest).serve([listener]))


def _give_memory_back() -> None:
    """Have large blocks that are freed go back to the system, where its C library is glibc.

    It keeps as much as was ever freed at once, and for each thread; what is copied for a lookup may be tens of MiB.
    """
    with suppress(AttributeError, OSError, TypeError):
        for which in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            ctypes.CDLL(None).mallopt(which, FREED)


def _require_plain(paths: Sequence[str]) -> None:
    """Refuse stores whose names would have to be escaped in a URL."""
    for path in paths:
        if not _NAME.match(named(path)):
            raise InputError(f"{path} cannot be named in a URL. Rename it: letters, digits, '.', '_' and '-' do.")


def _tokens(settings: Settings) -> tuple[list[str], list[str]]:
    """The tokens of those who may write, and of those who only read."""
    writers = _tokens_in(settings.token_file) if settings.token_file else [secrets.token_urlsafe(32)]
    readers = _tokens_in(settings.reader_token_file) if settings.reader_token_file else []
    if set(writers) & set(readers):
        raise InputError("a token that only reads is among those that write. Give readers others.")
    return writers, readers


def _tokens_in(path: str) -> list[str]:
    """The tokens in a file, one a line; refuses a file that others can read."""
    try:
        descriptor = files.open_regular(path)
    except StoreError:
        raise InputError(f"{path} is no file with a token that can be read") from None
    with os.fdopen(descriptor, "rb") as file:
        mode, said = stat.S_IMODE(os.fstat(descriptor).st_mode), file.read(1 << 16)
    if mode & 0o077:
        raise InputError(f"{path} can be read by others (mode {mode:o}). Take that away: chmod 600 {path}")
    tokens = said.decode("latin-1").split()
    if not tokens or not all(map(_TOKEN.match, tokens)):
        raise InputError(
            f"{path}: expected tokens of 20 to 200 letters, digits and '._~+/-', one a line; '=' only at the end"
        )
    return tokens


def _require_safe(settings: Settings, address: str) -> None:
    """Refuse settings by which others could reach the server without a host name, a token, and TLS."""
    if settings.behind_proxy and (settings.tls_cert or not settings.allow_hosts):
        raise InputError("behind a proxy, which does TLS, its names are needed (--allow-host), and no --tls-cert")
    if settings.behind_proxy and _address(settings.behind_proxy) is None:
        raise InputError(f"--behind-proxy {settings.behind_proxy}: expected the IP address that the proxy asks from")
    for name in settings.allow_hosts:
        if authority(name, 443) is None:
            raise InputError(f"--allow-host {name!r} is no name of a host, nor one with a port")
    if settings.backups is not None and not os.path.isdir(settings.backups):
        raise InputError(f"--backups {settings.backups} is no directory. Make it first.")
    missing = {
        "--allow-host NAME": settings.allow_hosts,
        "--token-file FILE": settings.token_file,
        "--tls-cert FILE and --tls-key FILE (or --behind-proxy ADDRESS)": settings.tls_cert or settings.behind_proxy,
    }
    needed = [option for option, there in missing.items() if not there]
    if needed and not ipaddress.ip_address(address).is_loopback:
        raise InputError(f"others than this machine reach {settings.host}, so it also needs {', '.join(needed)}.")


def _address(text: str) -> str | None:
    """An IP address as sockets spell it, None where it is none."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def _context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        raise InputError("--tls-cert and --tls-key belong together. Give both.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InputError(f"{settings.tls_cert} with {settings.tls_key} is of no use for TLS: {reason}") from error
    return context


@contextmanager
def _bound(settings: Settings, stores: int) -> Iterator[Listener]:
    """A socket bound to the address, which is thereby reserved; it does not listen yet."""
    where = f"{settings.host} port {settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = Listener(family, kind, protocol)  # Subtle: asyncio sets TCP_NODELAY only if the protocol is known
    except (OSError, OverflowError) as error:
        raise InputError(f"{where} is no address to listen at: {error}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise InputError(f"cannot listen at {where}: {error.strerror}. Take another --port, or 0.") from error
        listener.connections = min(CONNECTIONS, _descriptors() - OWN * (1 + stores))
        if listener.connections < 1:
            raise InputError(
                f"{_descriptors()} files may be open at once, too few to serve {stores} stores (ulimit -n)"
            )
        yield listener


def _descriptors() -> int:
    """How many files this process may have open at once."""
    if sys.platform == "win32":
        return CONNECTIONS << 10
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft >= 0 else CONNECTIONS << 10  # unlimited is a negative number


def _local(address: str) -> str:
    """The host names by which this machine reaches an address that it listens at."""
    found = ipaddress.ip_address(address)
    if found.is_unspecified:
        found = ipaddress.ip_address("::1" if found.version == 6 else "127.0.0.1")
    return f"[{found}]" if found.version == 6 else str(found)


def _rules(settings: Settings, address: str, port: int, writers: Sequence[str], readers: Sequence[str]) -> Rules:
    usual = 443 if settings.tls_cert or settings.behind_proxy else 80
    hosts = {(name, port) for name in (*LOOPBACK, _local(address))}
    # A name is allowed with the port of the server, and with the default one, where a proxy or a router may listen.
    hosts |= {found for name in settings.allow_hosts for one in (port, usual) if (found := authority(name, one))}
    peers = {"127.0.0.1", "::1", address, _address(settings.behind_proxy)} if settings.behind_proxy else None
    kept = [[digest_of(token.encode()) for token in tokens] for tokens in (writers, readers)]
    return Rules(frozenset(hosts), usual, writers=kept[0], readers=kept[1], peers=peers)


def _url(settings: Settings, address: str, port: int) -> str:
    """The URL for clients on this machine: past a proxy, and by the first host name if a certificate has to match."""
    named_so = settings.allow_hosts[0] if settings.tls_cert and settings.allow_hosts else _local(address)
    host, at = authority(named_so, port) or (named_so, port)
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{at}"
