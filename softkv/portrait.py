"""Answers as a few lines of text, as a table in a notebook, as plain Python and as JSON.

Uses only the fields of answers. Does not look anything up.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, TypeAlias

from softkv.errors import MissingExtra

# The classes of answer.py, which imports this file: importing them here would close a circle.
Answer: TypeAlias = Any
Answers: TypeAlias = Any
Comparison: TypeAlias = Any
Contributor: TypeAlias = Any

BAR = 20  # cells of a bar of weight 1
EIGHTHS = " ▏▎▍▌▋▊▉"
LONGEST = 60  # characters of a text in a line
_ROUTES = {"scan": "scanned", "gather": "gathered"}
READ = "the heaviest of the rows read"  # the contributors of an estimate; there may be heavier ones
SHOWN = 10  # of many answers, in a table
_ELSEWHERE = ("value", "labels", "contributors", "head_weights", "kind", "guard", "unguarded")  # told otherwise, or not
_CELLS = ("key", "row", "weight", "score", "text", "value", "payload")  # of a contributor
_TYPES = dict.fromkeys(("spread", "log_mass", "effective", "mass", "temperature", "error"), "float64")
_TYPES |= dict.fromkeys(("log_mass_error", "effective_error", "spread_error", "log_mass_floor"), "float64")
_TYPES |= dict.fromkeys(("out_of_reach", "familiarity", "weight", "score"), "float64")
_TYPES |= dict.fromkeys(("scored", "rows_read", "row"), "int64") | dict.fromkeys(("is_far", "known"), "bool_")
_TYPES |= dict.fromkeys(("error_kind", "route", "reason", "why_unknown", "key", "text", "payload"), "string")
MARGIN = 1e-12  # of a number: what differs less is told apart by rounding alone
LISTED, TOLD = 5, 0.01  # most labels of a distribution in a line, and the least share of one that is listed


def bar(share: float, width: int = BAR) -> str:
    """A share of 1 as a bar, to an eighth of a cell.

    >>> bar(0.53, 10)
    '█████▎    '
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


_SPELLED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_SPELLED |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def harmless(text: str) -> str:
    r"""A text that is safe on a terminal: characters that move the cursor, colour or reverse text are escaped.

    >>> harmless("a\x1b[2Jb\u202ec\n")
    'a\\x1b[2Jb\\u202ec\n'
    """
    return text.translate(_SPELLED)


def short(value: Any, scale: float = 0.0) -> str:
    """A value in a few characters; numbers with the digits that differences of this scale have.

    >>> import numpy as np
    >>> short(1234567.891), short("word " * 40), short(np.zeros(384))
    ('1.235e+06', 'word word word word word word word word word word word wo...', '[0, 0, 0, ... 384 numbers]')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        line = harmless(" ".join(value.split()))
        return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
    cells = _plain(value)
    if isinstance(cells, list):
        if len(cells) > 4:
            return f"[{', '.join(short(one, scale) for one in cells[:3])}, ... {len(cells)} numbers]"
        return f"[{', '.join(short(one, scale) for one in cells)}]"
    return number(cells, scale) if isinstance(cells, (int, float)) and not isinstance(cells, bool) else str(cells)


def number(x: float, scale: float = 0.0) -> str:
    """A number to four figures, or to as many as two digits of a difference of this scale need.

    >>> number(49492.86), number(0.00012345), number(3.0), number(12.5)
    ('49,493', '0.0001234', '3', '12.5')
    >>> number(1000000.25, 0.5), number(1700000123.0, 900.0), number(49492.86, 700.0)
    ('1,000,000.25', '1,700,000,123', '49,493')
    """
    size, whole = abs(x), 1000 <= abs(x) < 1e6
    coarsest = 1.0 if whole else 10.0 ** (math.floor(math.log10(size)) - 3) if 0 < size < math.inf else 0.0
    if MARGIN * size < scale < coarsest:
        return f"{x:,.{max(0, 1 - math.floor(math.log10(scale)))}f}"
    return f"{x:,.0f}" if whole else f"{x:.4g}"


def counted(count: int, what: str) -> str:
    """A count with its noun, in the singular or plural.

    >>> counted(1, "item"), counted(2000, "item")
    ('1 item', '2,000 items')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def scale_of(answer: Answer) -> float:
    """How much numbers in an answer differ: by the width of its interval or radius, else as its values do; or 0."""
    promised = answer.promised or {}
    if "interval" in promised:
        low, high = promised["interval"]
        return float(high - low)
    if "radius" in promised:
        return float(promised["radius"])
    if answer.spread is None:
        return 0.0
    values = [float(one.value) for one in answer.contributors if one.value is not None]
    # The spread alone would be tiny where one item has nearly all weight.
    return max(float(answer.spread), max(values, default=0.0) - min(values, default=0.0))


def value_of(answer: Answer, scale: float | None = None) -> str:
    """The value of an answer in one line; its numbers with the digits of this scale, or else of its own."""
    said = _said(answer, scale_of(answer) if scale is None else scale)
    return f"not known (closest: {said})" if answer.known is False else said


def exact_of(found: Comparison, scale: float) -> str:
    """The value of the key that is the query; its number with the digits of this scale."""
    return "no such key" if found.exact is None else short(found.exact.value, scale)


def _said(answer: Answer, scale: float) -> str:
    """The value with its error, or with the spread of the values."""
    if answer.labels is not None:
        return distribution(answer)
    texts = answer.texts
    if texts is not None:
        return short(texts[0].text) if texts else "(a text that was not among the rows to show)"
    value, promised = short(answer.value, scale), answer.promised or {}
    if "interval" in promised:
        low, high = (short(one, scale) for one in promised["interval"])
        return f"{value}, {low} to {high} in {promised['share'] * 10:g} of 10"
    if "radius" in promised:
        return f"{value}, within {short(promised['radius'])} in {promised['share'] * 10:g} of 10"
    alone = answer.spread is None or answer.scored == 1
    return value if alone else f"{value} (values spread by {short(answer.spread)})"


def distribution(answer: Answer) -> str:
    """The most probable labels of an answer with their shares; for an answer of one row only its label."""
    if answer.scored == 1:
        return short(answer.label)
    shares = _plain(answer.value)
    order = sorted(range(len(shares)), key=lambda code: -shares[code])[:LISTED]
    told = [code for code in order if shares[code] >= TOLD or code == order[0]]
    return ", ".join(f"{short((answer.labels or ())[code])} {shares[code]:.1%}" for code in told)


def name_of(one: Contributor) -> str:
    """The key of a contributor; its text where it has no key of its own; or its row."""
    if one.key is None:
        return f"row {one.row}"
    return short(one.text if one.text is not None and one.key.startswith("#") else one.key)


def facts_of(answer: Answer) -> str:
    """Log mass, effective number, route and the like, in one line."""
    told = ("log_mass", "effective", "temperature")
    facts = [f"{name.replace('_', ' ')} {short(_mean(getattr(answer, name))) or 'unknown'}" for name in told]
    if answer.is_far:
        facts[0] += f" is below every item of the store (lowest left out {short(answer.log_mass_floor)})"
    held = _mean(answer.mass)
    if held is None:
        facts.append(f"weights are shares of these {answer.scored:,}, which have an unknown share of the mass")
    elif held < 0.9995:
        facts.append(f"{held:.1%} of the mass")
    if answer.out_of_reach is not None:
        facts.append(f"{answer.out_of_reach:.1%} of it out of reach")
    return ", ".join([*facts, how_exact(answer)])


def how_exact(answer: Answer) -> str:
    """How far the answer can be trusted."""
    read = "" if answer.rows_read in (None, answer.scored) else f" of {answer.rows_read:,} rows read"
    if answer.error_kind == "exact":
        return ": ".join(told for told in (f"exact over {answer.scored:,}{read}", route_of(answer)) if told)
    shown = f", shown: {READ}" if answer.contributors else ""
    return f"{estimate_of(answer, 'error ')}, {answer.scored:,} scored{read}{shown}"


def estimate_of(answer: Any, before: str = "") -> str:
    """How far an estimate may be off, after these words; empty for exact answers."""
    if answer.error_kind == "exact":
        return ""
    return f"{before}{'unknown' if answer.error is None else f'{short(answer.error)} ({answer.error_kind})'}"


def route_of(answer: Answer) -> str:
    """The route of an exact answer and the reason for it; empty if no reason is given."""
    if not answer.reason:
        return ""
    return f"{_ROUTES.get(answer.route, answer.route)}, {answer.reason}"


def as_text(answer: Answer) -> str:
    """An answer as a few lines."""
    named = [(name_of(one), one) for one in answer.contributors]
    wide, scale = max((len(name) for name, _ in named), default=0), scale_of(answer)
    shown = ((f"{bar(one.weight)} {one.weight:7.1%}", name, short(one.value, scale)) for name, one in named)
    lines = [f"  {share}  {name.ljust(wide)}  {value}".rstrip() for share, name, value in shown]
    return "\n".join([value_of(answer, scale), *lines, facts_of(answer)])


class Share(float):
    """A number from 0 to 1 that is drawn as a bar."""


def as_table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> str:
    """A table for a notebook, drawn as the page draws them; all texts are escaped, and none is typeset as a formula."""
    from html import escape

    names = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f"<div class='tex2jax_ignore mathjax_ignore' style='font-variant-numeric:tabular-nums'>"
        f"<b>{escape(title)}</b>"
        f"<table><tr>{names}</tr>{lines}</table><small>{escape(note)}</small></div>"
    )


def _cell(x: Any) -> str:
    if isinstance(x, Share):
        track = "background:rgba(128,128,128,.2);border-radius:3px;height:.8em;width:9em"
        wide = f"background:#0072b2;border-radius:3px;height:100%;width:{100 * x:.2f}%"
        return f"<td><div style='{track}'><div style='{wide}'></div></div></td><td>{x:.1%}</td>"
    from html import escape

    value, scale = x if isinstance(x, tuple) else (x, 0.0)  # with the scale that its digits have to show, or alone
    side = "right" if isinstance(value, (int, float)) else "left"
    return f"<td style='text-align:{side}'>{escape(short(value, scale))}</td>"


def as_html(answer: Answer) -> str:
    """An answer as a table for a notebook."""
    scale = scale_of(answer)
    rows = ((name_of(one), Share(one.weight), one.score, (one.value, scale)) for one in answer.contributors)
    return as_table(value_of(answer, scale), ("key", "weight", "", "score", "value"), rows, facts_of(answer))


def answers_as_html(answers: Answers) -> str:
    """Some of many answers as a table for a notebook, without reading their contributors from the store."""
    told = answers_as_text(answers).strip("<>")
    if answers.scored.ndim != 1:
        return as_table(told, (), ())
    values = answers.value if answers.label is None else answers.label
    numbers = range(min(SHOWN, len(answers)))
    rows = ((n, values[n], _mean(answers.effective[n]), _mean(answers.log_mass[n])) for n in numbers)
    more = f"and {len(answers) - SHOWN:,} more" if len(answers) > SHOWN else ""
    return as_table(told, ("query", "value", "effective", "log mass"), rows, more)


def comparison_as_html(found: Comparison) -> str:
    """A comparison as a table for a notebook: a line for each way, and one for each temperature."""
    scale, ways = scale_of(found.soft), [(name, getattr(found, name)) for name in ("hard", "top_k", "soft")]
    rows: list[tuple[Any, ...]] = [("exact", "", "", exact_of(found, scale))]
    shares = [("unknown", "") if one.mass is None else (Share(_mean(one.mass)),) for _, one in ways]
    rows += [
        (name.replace("_", " "), *held, value_of(one, scale)) for (name, one), held in zip(ways, shares, strict=True)
    ]
    rows += [(f"soft, T {short(one.temperature)}", Share(one.weight), (one.value, scale)) for one in found.strip]
    return as_table(
        "One query, in every way", ("way", "weight", "", "answer"), rows, "At other temperatures: that of the heaviest."
    )


def answers_as_text(answers: Answers) -> str:
    """Many answers in one line: their number and kind, not their values."""
    kind = "" if answers.kind is None else f" of kind {answers.kind}"
    return f"<{' x '.join(map(str, answers.scored.shape))} answers{kind}; index them, or use their arrays>"


def as_dict(answer: Answer) -> dict[str, Any]:
    """An answer as plain Python."""
    found: dict[str, Any] = {"value": _plain(answer.value)}
    if answer.labels is not None:
        shares = zip(answer.labels, _plain(answer.value), strict=True)
        found = {"value": answer.label, "distribution": {str(label): share for label, share in shares}}
    if answer.texts is not None:
        texts = [{"text": text, "weight": weight} for text, weight in answer.texts]
        found = {"value": texts[0]["text"] if texts else None, "texts": texts, "embedding": found["value"]}
    facts = [one.name for one in fields(answer) if one.name not in _ELSEWHERE]
    facts.insert(facts.index("route"), "is_far")
    facts += ["known", "familiarity", "why_unknown", "promised"]
    for name in facts:
        found[name] = _plain(getattr(answer, name))
    found["contributors_are"] = None if answer.error_kind == "exact" else READ
    told = [{name: _plain(getattr(one, name)) for name in _CELLS} for one in answer.contributors]
    found["contributors"] = [{name: cell for name, cell in one.items() if cell is not None} for one in told]
    if answer.head_weights is not None:
        found["head_weights"] = _plain(answer.head_weights)
    return {name: value for name, value in found.items() if value is not None}


def as_json(plain: Any) -> str:
    """Plain Python as one line of JSON, with arrays as lists; NaN and infinity become null."""
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_finite(plain), ensure_ascii=False, allow_nan=False)


def _finite(plain: Any) -> Any:
    plain = _plain(plain)
    if isinstance(plain, dict):
        return {name: _finite(one) for name, one in plain.items()}
    if isinstance(plain, (list, tuple)):
        return [_finite(one) for one in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def as_frame(answers: list[Answer]) -> Any:
    """The contributors of answers as a DataFrame, with the number of the query that each was for."""
    try:
        pandas = import_module("pandas")  # untyped: nothing else here knows it
    except ImportError as error:
        raise MissingExtra("to_pandas", package="pandas", extra="pandas") from error
    rows = [
        [position, *(getattr(one, name) for name in _CELLS)]
        for position, answer in enumerate(answers)
        for one in answer.contributors
    ]
    return pandas.DataFrame(rows, columns=["query", *_CELLS])


def as_arrow(answers: Answers) -> Any:
    """Answers as a pyarrow.Table: a row for each query, with its contributors as a list; payloads are JSON."""
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise MissingExtra("to_arrow", package="pyarrow", extra="parquet") from error
    told = [answer.to_dict() for answer in answers]
    shown = [[_in_cells(one) for one in row["contributors"]] for row in told]
    kinds = {name: getattr(arrow, kind)() for name, kind in _TYPES.items()}

    def typed(cells: list[Any], kind: Any) -> Any:
        kind = arrow.infer_type(cells) if kind is None else kind
        several = any(isinstance(one, list) for one in cells)  # with heads, of each of them
        return arrow.list_(arrow.float64()) if several else arrow.float64() if kind == arrow.null() else kind

    columns = {"query": arrow.array(range(len(told)), arrow.int64())}
    for name in ("value", *(name for name in _TYPES if name not in _CELLS)):
        cells = [row.get(name) for row in told]
        columns[name] = arrow.array(cells, typed(cells, kinds.get(name)))
    if any("distribution" in row for row in told):
        shares = [list(row["distribution"].items()) for row in told]
        columns["distribution"] = arrow.array(shares, arrow.map_(arrow.string(), arrow.float64()))
    values = [one["value"] for some in shown for one in some]
    parts = arrow.struct({name: kinds[name] if name in kinds else typed(values, None) for name in _CELLS})
    columns["contributors"] = arrow.array(shown, arrow.list_(parts))
    return arrow.table(columns)


def _in_cells(contributor: dict[str, Any]) -> dict[str, Any]:
    payload = contributor.get("payload")
    return {"value": None, **contributor, "payload": None if payload is None else as_json(payload)}


def comparison_as_dict(found: Comparison) -> dict[str, Any]:
    """A comparison as plain Python."""
    exact = None if found.exact is None else {name: _plain(one) for name, one in found.exact._asdict().items()}
    ways = {name: getattr(found, name).to_dict() for name in ("hard", "top_k", "soft")}
    told = [{name: _plain(one) for name, one in warmth._asdict().items()} for warmth in found.strip]
    strip = [{name: one for name, one in warmth.items() if one is not None} for warmth in told]
    return {"exact": exact, **ways, "strip": strip}


def comparison_as_text(found: Comparison) -> str:
    """A comparison as a few lines: one for each way, one for each temperature."""
    scale = scale_of(found.soft)
    lines = [f"exact   {exact_of(found, scale)}"]
    for name in ("hard", "top_k", "soft"):
        answer = getattr(found, name)
        share = _mean(answer.mass)
        held = "an unknown share" if share is None else f"{share:6.1%}"
        held = f"{held} of the mass, effective {short(_mean(answer.effective))}{estimate_of(answer, ', error ')}"
        lines.append(f"{name.replace('_', ' '):7} {value_of(answer, scale)}   ({held})")
    for one in found.strip:
        told = estimate_of(one, "   error ")
        lines.append(f"  T {short(one.temperature):>9}  {bar(one.weight)}  {short(one.value, scale)}{told}")
    return "\n".join(lines)


def _mean(x: Any) -> Any:
    """The mean of numbers of heads; a single number as it is."""
    return x.mean().item() if getattr(x, "ndim", 0) else x


def _plain(x: Any) -> Any:
    """Arrays, tensors and their numbers as plain Python."""
    return x.tolist() if hasattr(x, "tolist") else x
