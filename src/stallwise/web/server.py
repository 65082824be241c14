"""The server itself: a socket on 127.0.0.1, uvicorn on it, everything slow imported while the browser starts."""

import secrets
import socket
import threading
from collections.abc import Callable

import uvicorn

from stallwise.errors import InputError
from stallwise.web.app import Place, make_app

HOST = "127.0.0.1"


def new_token() -> str:
    """256 bits that nobody guesses."""
    return secrets.token_urlsafe(32)


def listen(port: int) -> socket.socket:
    """A socket on 127.0.0.1; 0 takes any free port."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
    except (OSError, OverflowError) as error:
        opened.close()
        why = error.strerror if isinstance(error, OSError) else "it is no port"
        raise InputError(f"Port {port} cannot be used ({why}). Give another with --port, or leave it out.") from None
    return opened


def serve(place: Place, opened: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer until the user ends it; `ready` gets the address when the server listens."""
    config = uvicorn.Config(
        make_app(place),
        log_level="warning",
        access_log=False,  # addresses hold the token
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        limit_concurrency=100,
        h11_max_incomplete_event_size=32 * 1024,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config, lambda: ready(f"http://{HOST}:{opened.getsockname()[1]}/?token={place.token}"))
    threading.Thread(target=_warm, args=(place,), daemon=True).start()
    try:
        server.run(sockets=[opened])
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


def _warm(place: Place) -> None:
    """Read the catalog and import what the first answer would wait for."""
    import polars  # noqa: F401

    _ = place.desk.catalog.offers
