"""The server itself: a socket on 127.0.0.1, uvicorn on it, everything slow imported while the browser starts."""

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable

import uvicorn

from stallwise.errors import InputError
from stallwise.web.app import Place, make_app
from stallwise.web.shelf import BROKEN

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
    """What the first answers would wait for: imports, the price list, compiled loops, and the newest run."""
    import polars  # noqa: F401

    from stallwise.spot.lifetimes.models import Exponential
    from stallwise.spot.plan.closed import Work
    from stallwise.spot.plan.fleet import Kind, one_kind
    from stallwise.spot.plan.simulate import simulate

    _ = place.desk.catalog.offers
    hour = Kind(name="", usd_per_h=1.0, spot_usd_per_h=1.0, life=Exponential(3600.0))
    simulate(Work(work_s=60.0, interval_s=30.0, save_s=1.0), one_kind(hour, 1), replays=200)
    with contextlib.suppress(*BROKEN):
        for newest in place.desk.shelf.listing().runs[:1]:
            place.desk.open(newest.key).prepare()
