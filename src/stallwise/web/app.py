"""The server's routes. Everything is a GET that reads; nothing is written, started or fetched.

Everything lies under a place, a random first part of the path. Requests need the token, in the address the first time
and in a cookie from then on. Browsers send the cookies of 127.0.0.1 to every port of it, also to another user's server;
this one is bound to the place, which such a server does not know. What the page may do is limited by a content security
policy: scripts and styles from this server alone, no request to anywhere else. Reports
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
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stallwise.analysis.compare import compare
from stallwise.errors import InputError, StallwiseError
from stallwise.report.html import stylesheet
from stallwise.report.views import profile_page, recommend, whatif
from stallwise.web import _simulations as simulations
from stallwise.web._documents import (
    comparison_document,
    curve_document,
    figures_document,
    folder_document,
    instance_rows,
    prediction_document,
    run_document,
)
from stallwise.web._forms import query_integer, sliders_of
from stallwise.web.predict import (
    RentTerms,
    predict_own,
    predict_rented,
    recommend_document,
    recommend_from_page,
    rent_form_of,
    skypilot,
    skypilot_of,
)
from stallwise.web.runs import RunCache

STATIC = Path(__file__).parent / "static"
_FILES = {"ui.js": "text/javascript", "draw.js": "text/javascript", "ui.css": "text/css"}
_MAX_RUNS_AT_ONCE = 25
_SEE_OTHER = 303
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
class ServerState:
    """What the server is started with."""

    runs: RunCache
    terms: RentTerms
    token: str
    place: str
    """First part of every path."""
    folder: str
    """As the user named it: commands shown on the page begin there."""

    def run_path(self, key: str) -> str:
        """The path of a run as the command line would be given it."""
        return str(Path(self.folder) / key)


Answer = Callable[[ServerState, QueryParams], Response]
Client = tuple[str, int]
Admit = Callable[[Client | None], None]
COOKIE = "stallwise"


class Guard:
    """Lets in who shows the token to this very host, and puts the same headers on every answer."""

    def __init__(self, app: ASGIApp, token: str, place: str, admit: Admit) -> None:
        self.app, self.token, self.root, self.admit = app, token, f"/{place}/", admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = _HEADERS | {"content-security-policy": PAGE_POLICY}
                message["headers"] = [*message["headers"], *(
                    (name.encode(), value.encode()) for name, value in extra.items() if name.encode() not in present
                )]  # fmt: skip
            await send(message)

        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is None or refusal.status_code == _SEE_OTHER:
            self.admit(None if request.client is None else (request.client.host, request.client.port))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        # A page of another site that has its name point here (DNS rebinding) still says its own name.
        if request.url.hostname not in ("127.0.0.1", "localhost"):
            return PlainTextResponse("This page is only for 127.0.0.1.", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This page only reads.", 405)
        if not secrets.compare_digest(request.url.path[: len(self.root)].encode(), self.root.encode()):
            return PlainTextResponse("There is nothing here. Open the address that `stallwise ui` printed.", 403)
        in_address = request.query_params.get("token")
        token = request.cookies.get(COOKIE, "") if in_address is None else in_address
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return PlainTextResponse("Open the address that `stallwise ui` printed; its token is missing or old.", 403)
        if in_address is not None:
            back = RedirectResponse(self.root, _SEE_OTHER)
            back.set_cookie(COOKIE, self.token, httponly=True, samesite="lax", path=self.root)
            return back
        return None


def make_app(state: ServerState, admit: Admit) -> Starlette:
    """The application with its routes and its guard; `admit` is told of clients that have shown the token."""
    routes = [
        *(Route(path, _wrapped(state, answer)) for path, answer in _ROUTES.items()),
        *(Route(f"/static/{name}", _static(name)) for name in _FILES),
    ]
    return Starlette(
        routes=[Mount(f"/{state.place}", routes=routes)],
        middleware=[Middleware(Guard, token=state.token, place=state.place, admit=admit)],
        exception_handlers={HTTPException: _absent},
    )


def _absent(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return PlainTextResponse("There is nothing here.", status)


def _wrapped(state: ServerState, answer: Answer) -> Callable[[Request], Response]:
    """Run `answer` on a worker thread; an error of the user is a sentence, any other is logged in the terminal."""

    def respond(request: Request) -> Response:
        try:
            return answer(state, request.query_params)
        except StallwiseError as error:
            return JSONResponse({"error": _sentence(error)}, 422)
        except Exception:
            _LOG.exception("%s failed", request.url.path)
            return JSONResponse({"error": "This record cannot be shown; the terminal says why."}, 500)

    return respond


def _sentence(error: StallwiseError) -> str:
    """The sentence of an error with the fields of the page that it is about."""
    return f"{error} ({', '.join(name.replace('_', ' ') for name in error.fields)})" if error.fields else str(error)


def _static(name: str) -> Callable[[Request], Response]:
    def respond(_: Request) -> Response:
        text = (STATIC / name).read_text(encoding="utf-8")
        return Response((stylesheet("base") + text) if name == "ui.css" else text, media_type=_FILES[name])

    return respond


def _key(query: QueryParams, name: str = "run") -> str:
    key = query.get(name)
    if not key:
        raise InputError(f"The address names no {name}.")
    return key


def _json(document: Any) -> Response:
    import msgspec

    # msgspec writes what is not a number as null, which JSON has no word for. On the page a sentence is its text.
    return Response(msgspec.json.encode(document, enc_hook=str), media_type="application/json")


def _report(page: str, name: str = "") -> Response:
    headers = {"content-security-policy": REPORT_POLICY}
    if name:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    return Response(page, media_type="text/html", headers=headers)


def _index(_: ServerState, __: QueryParams) -> Response:
    return Response((STATIC / "index.html").read_text(encoding="utf-8"), media_type="text/html")


def _runs(state: ServerState, _: QueryParams) -> Response:
    return _json(folder_document(state.runs.folder.listing(), state.folder))


def _figures(state: ServerState, query: QueryParams) -> Response:
    figures: dict[str, Any] = {}
    for key in query.getlist("run")[:_MAX_RUNS_AT_ONCE]:
        try:
            figures[key] = figures_document(state.runs.open(key))
        except StallwiseError as error:
            figures[key] = {"error": _sentence(error)}
    return _json(figures)


def _run(state: ServerState, query: QueryParams) -> Response:
    opened = state.runs.open(_key(query))
    answer = _json(run_document(opened))
    answer.background = BackgroundTask(opened.prepare)  # sliders come next
    return answer


def _instances(state: ServerState, _: QueryParams) -> Response:
    return _json(instance_rows(state.runs.catalog))


def _compare(state: ServerState, query: QueryParams) -> Response:
    before, after = (state.runs.open(_key(query, name)) for name in ("a", "b"))
    return _json(comparison_document(compare(before.run, after.run), before, after))


def _whatif(state: ServerState, query: QueryParams) -> Response:
    key = _key(query)
    opened, positions = state.runs.open(key), sliders_of(query)
    return _position(lambda: prediction_document(opened, state.run_path(key), positions, state.terms))


def _curve(state: ServerState, query: QueryParams) -> Response:
    opened, positions = state.runs.open(_key(query)), sliders_of(query)
    return _position(lambda: curve_document(opened, positions))


def _position(answer: Callable[[], dict[str, Any]]) -> Response:
    """A position that cannot be is an answer too: a browser would complain of a failed request at every move."""
    try:
        return _json(answer())
    except StallwiseError as error:
        return _json({"cannot": _sentence(error)})


def _recommend(state: ServerState, query: QueryParams) -> Response:
    key = _key(query)
    opened, form = state.runs.open(key), rent_form_of(query)
    return _json(recommend_document(recommend_from_page(opened, form, state.terms), state.run_path(key), form))


def _skypilot(state: ServerState, query: QueryParams) -> Response:
    opened, form = state.runs.open(_key(query)), rent_form_of(query)
    recommendation = recommend_from_page(opened, form, state.terms)
    text = skypilot(recommendation, opened.run.manifest.job, query_integer(query, "place", 0, 10**6))
    return _yaml(text)


def _skypilot_fleet(state: ServerState, query: QueryParams) -> Response:
    """Of the fleet that the sliders stand at."""
    opened, positions = state.runs.open(_key(query)), sliders_of(query)
    fleet = predict_rented(opened, positions, state.terms)
    return _yaml(skypilot_of(opened, fleet.option, fleet.request))


def _yaml(text: str) -> Response:
    headers = {"content-disposition": 'attachment; filename="task.yaml"'}
    return Response(text, media_type="application/yaml", headers=headers)


def _report_profile(state: ServerState, query: QueryParams) -> Response:
    opened = state.runs.open(_key(query))
    return _report(profile_page.page(opened.analysis.profile, opened.analysis.detail))


def _report_whatif(state: ServerState, query: QueryParams) -> Response:
    prediction, _ = predict_own(state.runs.open(_key(query)), sliders_of(query), curve=True)
    return _report(whatif.page(prediction), "whatif.html")


def _report_recommend(state: ServerState, query: QueryParams) -> Response:
    opened = state.runs.open(_key(query))
    return _report(recommend.page(recommend_from_page(opened, rent_form_of(query), state.terms)), "recommend.html")


def _simulation(state: ServerState, query: QueryParams) -> Response:
    return _json(simulations.simulation(state.runs.folder.file_path(_key(query, "file"))))


def _jobs(state: ServerState, query: QueryParams) -> Response:
    return _json(simulations.jobs(state.runs.folder.file_path(_key(query, "file")), query))


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
