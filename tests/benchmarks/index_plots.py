"""The plots: error against rows read, cost against items, coverage against what was asked for.

Drawn from what the other sections measured in the same folder; what is not there yet is left out, and said. Small SVG
files, whose lines differ in style and marker as well, so that they can be told apart in grey.
"""

from pathlib import Path
from typing import Any

from .index_report import Bench

DARK, MIDDLE, LIGHT, PALE = "#1b2a49", "#b8432f", "#5b8c8a", "#d9a441"
STYLES = ((DARK, "-", "o"), (MIDDLE, "--", "s"), (LIGHT, "-.", "^"), (PALE, ":", "D"))
RELIABLE = {"svg.fonttype": "none", "svg.hashsalt": "softkv", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
ERRORS = ("mixture", "spectrum", "text")


def plots(bench: Bench) -> None:
    """All plots that there are figures for."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        print("\n### Plots: left out, because Matplotlib is not installed: pip install 'softkv[plot]'", flush=True)
        return
    mpl.use("svg")
    bench.figures.mkdir(parents=True, exist_ok=True)
    print("\n### Plots\n", flush=True)
    with mpl.rc_context(RELIABLE):
        for name, draw in (("errors", _errors), ("growth", _growth), ("coverage", _coverage)):
            figure = draw(bench)
            print(f"- {name}: {_saved(figure, bench.figures / f'index-{name}.svg')}", flush=True)


def _saved(figure: Any, path: Path) -> str:
    if figure is None:
        return "nothing measured yet"
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return f"{path}, {path.stat().st_size / 1e3:.0f} KB"


def _axes(count: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, sharey=True)[0]


def _line(axes: Any, number: int, label: str, across: list[float], up: list[float]) -> None:
    colour, style, marker = STYLES[number % len(STYLES)]
    axes.plot(across, up, color=colour, linestyle=style, marker=marker, markersize=4, linewidth=1.4, label=label)


def _errors(bench: Bench) -> Any:
    """A panel for each data set: the best item, the best k, lists alone, lists and what is far from them."""
    found = [kept for kept in (bench.kept(f"errors-{name}") for name in ERRORS) if kept is not None]
    if not found:
        return None
    figure, panels = _axes(len(found), 3.2 * len(found), 3.2)
    for axes, one in zip(panels, found, strict=True):
        read, alone, both = (list(column) for column in zip(*one["lists"], strict=True))
        shares, errors = (list(column) for column in zip(*one["top"], strict=True))
        _line(axes, 0, "opened lists + far field", read, both)
        _line(axes, 1, "opened lists alone", read, alone)
        _line(axes, 2, "the best k items", shares, errors)
        axes.plot(
            shares[:1], errors[:1], color=PALE, linestyle="", marker="*", markersize=11, label="hard: the best item"
        )
        axes.axhline(0.01, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
        axes.set(xscale="log", yscale="log", title=f"{one['title']}, T = {one['temperature']}")
        axes.set_xlabel("share of the keys that is read")
    panels[0].set_ylabel("error, as a share of the value scale")
    panels[0].legend(fontsize=7, loc="lower left")
    return figure


def _growth(bench: Bench) -> Any:
    """Milliseconds by the index and by a scan."""
    found = bench.kept("growth")
    if found is None:
        return None
    figure, (axes,) = _axes(1, 4.2, 3.2)
    for number, (name, label) in enumerate((("index", "within 1%, by the index"), ("scan", "exact, by a scan"))):
        _line(axes, number, label, found["items"], [1e3 * seconds for seconds in found[name]])
    axes.set(xscale="log", yscale="log", title=f"Keys {found['width']} wide, T = {found['temperature']}")
    axes.set_xticks(found["items"], [f"{count:,}" for count in found["items"]])
    axes.minorticks_off()
    axes.set_xlabel("items in the store")
    axes.set_ylabel("milliseconds for a query, median")
    axes.legend(fontsize=8)
    return figure


def _coverage(bench: Bench) -> Any:
    """A panel for queries like the items, and one for the others."""
    found = bench.kept("coverage")
    if found is None:
        return None
    figure, panels = _axes(2, 8.0, 3.4)
    groups: tuple[list[str], list[str]] = ([], [])
    for name in found["observed"]:
        groups["like the items" not in name].append(name)
    titles = ("Queries like the items", "Other queries, other temperatures")
    for axes, names, title in zip(panels, groups, titles, strict=True):
        _covered(axes, found, names)
        axes.set(title=title, xlabel="confidence that was asked for")
    panels[0].set_ylabel("share of estimates within their stated error")
    return figure


def _covered(axes: Any, found: dict[str, Any], names: list[str]) -> None:
    """A line for each kind of queries; none where all were scanned."""
    nominal = found["nominal"]
    axes.plot(nominal, nominal, color="black", linewidth=0.8, linestyle=(0, (1, 2)))
    for number, name in enumerate(names):
        pairs = [pair for pair in zip(nominal, found["observed"][name], strict=True) if pair[1] is not None]
        if pairs:
            across, up = (list(column) for column in zip(*pairs, strict=True))
            _line(axes, number, name.removesuffix(", like the items"), across, up)
    axes.legend(fontsize=6.5, loc="lower right")
