"""How long the page takes to show another temperature: in a file, and at a server with an index.

Run: python -m tests.benchmarks.page [--shown N] [--items N] [--width D] [--moves N] [--folder STORE]

The slider is moved again and again. In a file a move takes from the beginning of its frame until that is laid out and
painted; "script" is the part of it in which the page works. At a server it takes from the move until the store's own
answer is shown; queries are keys of the store, which the server is asked to read only. Server and browser share the
machine. `--folder` names a store that has an index already.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from softkv_cli.machine import machine
from softkv_cli.mixtures import mixture

import softkv
from tests.browsing import Watched, launched, opened, watched
from tests.listening import guarded
from tests.servers import eventually

FRAME, ROUND_TRIP = 16.0, 100.0  # milliseconds that are wanted
LONGEST = 120.0  # seconds for the first look at a large store
KEYS = (1, 2, 3, 4, 5)  # which ask: so many steps to the right on the map, from the middle or the one before
MOVED = """async ([moves, live]) => {
    const [warmth, main, whole] = ['warmth', 'main', 'whole'].map((id) => document.getElementById(id));
    const frame = () => new Promise(requestAnimationFrame);
    const { port1, port2 } = new MessageChannel();
    const painted = () => new Promise((done) => {
        port1.onmessage = done;
        port2.postMessage(0);
    });
    const found = [];
    for (let move = 0; move < moves; move++) {
        const told = new Promise((done) => new MutationObserver(() => {
            if (whole.textContent.startsWith('The store')) done(performance.now());
        }).observe(whole, { childList: true, characterData: true, subtree: true }));
        await frame();
        const began = performance.now();
        warmth.value = 440 + ((move * 37) % 120);
        warmth.dispatchEvent(new Event('input'));
        await frame();
        const painting = performance.now();
        await painted();
        const script = Number(main.dataset.took);
        found.push(live ? [(await told) - began] : [script, performance.now() - painting + script]);
    }
    return found;
}"""


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shown", type=int, default=2000, help="items of the file")
    parser.add_argument("--items", type=int, default=100_000, help="items of the store that is served")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="a store that is there")
    options = parser.parse_args()
    print(machine())
    print("| what | moves | median ms | p95 ms | largest ms | wanted ms |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder, launched() as browser:
        in_file(options, browser, Path(folder))
        at_server(options, browser, Path(folder))


def in_file(options: argparse.Namespace, browser: Any, folder: Path) -> None:
    """Moves of the slider in a file."""
    store = made(folder / "file", options.shown, options.width)
    with softkv.open(store, "r") as db:
        db.page(folder / "page.html", options.shown, queries=db.columns().block(0, 3)[0])
    with opened(browser, folder / "page.html") as seen:
        found = seen.page.evaluate(MOVED, [options.moves, False])
    what = f"a file of {options.shown:,} x {options.width}"
    told(f"{what}, script", [script for script, _ in found], FRAME)
    told(f"{what}, frame", [frame for _, frame in found], FRAME)


def at_server(options: argparse.Namespace, browser: Any, folder: Path) -> None:
    """Moves of the slider at a server, from each to the answer; some keys ask in turn."""
    link = folder / "served"
    link.symlink_to(options.folder or made(folder / "made", options.items, options.width, index=True))
    with guarded(link, read_only=True) as server, watched(browser) as seen:
        seen.page.goto(f"http://{server.host}:{server.port}/#{server.token}")
        await_answer(seen)
        found = []
        for place in KEYS:
            seen.page.focus("#chart")
            for pressed in (*["ArrowRight"] * place, "Enter"):
                seen.page.keyboard.press(pressed)
            seen.page.click("#ask-key")
            await_answer(seen)
            found += seen.page.evaluate(MOVED, [options.moves // len(KEYS), True])
        items = seen.page.text_content("#count")
    told(f"a server of {items} items", [one for (one,) in found], ROUND_TRIP)


def await_answer(seen: Watched) -> None:
    """Wait until the store has answered in every way."""
    assert eventually(lambda: seen.page.get_attribute("#answer", "aria-busy") == "false", LONGEST)


def made(path: Path, items: int, width: int, *, index: bool = False) -> Path:
    """A store of numbers by keys in clusters, perhaps with an index."""
    found = mixture(items, width, 1, 1, seed=0)
    with softkv.open(path) as db:
        db.add(vectors=found.keys, values=found.values[:, 0])
        if index:
            db.build_index()
    return path


def told(what: str, times: list[float], wanted: float) -> None:
    """A line of the table."""
    ordered = sorted(times)
    figures = statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1]
    print(f"| {what} | {len(ordered)} | {' | '.join(f'{one:.1f}' for one in figures)} | {wanted:g} |")


if __name__ == "__main__":
    main()
