"""What `/openapi.json` says is so: requests are made from it, and what is answered is what it tells of."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.testclient import TestClient

from softkv.doors.server.app import ENDPOINTS
from softkv.doors.server.endpoints import Endpoint

from .databases import filled, values_of, vectors_of
from .serving import serving

QUERY = [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of 40 labels."""
    path = tmp_path_factory.mktemp("served") / "fruit"
    filled(path, "label").close()
    with serving(path) as found:
        yield found


@pytest.fixture(autouse=True)
def items(client: TestClient) -> None:
    """Its items, also after a test that has deleted all of them."""
    app: Any = client.app
    db = app.state.stores["fruit"].handle
    if not db:
        db.add([f"item {number}" for number in range(40)], values_of("label", 40), vectors=vectors_of(40))


@pytest.fixture(scope="module")
def described(client: TestClient) -> Any:
    """The description, but for the token: that is asked for by the gate, which is not there."""
    raw = client.get("/openapi.json").json()
    assert raw.pop("security") == [{"token": []}]
    schema = schemathesis.openapi.from_dict(raw)
    schema.app = client.app
    return schema


@pytest.mark.ci
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_what_is_made_from_the_description_is_answered_as_it_says(described: Any, endpoint: Endpoint) -> None:
    """Fit requests and unfit ones: the status, the type and the document are among those that are told of."""
    # What fits a form may still be of another width, or a text that nothing embeds; a job fails after it was taken.
    but = [positive_data_acceptance, *([negative_data_rejection] if endpoint.status == 202 else [])]

    @given(st.data(), st.sampled_from(GenerationMode))
    @settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
    def asked(data: st.DataObject, mode: GenerationMode) -> None:
        case = data.draw(described[endpoint.path][endpoint.method].as_strategy(generation_mode=mode))
        if "store" in case.path_parameters:
            case.path_parameters["store"] = "fruit"
        case.headers.pop("Softkv-Snapshot", None)  # one that is made up is gone, whatever else is asked
        reply = case.call()
        late = [checks.not_a_server_error] if reply.status_code == 504 else []  # deadlines are made, too
        case.validate_response(reply, excluded_checks=[*but, *late])
        assert not {"set-cookie", "access-control-allow-origin"} & {name.lower() for name in reply.headers}

    asked()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("lookup", {"query": QUERY}),
        ("lookup", {"queries": [QUERY, QUERY], "k": 2, "show": 3}),
        ("nearest", {"query": QUERY}),
        ("compare", {"query": QUERY}),
        ("self_attention", {}),
        ("evaluate", {"queries": [QUERY], "targets": ["red"]}),
        ("snapshots", None),
    ],
)
def test_answers_are_as_the_description_says(described: Any, client: TestClient, path: str, told: Any) -> None:
    """Each way to ask has one answer that is."""
    case = described[f"/v1/{{store}}/{path}"]["POST"].Case(path_parameters={"store": "fruit"})
    if told is not None:
        case.body, case.media_type = told, "application/json"
    reply = case.call()
    assert reply.status_code in (200, 201), reply.text
    case.validate_response(reply)


def test_every_endpoint_is_described_and_says_nothing_of_stores(client: TestClient) -> None:
    """It tells neither their names nor what they hold."""
    found = client.get("/openapi.json")
    told = {(method.upper(), path) for path, methods in found.json()["paths"].items() for method in methods}
    assert told == {(one.method, one.path) for one in ENDPOINTS}
    for secret in ("fruit", "green", "item 0", "/tmp"):
        assert secret not in found.text
