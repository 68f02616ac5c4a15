"""The plots: error against rows read, cost against items, coverage against what was asked for.

Drawn from what the other sections measured in the same folder; what is not there yet is left out, and said. Small SVG
files, whose lines differ in style and marker as well, so that they can be told apart in grey.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from softkv_cli.plotting import SETTINGS, THIN

from .index_report import Bench

STYLES = (
    ("#1b2a49", "-", "o"),
    ("#b8432f", "--", "s"),
    ("#5b8c8a", "-.", "^"),
    ("#d9a441", ":", "D"),
    ("#7a7a7a", (0, (5, 1, 1, 1, 1, 1)), "v"),
)
ERRORS = ("mixture", "spectrum", "text")
LIKE, BETWEEN = "like the items", "at temperatures between"


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
    with mpl.rc_context(SETTINGS):
        for name, draw in (("errors", _errors), ("growth", _growth), ("coverage", _coverage)):
            figure = draw(bench)
            print(f"- {name}: {_saved(figure, bench.figures / f'index-{name}.svg')}", flush=True)


def drawn(path: Path, draw: Callable[[], Any]) -> str:
    """Save one plot; what was drawn, or why nothing."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return "No plot, because Matplotlib is not installed: pip install 'softkv[plot]'"
    mpl.use("svg")
    with mpl.rc_context(SETTINGS):
        return _saved(draw(), path)


def measured_coverage(panels: Mapping[str, Mapping[str, Any]], nominal: Sequence[float]) -> Any:
    """Nominal against observed coverage of measured answers, by panel and by line."""
    figure, axes = _axes(len(panels), 3.4 * len(panels), 3.6)
    for one, (title, lines) in zip(axes, panels.items(), strict=True):
        _covered(one, {"nominal": nominal, "observed": lines}, list(lines))
        one.set(title=title, xlabel="confidence that was asked for", ylim=(0.7, 1.01))
        for axis in (one.xaxis, one.yaxis):
            _plain(axis, lambda share, _: f"{share:.0%}")
    axes[0].set_ylabel("share of answers within their stated error")
    return figure


def measured_errors(lines: Mapping[str, Sequence[Sequence[float]]]) -> Any:
    """The error that 95% of measured answers stay below, against the rows they read; a point for each tolerance."""
    figure, (axes,) = _axes(1, 4.6, 3.4)
    for number, (name, rows) in enumerate(lines.items()):
        _, _, shares, _, errors = (list(column) for column in zip(*rows, strict=True))
        _line(axes, number, name, shares, errors)
    axes.set(xscale="log", yscale="log", xlabel="share of the rows that is read")
    axes.set_ylabel("error that 95% stay below, of the value scale", fontsize=8)
    axes.set_xticks([0.02, 0.05, 0.1, 0.2, 0.4])
    axes.set_yticks([0.003, 0.01, 0.03, 0.1])
    for axis in (axes.xaxis, axes.yaxis):
        _plain(axis, lambda share, _: f"{100 * share:g}%")
    axes.legend(fontsize=7)
    return figure


def _saved(figure: Any, path: Path) -> str:
    if figure is None:
        return "nothing measured yet"
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(re.sub(r">\s+<", "><", path.read_text(encoding="utf-8")), encoding="utf-8")
    return f"{path}, {path.stat().st_size / 1e3:.0f} KB"


def _axes(count: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, sharey=True)[0]


def _line(axes: Any, number: int, label: str, across: list[float], up: list[float]) -> None:
    colour, style, marker = STYLES[number % len(STYLES)]
    look = {"linestyle": style, "marker": marker, "markersize": 4, "linewidth": 1.4}
    if number >= len(STYLES):
        look["markerfacecolor"] = "white"
    axes.plot(across, up, color=colour, label=label, **look)


def _plain(axis: Any, told: Callable[[float, Any], str]) -> None:
    """Whole powers of ten, in plain figures: others, and those with exponents, take most of a small file."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_major_formatter(FuncFormatter(told))
    axis.set_minor_locator(NullLocator())


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
        _line(axes, 2, "the best k items, found for nothing", shares, errors)
        _line(axes, 3, "the best item (hard)", shares[:1], errors[:1])
        axes.axhline(0.01, **THIN)
        axes.set(xscale="log", yscale="log", title=f"{one['title']}, T = {one['temperature']}")
        axes.set_xlabel("share of the keys that is read")
        _plain(axes.xaxis, lambda share, _: f"{share:.4%}".rstrip("0%").rstrip(".") + "%")
        _plain(axes.yaxis, lambda error, _: f"{error:g}")
    panels[0].set_ylabel("error, as a share of the value scale")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _growth(bench: Bench) -> Any:
    """Milliseconds by the index and by a scan."""
    found = bench.kept("growth")
    if found is None:
        return None
    from matplotlib.ticker import LogLocator

    figure, (axes,) = _axes(1, 4.2, 3.2)
    told = (
        ("within 1%, by the index: like the items", "like the items", "index"),
        ("within 1%, by the index: random directions", "random directions", "index"),
        ("exact, by a scan", "like the items", "scan"),
    )
    for number, (label, asked, name) in enumerate(told):
        _line(axes, number, label, found["items"], [1e3 * seconds for seconds in found[asked][name]])
    axes.set(xscale="log", yscale="log", title=f"Keys {found['width']} wide, T = {found['temperature']}")
    axes.set_xticks(found["items"])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    _plain(axes.xaxis, lambda count, _: f"{count:,.0f}")
    _plain(axes.yaxis, lambda milliseconds, _: f"{milliseconds:g}")
    axes.set_xlabel("items in the store")
    axes.set_ylabel("milliseconds for a query, median")
    axes.legend(fontsize=8)
    return figure


def _coverage(bench: Bench) -> Any:
    """A panel for queries like the items, one for temperatures between, and one for other queries."""
    found = bench.kept("coverage")
    if found is None:
        return None
    figure, panels = _axes(3, 10.0, 3.4)
    told = ("queries like the items", "at temperatures between", "other queries")
    for number, (axes, title) in enumerate(zip(panels, told, strict=True)):
        _covered(axes, found, [name for name in found["observed"] if _panel(name) == number])
        axes.set(title=title, xlabel="confidence that was asked for", ylim=(0.5, 1.02))
        for axis in (axes.xaxis, axes.yaxis):
            _plain(axis, lambda share, _: f"{share:.0%}")
    panels[0].set_ylabel("share of estimates within their stated error")
    return figure


def _panel(name: str) -> int:
    return 0 if name.endswith(LIKE) else 1 if name.endswith(BETWEEN) else 2


def _covered(axes: Any, found: dict[str, Any], names: list[str]) -> None:
    """A line for each kind of queries; none where all were scanned."""
    nominal = found["nominal"]
    axes.plot(nominal, nominal, **THIN)
    axes.set_xticks(nominal)
    for name in names:
        pairs = [pair for pair in zip(nominal, found["observed"][name], strict=True) if pair[1] is not None]
        if pairs:
            across, up = (list(column) for column in zip(*pairs, strict=True))
            label = name.removesuffix(f", {LIKE}").removesuffix(f", {BETWEEN}")
            _line(axes, len(axes.lines) - 1, label, across, up)
    if len(axes.lines) > 1:
        axes.legend(fontsize=6.5, loc="lower right")
