"""The plots of an evaluation: reliability, error against temperature, and error when some queries are not answered.

One picture with a panel for each, as PNG or SVG by the name of the file. Lines differ in style and marker as well, so
that they can be told apart in grey. Does not measure anything.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softkv.errors import MissingExtra
from softkv.kinds import ValueKind

if TYPE_CHECKING:
    from softkv.database.evaluating import Evaluation, Way

STYLES: dict[str, tuple[str, Any, str]] = {
    "full soft": ("#1b2a49", "-", "o"),
    "learned": ("#b8432f", "--", "s"),
    "top": ("#5b8c8a", "-.", "^"),
    "mean": ("#d9a441", ":", "D"),
    "hard": ("#7a7a7a", (0, (5, 1, 1, 1)), "v"),
}
SETTINGS: Any = {  # Matplotlib lists its settings one by one as a type
    "svg.fonttype": "none",  # texts as texts
    "svg.hashsalt": "softkv",  # the same file for the same figures
    "font.sans-serif": ["DejaVu Sans"],  # every text would name all others as well
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
THIN = {"color": "black", "linewidth": 0.8, "linestyle": (0, (1, 2))}


def require() -> None:
    """Refuse at once if Matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plotting", package="matplotlib", extra="plot") from error


def draw(found: "Evaluation", path: str) -> None:
    """Draw an evaluation into a file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels: list[Callable[[Any, Evaluation], None]] = [_warmth, _abstention]
    if any(one.reliability for one in found.ways):
        panels.insert(0, _reliability)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(3.6 * len(panels), 3.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for one, panel in zip(axes, panels, strict=True):
            panel(one, found)
        lines = {line.get_label(): line for one in axes for line in one.lines if not line.get_label().startswith("_")}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize=8)
        figure.savefig(path, metadata={"Date": None} if path.lower().endswith(".svg") else None, dpi=150)


def _reliability(axes: Any, found: "Evaluation") -> None:
    """How often answers of each confidence are right; for numbers, how many are within intervals of each level."""
    labels = ValueKind(found.kind).coded
    axes.plot([0, 1], [0, 1], label="_ideal", **THIN)
    for way in found.ways:
        _line(axes, way, way.reliability)
    axes.set(
        title="Reliability",
        xlabel="confidence" if labels else "level of the interval",
        ylabel="accuracy" if labels else "share of targets within",
        xlim=(0, 1.02),
        ylim=(0, 1.02),
    )


def _warmth(axes: Any, found: "Evaluation") -> None:
    """The error at other temperatures, with the one that is used marked."""
    for way in found.ways:
        if way.warmth:
            _line(axes, way, way.warmth)
            axes.axvline(way.temperature, color=_style(way.way)[0], linewidth=0.8, label="_usual")
    axes.set(title="Temperature", xlabel="temperature (line: in use)", ylabel=found.error, xscale="log")


def _abstention(axes: Any, found: "Evaluation") -> None:
    """The error when the queries of the least log mass are not answered."""
    for way in found.ways:
        _line(axes, way, way.abstention, marked=False)
    axes.set(title="Abstention", xlabel="share of queries answered", ylabel=found.error, xlim=(0, 1.02))


def _line(axes: Any, way: "Way", curve: tuple[tuple[float, float], ...], *, marked: bool = True) -> None:
    if not curve:
        return
    colour, style, marker = _style(way.way)
    across, up = zip(*curve, strict=True)
    axes.plot(
        across,
        up,
        color=colour,
        linestyle=style,
        marker=marker if marked else "",
        markersize=4,
        linewidth=1.4,
        label=way.way,
    )


def _style(way: str) -> tuple[str, Any, str]:
    return next(style for name, style in STYLES.items() if way.startswith(name))
