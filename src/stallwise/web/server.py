"""The server itself: a socket on 127.0.0.1, uvicorn on it, everything slow imported while the browser starts.

Anybody with an account on this machine can connect. Connections that have not shown the token are limited, and the
oldest of them gives way to the next: who only holds connections open does not keep the owner out.
"""

import asyncio
import contextlib
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from stallwise.errors import InputError
from stallwise.web.app import Client, ServerState, make_app
from stallwise.web.runs import READ_ERRORS

HOST = "127.0.0.1"


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


def new_place() -> str:
    """A random first part of the path, of 96 bits."""
    return secrets.token_urlsafe(12)


def listen(port: int) -> socket.socket:
    """A socket on 127.0.0.1; 0 takes any free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = error.strerror if isinstance(error, OSError) else "it is no port"
        raise InputError(
            f"Port {port} cannot be used ({why}). Give another, or leave it out.", fields=("port",)
        ) from None
    return listener


_MAX_STRANGERS = 64


@dataclass
class ConnectionLimit:
    """Connections whose requests have not shown the token yet."""

    most: int = _MAX_STRANGERS
    _strangers: OrderedDict[Client, asyncio.BaseTransport] = field(default_factory=OrderedDict)

    def add(self, client: Client | None, transport: asyncio.BaseTransport) -> None:
        """Note a new connection; the oldest stranger is disconnected where there are too many."""
        if client is None:  # it is gone already
            return
        self._strangers[client] = transport
        while len(self._strangers) > self.most:
            _, oldest = self._strangers.popitem(last=False)
            oldest.close()

    def admit(self, client: Client | None) -> None:
        """Let a connection stay: it has shown the token, or has ended."""
        self._strangers.pop(client, None)  # type: ignore[arg-type]

    def protocol(self) -> type[H11Protocol]:
        """Return uvicorn's protocol with connections counted."""
        limit = self

        class Limited(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                limit.add(self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                limit.admit(self.client)
                super().connection_lost(exc)

        return Limited


def serve(state: ServerState, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer until the user ends it; `ready` gets the address when the server listens."""
    limit = ConnectionLimit()
    config = uvicorn.Config(
        make_app(state, limit.admit),
        log_level="warning",
        access_log=False,  # addresses hold the token
        server_header=False,
        lifespan="off",
        ws="none",
        http=limit.protocol(),
        loop="asyncio",
        h11_max_incomplete_event_size=32 * 1024,
        timeout_graceful_shutdown=2,
    )
    server = _Server(
        config, lambda: ready(f"http://{HOST}:{listener.getsockname()[1]}/{state.place}/?token={state.token}")
    )
    threading.Thread(target=_warm, args=(state,), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so once requests are taken."""
        await super().startup(sockets)
        self.ready()


def _warm(state: ServerState) -> None:
    """What the first answers would wait for: imports, the price list, compiled loops, and the newest run."""
    from stallwise.spot.lifetimes.models import Exponential
    from stallwise.spot.plan.closed import JobWork
    from stallwise.spot.plan.fleet import MachineKind, uniform_fleet
    from stallwise.spot.plan.simulate import simulate

    _ = state.runs.catalog.offers
    hour = MachineKind(name="", usd_per_h=1.0, spot_usd_per_h=1.0, life=Exponential(3600.0))
    simulate(JobWork(work_s=60.0, interval_s=30.0, save_s=1.0), uniform_fleet(hour, 1), replays=200)
    with contextlib.suppress(*READ_ERRORS):
        for newest in state.runs.folder.listing().runs[:1]:
            state.runs.open(newest.key).prepare()
