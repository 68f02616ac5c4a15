"""The page of a server, in a real browser: answers of the store, typed questions, edits, and where the token goes."""

import json
import re
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

import softkv
from softkv.page import document

from . import servers
from .databases import filled
from .listening import guarded
from .looking import RENTS, answered, asks, chooses, looking, rents_at, says
from .servers import eventually

pytestmark = pytest.mark.chromium


@pytest.fixture
def rents(tmp_path: Path) -> Path:
    """A store of five rents by texts."""
    return rents_at(tmp_path / "rents.softkv")


def test_the_token_is_kept_for_the_tab_and_erased_from_the_address(browser: Any, rents: Path) -> None:
    """It stands in no URL that is sent, nor in storage that other tabs see; nobody is asked but the server."""
    with servers.served(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        assert running.token not in seen.page.url
        assert seen.page.evaluate("sessionStorage.length") == 1
        assert seen.page.evaluate("localStorage.length") == 0
        assert seen.page.evaluate("document.cookie") == ""
        asked = [one for one in seen.asked if not one.startswith("data:image/svg+xml,")]
        assert all(one.startswith(f"http://{running.host}:{running.port}/") for one in asked)
        assert not any(running.token in one for one in asked[1:])
        assert seen.told == []
        seen.page.reload()
        assert says(seen, "#whole", "The store’s own answer")


def test_without_a_token_there_is_a_door_and_nothing_behind_it(browser: Any, rents: Path) -> None:
    """A wrong one is refused, the right one lets in."""
    with guarded(rents) as running, looking(browser, running, "") as seen:
        assert eventually(lambda: seen.page.is_visible("#door"))
        assert not seen.page.is_visible("#main")
        assert "station" not in seen.page.content()
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        seen.page.fill("#token", "w" * 40)
        seen.page.keyboard.press("Enter")
        assert says(seen, "#problem", "takes no such token")
        seen.page.fill("#token", running.token)
        seen.page.keyboard.press("Enter")
        assert says(seen, "#whole", "The store’s own answer")


def test_the_page_itself_has_no_data_and_stands_behind_host_and_origin(rents: Path) -> None:
    """All get the same bytes; another Host, another site, a token in its URL, or another method are refused."""
    with guarded(rents) as running:

        def status(path: str = "/", method: str = "GET", **headers: str) -> int:
            return running.ask(method, path, None, **{"Authorization": "", **headers})[0]

        assert running.ask("GET", "/", None, Authorization="")[1] == document(None)
        assert '<script type="application/json" id="data">null</script>' in document(None)
        assert status(Host="evil.example") == 421
        assert status(Origin="http://evil.example") == 403
        assert status(**{"Sec-Fetch-Site": "cross-site"}) == 403
        assert status(f"/?token={running.token}") == 400
        assert status("/?x=1") == 401
        assert status(method="POST") == 401


def test_typed_questions_are_answered_by_the_store(browser: Any, rents: Path) -> None:
    """The number, the error and the route are its own; a question that the model knows no word of is told."""
    with guarded(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        asks(seen, "two rooms near the park")
        _, answer = running.ask("POST", "/v1/rents/lookup", {"query": "two rooms near the park"})
        assert seen.exact("#value") == pytest.approx(answer["value"], rel=1e-9)
        assert seen.exact("#error") == pytest.approx(answer["error"], rel=1e-9, abs=1e-12)
        assert "route scan" in seen.page.text_content("#whole")
        assert "above that of all 5 items that were left out" in seen.page.text_content("#evidence-told")
        seen.page.fill("#text", "☃")
        seen.page.keyboard.press("Enter")
        assert says(seen, "#problem", "holds no word that the model knows")
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


def test_all_items_of_a_larger_store_take_part(browser: Any, tmp_path: Path) -> None:
    """The answer is that of all of them, at any temperature, while the map shows some and says so."""
    filled(tmp_path / "many", "number", 2500, compatibility="gaussian", temperature=0.5).close()
    with guarded(tmp_path / "many") as running, looking(browser, running) as seen:
        assert says(seen, "#about", "2,000 of 2,500 items")
        key = re.search("item [0-9]+", seen.page.text_content("#asked"))
        assert key
        with softkv.open(f"http://{running.host}:{running.port}/many", token=running.token) as db:
            for link in ("T=0.2", "T=mean", "T=hard"):
                seen.page.evaluate(f"location.hash = '{link}'")
                options: dict[str, Any] = {"T=0.2": {"temperature": 0.2}, "T=mean": {"compatibility": "uniform"}}
                answer = db.lookup(db.item(key[0]).vector, **options.get(link, {"k": 1}))
                assert eventually(lambda value=answer.value: seen.exact("#value") == pytest.approx(value, rel=1e-6))
                assert says(seen, "#whole", "over all 2,500 items")
                weights = [one.weight for one in answer.contributors]
                shown = seen.all_exact("#bars .share")
                assert shown[:10] == pytest.approx([1.0] if link == "T=hard" else weights, rel=1e-6, abs=1e-12)
            assert answered(seen)
            hard = db.nearest(db.item(key[0]).vector).value
            assert seen.exact("#ways tbody tr:nth-child(2) td") == pytest.approx(hard, rel=1e-6)


def test_a_link_of_a_typed_question_opens_it_again(browser: Any, rents: Path) -> None:
    """The tab that has the token opens it; and the lines for Python and curl work."""
    with guarded(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        asks(seen, "a palace")
        assert eventually(lambda: "text=a+palace" in seen.page.evaluate("location.hash"))
        shown, lines = seen.exact("#value"), [seen.page.text_content(f"#line-{one}") for one in ("python", "curl")]
        seen.page.reload()
        assert says(seen, "#asked", "a palace")
        line = re.sub(r"softkv\.open\((.*?)\)", r"softkv.open(\1, token=token)", lines[0])
        answer = eval(line, {"softkv": softkv, "token": running.token})
        assert answer.value == pytest.approx(shown, rel=1e-9)
        words = [word.replace("$SOFTKV_TOKEN", running.token) for word in shlex.split(lines[1])]
        said = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True).stdout
        assert json.loads(said)["value"] == pytest.approx(shown, rel=1e-9)


def test_items_are_edited_where_that_is_allowed(browser: Any, rents: Path) -> None:
    """Another value, a new item, one less; and what another tab has changed is seen, and not overwritten unseen."""
    with guarded(rents) as running, looking(browser, running) as seen, looking(browser, running) as other:
        for tab in (seen, other):
            assert says(tab, "#whole", "The store’s own answer")
        seen.page.click("#list tbody tr:nth-child(1) button")
        assert eventually(lambda: seen.page.input_value("#edit-key") == "a small room near the station")
        seen.page.fill("#edit-value", "555")
        seen.page.click("#save")
        assert says(seen, "#edited", "Saved")
        assert says(seen, "#list", "555")
        assert says(other, "#list", "555")
        other.page.fill("#edit-key", "a castle")
        other.page.fill("#edit-value", "9000")
        other.page.click("#save")
        assert says(other, "#edited", "Added a castle")
        assert says(seen, "#list", "9,000")
        seen.page.fill("#edit-key", "a castle")
        seen.page.click("#delete")
        assert says(seen, "#edited", "Nothing was changed: a castle is 9,000 by now")
        assert seen.page.input_value("#edit-value") == "9000"
        seen.page.click("#delete")
        assert says(seen, "#edited", "Deleted a castle")
        assert eventually(lambda: "a castle" not in other.page.text_content("#list"))
        with softkv.open(f"http://{running.host}:{running.port}/rents", token=running.token) as db:
            assert dict(db.items()) == RENTS | {"a small room near the station": 555}
        assert (seen.told, other.told) == ([], [])


def test_the_form_holds_the_item_that_was_chosen(browser: Any, rents: Path) -> None:
    """Another client deletes an item, and all after it are one place further up: the form follows."""
    first, _, third, fourth, _ = RENTS
    with guarded(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        chooses(seen, third)
        seen.page.click("#near > p button:text-is('Close')")
        assert eventually(lambda: not seen.page.is_visible("#near"))
        assert running.ask("POST", "/v1/rents/items/delete", {"keys": [first]})[1] == {"deleted": 1}
        assert eventually(lambda: first not in seen.page.text_content("#list"))
        chooses(seen, fourth)
        assert (seen.page.input_value("#edit-key"), seen.page.input_value("#edit-value")) == (fourth, "940")
        assert fourth in seen.page.text_content("#near h3")
        seen.page.click("#delete")
        assert says(seen, "#edited", f"Deleted {fourth}")
        assert running.ask("POST", "/v1/rents/items/get", {"keys": [third]})[1]["values"] == [890]


def test_nothing_of_a_store_is_left_when_another_is_chosen(browser: Any, tmp_path: Path) -> None:
    """The form, the neighbours, the legend and self-attention are of the store that is shown."""
    for name, count in (("alpha", 4), ("beta", 3)):
        with softkv.open(tmp_path / name, value="label", compatibility="gaussian") as db:
            for i in range(count):
                db.add([f"{name} {i}"], [f"{name} {'xy'[i % 2]}"], vectors=[[i, i]])
    with guarded(tmp_path / "alpha", tmp_path / "beta") as running, looking(browser, running) as seen:
        assert says(seen, "#title", "alpha")
        assert says(seen, "#whole", "The store’s own answer")
        seen.page.click("#attend")
        chooses(seen, "alpha 1")
        assert seen.page.input_value("#edit-key") == "alpha 1"
        seen.page.select_option("#store", "beta")
        assert says(seen, "#title", "beta")
        assert says(seen, "#legend", "beta x")
        assert seen.page.input_value("#edit-key") == ""
        chooses(seen, "beta 1")
        assert (seen.page.input_value("#edit-key"), seen.page.input_value("#edit-value")) == ("beta 1", "beta y")
        assert seen.page.text_content("#near h3").startswith("Nearest keys to beta 1")
        seen.page.focus("#matrix")
        for _ in range(5):
            seen.page.keyboard.press("ArrowDown")
        assert seen.page.text_content("#cell").startswith("beta 2 gives beta 0 ")
        assert not any("alpha" in seen.page.inner_text(place) for place in ("#map", "#weights", "#attention", "#items"))


@pytest.mark.parametrize("other", ["points", "nothing"])
def test_a_question_that_is_answered_late_stays_with_its_store(
    browser: Any, rents: Path, tmp_path: Path, other: str
) -> None:
    """A typed question and the answer of a store do nothing once another store is shown, or an empty one."""
    filled(tmp_path / "points", "label", 30).close()
    softkv.open(tmp_path / "nothing").close()
    held: list[Any] = []
    for method in ("scene", "lookup"):
        with guarded(rents, tmp_path / other) as running, looking(browser, running) as seen:
            assert answered(seen)
            seen.page.route(f"**/v1/rents/{method}", lambda one: held.append(one))
            seen.page.fill("#text", "a cheap room")
            seen.page.keyboard.press("Enter")
            assert eventually(lambda: seen.page.evaluate("1") and held)  # handlers run while something is asked
            seen.page.select_option("#store", other)
            assert says(seen, "#about", "values are labels" if other == "points" else "This store is empty")
            with seen.page.expect_response(f"**/v1/rents/{method}"):
                held.pop().continue_()
            seen.settled()
            if other == "points":
                assert answered(seen)
                assert "cheap" not in seen.page.text_content("#asked")
            assert eventually(lambda: "cheap" not in seen.page.evaluate("location.hash"))
            assert seen.page.text_content("#problem") == ""
            assert all("422" in one for one in seen.told)  # an empty store has no scene


def test_a_value_that_the_form_has_not_shown_is_neither_replaced_nor_deleted(browser: Any, rents: Path) -> None:
    """Somebody changes it while somebody else types: it is shown first, also where the page has taken it up since."""
    first, *_ = RENTS
    with guarded(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        for button, value, done in (("#save", 700, "Saved"), ("#delete", 800, "Deleted")):
            chooses(seen, first)
            seen.page.fill("#edit-value", "555")
            assert running.ask("PATCH", "/v1/rents/items", {"keys": [first], "values": [value]})[0] == 200
            assert says(seen, "#list", str(value))
            assert seen.page.input_value("#edit-value") == "555"
            seen.page.click(button)
            assert says(seen, "#edited", f"Nothing was changed: {first} is {value} by now")
            assert running.ask("POST", "/v1/rents/items/get", {"keys": [first]})[1]["values"] == [value]
            assert seen.page.input_value("#edit-value") == str(value)
            seen.page.click(button)
            assert says(seen, "#edited", f"{done} {first}")
        seen.page.click("#save")
        assert says(seen, "#edited", f"Added {first}")
        assert running.ask("POST", "/v1/rents/items/get", {"keys": [first]})[1]["values"] == [800]
        assert seen.told == []


def test_a_store_that_does_not_come_leaves_the_page_with_the_one_before(browser: Any, rents: Path) -> None:
    """Its title, the list of stores and the form are still those of what is shown, and so are edits."""
    points = rents.parent / "points"
    filled(points, "label", 30).close()
    with guarded(rents, points) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        seen.page.route("**/v1/**", lambda route: route.abort())  # all, since any answer takes the problem back
        seen.page.select_option("#store", "points")
        assert says(seen, "#problem", "The server does not answer")
        assert eventually(lambda: seen.page.input_value("#store") == "rents")
        assert seen.page.text_content("#title") == "rents"
        assert seen.page.title() == "rents – softkv"


def test_a_store_that_is_only_read_is_not_edited(browser: Any, rents: Path) -> None:
    """There is no form for it."""
    with guarded(rents, read_only=True) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        assert not seen.page.is_visible("#editing")


def test_a_server_may_go_and_come_back(browser: Any, rents: Path, tmp_path: Path) -> None:
    """The page says that it is gone, goes on with what it has, and is well when it is back."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40)
    tokens.chmod(0o600)
    with servers.served(rents, options=("--token-file", tokens)) as running:
        running.token, port = "t" * 40, running.port
        with looking(browser, running) as seen:
            assert says(seen, "#whole", "The store’s own answer")
            running.end()
            assert says(seen, "#problem", "The server does not answer")
            seen.page.click("#mean")
            assert says(seen, "#temperature", "plain mean")
            with servers.served(rents, options=("--token-file", tokens, "--port", port)):
                assert eventually(lambda: not seen.page.is_visible("#problem"))
                assert says(seen, "#whole", "The store’s own answer")


def test_the_token_is_not_sent_to_whoever_takes_the_port(browser: Any, rents: Path) -> None:
    """While the server is gone, what answers in its place is asked for its health alone, and is no server."""
    with servers.served(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        running.end()
        assert says(seen, "#problem", "The server does not answer")
        with socket.create_server((running.host, running.port)) as other:
            other.settimeout(servers.LONGEST)
            asked = b""
            while asked.count(b"GET ") < 3:
                client, _ = other.accept()
                with client:
                    client.settimeout(servers.LONGEST)
                    asked += client.recv(1 << 16)
                    client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert asked.count(b"GET /health ") == 3
        assert b"uthorization" not in asked
        assert running.token.encode() not in asked


def test_a_token_that_is_refused_later_shuts_the_page(browser: Any, rents: Path, tmp_path: Path) -> None:
    """It is forgotten, and nothing opens the page again but a token that is taken."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40)
    tokens.chmod(0o600)
    with servers.served(rents, options=("--token-file", tokens)) as running:
        running.token, port = "t" * 40, running.port
        with looking(browser, running) as seen:
            assert says(seen, "#whole", "The store’s own answer")
            running.end()
            tokens.write_text("u" * 40)
            with servers.served(rents, options=("--token-file", tokens, "--port", port)):
                assert eventually(lambda: seen.page.is_visible("#door"))
                seen.page.set_viewport_size({"width": 900, "height": 700})
                seen.settled()
                assert not seen.page.is_visible("#main")
                assert seen.page.evaluate("sessionStorage.length") == 0
                seen.page.fill("#token", "u" * 40)
                seen.page.keyboard.press("Enter")
                assert eventually(lambda: seen.page.is_visible("#main"))


def test_a_link_that_is_no_token_leaves_the_one_that_is_there(browser: Any, rents: Path) -> None:
    """A fragment that no server would take as a token is none."""
    with guarded(rents) as running, looking(browser, running) as seen:
        assert says(seen, "#whole", "The store’s own answer")
        seen.page.evaluate("location.hash = 'hello'")
        seen.settled()
        seen.page.reload()
        assert says(seen, "#whole", "The store’s own answer")


def test_one_of_several_stores_is_chosen_and_an_empty_one_says_so(browser: Any, rents: Path, tmp_path: Path) -> None:
    """A list chooses it, or a link."""
    filled(tmp_path / "points", "label", 30).close()
    softkv.open(tmp_path / "nothing").close()
    stores = rents, tmp_path / "points", tmp_path / "nothing"
    with guarded(*stores) as running, looking(browser, running) as seen:
        assert says(seen, "#title", "rents")
        seen.page.select_option("#store", "points")
        assert says(seen, "#title", "points")
        assert says(seen, "#about", "values are labels")
        seen.page.select_option("#store", "nothing")
        assert says(seen, "#about", "This store is empty")
