"""The application: all endpoints over the stores of a server, and their description.

Does not listen on a socket (running.py) or check tokens (gate.py).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from softkv.database.handle import StoreView
from softkv.database.summary import Info
from softkv.doors.server import items, questions, working
from softkv.doors.server.description import described
from softkv.doors.server.documents import LeaseDocument, StoreDocument
from softkv.doors.server.endpoints import Call, Endpoint
from softkv.doors.server.leases import SECONDS
from softkv.doors.server.problems import Refused, reply_to
from softkv.doors.server.served import Served, Stores
from softkv.errors import OutOfReach, ServerError
from softkv.logs import log_of

LOG = log_of(__name__)
SWEEP = 5.0  # seconds between looks for snapshots that nobody uses any more


async def _stores(call: Call) -> list[dict[str, Any]]:
    return [await one.crews["reads"].run(partial(_told, call, one), call.seconds) for one in call.stores]


def _store(call: Call) -> dict[str, Any]:
    with call.reading() as view:
        return _told(call, call.served, view)


def _told(call: Call, served: Served, view: StoreView | None = None) -> dict[str, Any]:
    """One line of the list of stores; `read_only` also if the token may only read."""
    reads = call.request.scope.get("softkv.role") == "reader"
    with suppress(OutOfReach):  # requests to the cluster itself get this error
        view = served.now() if view is None else view  # an empty store is falsy
    return {
        "name": served.name,
        "items": None if view is None else len(view),
        "value_kind": None if view is None else view.value_kind,
        "read_only": served.read_only or reads,
    }


def _info(call: Call) -> Info:
    """What a store is, without directories of the server."""
    with call.reading() as view:
        found = view.info() if call.snapshot else call.served.handle.info()
    call.commit, shown = found.commit, call.served.shown(found)
    assert isinstance(shown, Info)
    return shown


def _leased(call: Call) -> dict[str, Any]:
    lease = call.served.leases.take(call.token)
    call.commit = lease.view.commit
    return {"snapshot": lease.name, "commit": lease.view.commit, "expires": SECONDS}


def _ended(call: Call) -> Response:
    call.served.leases.end(call.request.path_params["snapshot"], call.token)
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint("GET", "/v1/stores", _stores, reply=list[StoreDocument]),
    Endpoint("GET", "/v1/{store}/brief", _store, reply=StoreDocument),
    Endpoint("GET", "/v1/{store}/info", _info, reply=Info),
    *questions.ENDPOINTS,
    *items.ENDPOINTS,
    *working.ENDPOINTS,
    Endpoint("POST", "/v1/{store}/snapshots", _leased, reply=LeaseDocument, status=201),
    Endpoint("DELETE", "/v1/{store}/snapshots/{snapshot}", _ended, status=204),
)


def make_app(stores: Stores) -> FastAPI:
    """The application over these stores."""
    app = FastAPI(title="softkv", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=_swept)
    app.state.stores = stores
    for endpoint in ENDPOINTS:
        app.router.add_route(endpoint.path, partial(endpoint.answered, stores), methods=[endpoint.method])
    app.add_exception_handler(HTTPException, _no_route)
    app.openapi = cache(partial(described, ENDPOINTS))  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _swept(app: FastAPI) -> AsyncIterator[None]:
    """Close unused snapshots, for as long as the application runs."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP)
            try:
                await asyncio.to_thread(lambda: [one.leases.sweep() for one in app.state.stores])
            except Exception as error:  # such as no thread; the next time may be better
                LOG.warning("unused snapshots could not be closed: %s", error, exc_info=True)

    task = asyncio.create_task(sweep())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _no_route(request: Request, error: Exception) -> Response:
    """The problem document of an unknown path or method."""
    assert isinstance(error, HTTPException)
    words = f"{error.detail}: this server knows no {request.method:.20} of this path. See /openapi.json."
    status, headers, body = reply_to(Refused(error.status_code, ServerError(words), error.headers))
    return Response(body, status, headers)
