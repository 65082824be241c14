"""The server's routes. Everything is a GET that reads; nothing is written, started or fetched.

Who may ask: whoever shows the token, in the address the first time and in a cookie from then on. What the page may do
is said by a content security policy: scripts and styles from this server alone, no request to anywhere else. Reports
are shown in a sandbox without script.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stallwise.errors import InputError, StallwiseError
from stallwise.record.comparison import compare
from stallwise.record.detail import detail_of
from stallwise.report import html, recommend_html, whatif_html
from stallwise.report.style import STYLE
from stallwise.web import answers, rent, shown, simulations
from stallwise.web.opened import Desk
from stallwise.web.predict import Terms, own, rented
from stallwise.web.sliders import sliders_of, whole

STATIC = Path(__file__).parent / "static"
_FILES = {"ui.js": "text/javascript", "draw.js": "text/javascript", "ui.css": "text/css"}
_MOST_AT_ONCE = 25
_LOG = logging.getLogger("stallwise.web")

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the server is told once."""

    desk: Desk
    terms: Terms
    token: str
    folder: str
    """As the user named it: commands shown on the page begin there."""

    def named(self, key: str) -> str:
        """A run as the command line would name it."""
        return str(Path(self.folder) / key)


Answer = Callable[[Place, QueryParams], Response]


class Guard:
    """Lets in who shows the token to this very host, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                extra = _HEADERS | {"content-security-policy": PAGE_POLICY}
                message["headers"] = [*message["headers"], *(
                    (name.encode(), value.encode()) for name, value in extra.items() if name.encode() not in known
                )]  # fmt: skip
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        # A page of another site that has its name point here (DNS rebinding) still says its own name.
        if request.url.hostname not in ("127.0.0.1", "localhost"):
            return PlainTextResponse("This page is only for 127.0.0.1.", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This page only reads.", 405)
        given = request.query_params.get("token")
        shown_token = given if given is not None else request.cookies.get(cookie_name(request.url.port), "")
        if not secrets.compare_digest(shown_token.encode(), self.token.encode()):
            return PlainTextResponse("Open the address that `stallwise ui` printed; its token is missing or old.", 403)
        if given is not None:
            back = RedirectResponse("/", 303)
            name = cookie_name(request.url.port)
            back.set_cookie(name, self.token, httponly=True, samesite="lax", path="/")
            return back
        return None


def cookie_name(port: int | None) -> str:
    """Cookies do not know ports: two servers on one machine keep theirs apart by name."""
    return f"stallwise-{port or 80}"


def make_app(place: Place) -> Starlette:
    """The application."""
    return Starlette(
        routes=[
            *(Route(path, _wrapped(place, answer)) for path, answer in _ROUTES.items()),
            *(Route(f"/static/{name}", _static(name)) for name in _FILES),
        ],
        middleware=[Middleware(Guard, token=place.token)],
        exception_handlers={HTTPException: _absent},
    )


def _absent(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse("There is nothing here.", status)


def _wrapped(place: Place, answer: Answer) -> Callable[[Request], Response]:
    """The answer on a worker thread; what the user can mend is a sentence, anything else is told in the terminal."""

    def respond(request: Request) -> Response:
        try:
            return answer(place, request.query_params)
        except StallwiseError as error:
            return JSONResponse({"error": str(error)}, 422)
        except Exception:
            _LOG.exception("%s failed", request.url.path)
            return JSONResponse({"error": "This record cannot be shown; the terminal says why."}, 500)

    return respond


def _static(name: str) -> Callable[[Request], Response]:
    def respond(_: Request) -> Response:
        text = (STATIC / name).read_text(encoding="utf-8")
        return Response((STYLE + text) if name == "ui.css" else text, media_type=_FILES[name])

    return respond


def _key(query: QueryParams, name: str = "run") -> str:
    key = query.get(name)
    if not key:
        raise InputError(f"The address names no {name}.")
    return key


def _json(document: Any) -> Response:
    import msgspec

    # msgspec writes what is not a number as null, which JSON has no word for.
    return Response(msgspec.json.encode(document), media_type="application/json")


def _report(page: str, name: str = "") -> Response:
    headers = {"content-security-policy": REPORT_POLICY}
    if name:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    return Response(page, media_type="text/html", headers=headers)


def _index(_: Place, __: QueryParams) -> Response:
    return Response((STATIC / "index.html").read_text(encoding="utf-8"), media_type="text/html")


def _runs(place: Place, _: QueryParams) -> Response:
    return _json(shown.listing(place.desk.shelf.listing(), place.folder))


def _figures(place: Place, query: QueryParams) -> Response:
    found: dict[str, Any] = {}
    for key in query.getlist("run")[:_MOST_AT_ONCE]:
        try:
            found[key] = shown.figures(place.desk.open(key))
        except StallwiseError as error:
            found[key] = {"error": str(error)}
    return _json(found)


def _run(place: Place, query: QueryParams) -> Response:
    opened = place.desk.open(_key(query))
    answer = _json(shown.facts(opened))
    answer.background = BackgroundTask(opened.prepare)  # sliders come next
    return answer


def _instances(place: Place, _: QueryParams) -> Response:
    return _json(shown.instances(place.desk.catalog))


def _compare(place: Place, query: QueryParams) -> Response:
    before, after = (place.desk.open(_key(query, name)) for name in ("a", "b"))
    return _json(shown.comparison(compare(before.run, after.run), before, after))


def _whatif(place: Place, query: QueryParams) -> Response:
    key = _key(query)
    opened, asked = place.desk.open(key), sliders_of(query)
    return _position(lambda: answers.answer(opened, place.named(key), asked, place.terms))


def _curve(place: Place, query: QueryParams) -> Response:
    opened, asked = place.desk.open(_key(query)), sliders_of(query)
    return _position(lambda: answers.curve(opened, asked))


def _position(answer: Callable[[], dict[str, Any]]) -> Response:
    """A position that cannot be is an answer too: a browser would complain of a failed request at every move."""
    try:
        return _json(answer())
    except StallwiseError as error:
        return _json({"cannot": str(error)})


def _recommend(place: Place, query: QueryParams) -> Response:
    key = _key(query)
    opened, asked = place.desk.open(key), rent.asked_of(query)
    return _json(rent.document(rent.recommended(opened, asked, place.terms), place.named(key), asked))


def _skypilot(place: Place, query: QueryParams) -> Response:
    opened, asked = place.desk.open(_key(query)), rent.asked_of(query)
    found = rent.recommended(opened, asked, place.terms)
    text = rent.skypilot(found, opened.run.manifest.job, whole(query, "place", 0, 10**6))
    return _yaml(text)


def _skypilot_fleet(place: Place, query: QueryParams) -> Response:
    """Of the fleet that the sliders stand at."""
    opened, asked = place.desk.open(_key(query)), sliders_of(query)
    found = rented(opened, asked, place.terms)
    return _yaml(rent.skypilot_of(opened, found.option, found.wish))


def _yaml(text: str) -> Response:
    headers = {"content-disposition": 'attachment; filename="task.yaml"'}
    return Response(text, media_type="application/yaml", headers=headers)


def _report_profile(place: Place, query: QueryParams) -> Response:
    opened = place.desk.open(_key(query))
    return _report(html.page(opened.profile, detail_of(opened.run)))


def _report_whatif(place: Place, query: QueryParams) -> Response:
    found, _, _ = own(place.desk.open(_key(query)), sliders_of(query), curve=True)
    return _report(whatif_html.page(found), "whatif.html")


def _report_recommend(place: Place, query: QueryParams) -> Response:
    opened = place.desk.open(_key(query))
    return _report(recommend_html.page(rent.recommended(opened, rent.asked_of(query), place.terms)), "recommend.html")


def _simulation(place: Place, query: QueryParams) -> Response:
    return _json(simulations.simulation(place.desk.shelf.file_path(_key(query, "file"))))


def _jobs(place: Place, query: QueryParams) -> Response:
    return _json(simulations.jobs(place.desk.shelf.file_path(_key(query, "file")), query))


_ROUTES: dict[str, Answer] = {
    "/": _index,
    "/api/runs": _runs,
    "/api/figures": _figures,
    "/api/run": _run,
    "/api/instances": _instances,
    "/api/compare": _compare,
    "/api/whatif": _whatif,
    "/api/curve": _curve,
    "/api/recommend": _recommend,
    "/api/simulation": _simulation,
    "/api/jobs": _jobs,
    "/skypilot": _skypilot,
    "/skypilot/fleet": _skypilot_fleet,
    "/report/profile": _report_profile,
    "/report/whatif": _report_whatif,
    "/report/recommend": _report_recommend,
}
