"""Endpoints of long work: start a job, look at it, watch it go on, cancel it.

A job outlives the request that started it; clients may stop watching it and come back.

Does not know what the work is (jobs.py).
"""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import Field, RootModel, create_model
from starlette.responses import StreamingResponse

from softkv.database import SoftKV
from softkv.doors.server.documents import Document, Problem
from softkv.doors.server.endpoints import Call, Endpoint, plain, written
from softkv.doors.server.forms import ANSWERS, OUTSIDE, RequestForm, form_of
from softkv.doors.server.jobs import WORKS, Job
from softkv.doors.server.questions import many

EVENTS = "text/event-stream"
_KINDS = Literal["lists", "hnsw", "ivf", "pq", "rabitq"]  # no factory strings: FAISS parses them without safety checks
_ID = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{8,64}$")]
_BUILD: Any = {"kind": (_KINDS, "lists"), "temperatures": (list[float] | None, None)}
_OPTIONS = {
    "build_index": form_of(SoftKV.build_index, **_BUILD),
    "tune": form_of(SoftKV.tune, compatibility=(str | list[str] | None, None)),
    "fit": form_of(SoftKV.fit),
    "guard": form_of(SoftKV.guard, queries=(OUTSIDE, None), answers=(ANSWERS, None), strangers=(OUTSIDE, None)),
    "compact": form_of(SoftKV.compact),
    "check": form_of(SoftKV.check),
    "reembed": form_of(SoftKV.reembed, "embedder"),
    "backup": form_of(SoftKV.backup, "directory", "force"),
}


def _form(name: str, options: type[RequestForm]) -> Any:
    fields: Any = {"work": (Literal[name], ...), "options": (options, options()), "id": (_ID | None, None)}
    return create_model(f"{name}_job", __base__=RequestForm, **fields)


_FORMS: Any = Union[tuple(_form(name, options) for name, options in _OPTIONS.items())]  # noqa: UP007 - of a tuple
JobForm: Any = type("JobForm", (RootModel[Annotated[_FORMS, Field(discriminator="work")]],), {"__module__": __name__})


class JobDocument(Document):
    """A job; `progress` names its stage, `result` is there where it is done, `problem` where it failed."""

    job: str
    work: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    progress: dict[str, str | int] | None
    result: Any = None
    problem: Problem | None = None
    hints: list[list[str]] | None = None  # of the library: class and words


async def _started(call: Call) -> dict[str, Any]:
    wanted = call.form.root
    call.require_right(writes=WORKS[wanted.work].writes)
    options = {name: getattr(wanted.options, name) for name in wanted.options.model_fields_set}
    return call.served.jobs.start(wanted.work, options, wanted.id).told()


async def _listed(call: Call) -> list[dict[str, Any]]:
    return [job.told() for job in call.served.jobs.all()]


def _looked_at(call: Call) -> dict[str, Any]:
    return _whole(_job(call), packs=call.packs)


async def _cancelled(call: Call) -> dict[str, Any]:
    call.require_right(writes=False)
    job = _job(call)
    job.cancel()
    return job.told()


async def _watched(call: Call) -> StreamingResponse:
    return StreamingResponse(_events(_job(call)), media_type=EVENTS)


async def _events(job: Job) -> AsyncIterator[str]:
    """News of a job as it arrives, and at last its result."""
    async for news in job.watched():
        if not news:
            yield ": nothing new\n\n"
        elif not job.over:
            yield _event("progress", job.told())
    yield _event("result", _whole(job, packs=False))


def _event(name: str, document: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {written(document, packs=False)[0].decode()}\n\n"


def _job(call: Call) -> Job:
    return call.served.jobs[call.request.path_params["job"]]


def _whole(job: Job, *, packs: bool) -> dict[str, Any]:
    """A job with its result or problem."""
    return job.told() | {
        "result": job.result if packs else plain(job.result),
        "problem": job.problem,
        "hints": job.hints,
    }


def _forecast(call: Call) -> Any:
    options = call.options()
    if options.get("queries") is not None:
        options["queries"] = many(options["queries"])
    return call.served.handle.forecast_index(**options)


ENDPOINTS = (
    Endpoint("POST", "/v1/{store}/jobs", _started, JobForm, JobDocument, status=202),
    Endpoint("GET", "/v1/{store}/jobs", _listed, reply=list[JobDocument]),
    Endpoint("GET", "/v1/{store}/jobs/{job}", _looked_at, reply=JobDocument),
    Endpoint("DELETE", "/v1/{store}/jobs/{job}", _cancelled, reply=JobDocument, status=202),
    Endpoint("GET", "/v1/{store}/jobs/{job}/events", _watched, media=EVENTS),
    Endpoint(
        "POST",
        "/v1/{store}/forecast_index",
        _forecast,
        form_of(SoftKV.forecast_index, **_BUILD),
        get_type_hints(SoftKV.forecast_index)["return"],
        crew="long",
    ),
)
