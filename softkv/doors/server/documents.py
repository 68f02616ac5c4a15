"""The JSON documents of answers and comparisons, as `/openapi.json` describes them.

These classes only describe: the documents themselves are made by portrait.py.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

from softkv.answer import Contributor


class Document(BaseModel):
    """A document with these fields and no others; what is None by default may be left out."""

    model_config = ConfigDict(extra="forbid")


class Problem(Document):
    """An error, by its class and in its words (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    error: str  # the class of softkv.errors
    keys: list[str] | None = None  # of DuplicateKey
    pid: int | None = None  # of StoreLocked
    after: float | None = None  # of Busy: seconds


class StoreDocument(Document):
    """A store of the server; without its items where it is a cluster whose shards do not all answer."""

    name: str
    items: int | None
    value_kind: str | None
    read_only: bool


class LeaseDocument(Document):
    """A snapshot on loan; `expires` is in so many seconds unless it is used."""

    snapshot: str
    commit: int
    expires: float


class TextDocument(Document):
    """A text and its weight."""

    text: str
    weight: float


class AnswerDocument(Document):
    """The answer to one query."""

    value: float | str | list[float | None] | None = None
    distribution: dict[str, float] | None = None  # of labels
    texts: list[TextDocument] | None = None
    embedding: list[float] | None = None  # of texts
    spread: float | None = None
    log_mass: float | list[float | None] | None = None
    effective: float | list[float | None] | None = None
    mass: float | list[float | None] | None = None
    scored: int
    temperature: float
    error: float | None = None
    error_kind: str
    log_mass_error: float | list[float | None] | None = None
    effective_error: float | list[float | None] | None = None
    spread_error: float | None = None
    log_mass_floor: float | None = None
    is_far: bool | None = None
    route: str | None = None
    reason: str | None = None
    rows_read: int | None = None
    out_of_reach: float | None = None
    known: bool | None = None
    familiarity: float | None = None
    why_unknown: str | None = None
    promised: dict[str, float | list[float | None] | list[str] | None] | None = None
    contributors_are: str | None = None
    contributors: list[Contributor]
    head_weights: list[list[float]] | None = None


class ExactDocument(Document):
    """The item whose key equals the query."""

    key: str
    value: Any
    payload: Any


class WarmthDocument(Document):
    """The answer at one temperature, in short."""

    temperature: float
    effective: float
    weight: float
    value: Any
    error: float | None = None
    error_kind: str


class ComparisonDocument(Document):
    """One query, looked up in every way."""

    exact: ExactDocument | None
    hard: AnswerDocument
    top_k: AnswerDocument
    soft: AnswerDocument
    strip: list[WarmthDocument]
