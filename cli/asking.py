"""Looking up by likeness: `query` and `compare`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from softkv.errors import InputError
from softkv.portrait import facts_of, name_of, number, short, value_of

from . import evaluating, labelled, options, output
from .wording import in_options

BRIEF = 24  # characters of a key beside those of three other ways
NEGLIGIBLE = 1e-6  # of a label: it is left out of a line of JSON
ARITHMETIC_COLUMNS = ("key", "score", "score/T", "exp", "sum", "weight")
CONTRIBUTOR_COLUMNS = ("query", "key", "weight", "score", "text", "value", "payload")
vector = click.option("--vector", type=options.numbers_of, metavar="X,Y,...", help="Ask with a vector, not a text.")
blended = click.option("-k", type=click.IntRange(min=1), help="Blend only the k heaviest items.")
plainly = click.option("--no-projection", is_flag=True, help="Compare as if the store had never learned to (`fit`).")
shown = click.option(
    "-n", "--show", type=click.IntRange(min=1), default=10, show_default=True, help="How many contributors to show."
)


@click.command(epilog=options.example('softkv query "a boy looking for treasure" --db films.softkv -n 3 --explain'))
@click.argument("text", required=False)
@options.database
@blended
@options.temperature
@shown
@options.compatibility
@click.option(
    "--tolerance",
    type=float,
    default=0.01,
    show_default=True,
    help="The error to allow, as a share of the value scale; 0 scans.",
)
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="How sure that is to be, where it is estimated."
)
@click.option("--guarantee", type=click.Choice(["bound"]), help="An error that always holds, whatever is asked.")
@options.where
@vector
@plainly
@click.option("--hard", is_flag=True, help="The best key takes all.")
@click.option("--explain", is_flag=True, help="Show the arithmetic: score, ÷ T, exp, ÷ sum.")
@options.model
@options.form
def query(
    text: str | None,
    path: str,
    k: int | None,
    temperature: float | None,
    show: int,
    compatibility: str | None,
    tolerance: float,
    confidence: float,
    guarantee: str | None,
    where: Any,
    vector: list[float] | None,
    no_projection: bool,
    hard: bool,
    explain: bool,
    model: str | None,
    form: str | None,
) -> int:
    """Look TEXT up softly: the average of all values, each weighted by how well its key compares.

    `-` reads one query from each line of stdin, and prints an answer for each: a line that cannot be asked is reported,
    and answered by an error (--json) or an empty line (--plain).
    """
    import softkv

    if hard and k is not None:
        raise click.UsageError("--hard is -k 1; give one of them")
    how: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "where": where}
    how["projection"] = not no_projection
    sure: dict[str, Any] = {"tolerance": tolerance, "confidence": confidence, "guarantee": guarantee}
    questions = Questions(text, vector, form)
    with softkv.open(path, "r", embedder=model) as db:
        for asked in questions:
            with questions.answering(asked):
                answer = db.nearest(asked, **how) if hard else db.lookup(asked, k=k, show=show, **sure, **how)
                _print_answer(asked, answer, form, explain=explain)
    return questions.failed


@click.command(epilog=options.example('softkv compare "a boy looking for treasure" --db films.softkv -k 2'))
@click.argument("text", required=False)
@options.database
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="How many items top-k blends.")
@options.temperature
@shown
@options.compatibility
@options.where
@click.option("--vector", metavar="X,Y,...", help="Ask with a vector, not a text; of FILE, the columns of vectors.")
@plainly
@click.option("--eval", "source", metavar="FILE", help="Measure all ways on queries whose answers are known.")
@click.option("--out-of-scope", metavar="FILE", help="Queries that no item answers, to be told from those of --eval.")
@click.option(
    "--plot", metavar="FILE", callback=evaluating.plot_to, help="Draw it: reliability, temperatures, abstention."
)
@labelled.options
@options.model
@options.progress_off
@options.form
def compare(
    text: str | None,
    path: str,
    k: int,
    temperature: float | None,
    show: int,
    compatibility: str | None,
    where: Any,
    vector: str | None,
    no_projection: bool,
    source: str | None,
    out_of_scope: str | None,
    plot: str | None,
    naming: labelled.Naming,
    model: str | None,
    no_progress: bool,
    form: str | None,
) -> int:
    """Look TEXT up in every way, side by side: exact, hard, top-k and full soft; then at other temperatures.

    With --eval, look up all queries of a file (as `add -i` reads them), and measure how good each way answers.
    """
    import softkv

    how: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "projection": not no_projection}
    if source is not None:
        if text is not None or where is not None:
            raise click.UsageError("--eval asks all items the queries of a file; leave out TEXT and --where")
        naming = labelled.with_vectors(naming, vector)
        more: dict[str, Any] = {
            "out_of_scope": out_of_scope,
            "plot": plot,
            "model": model,
            "quiet": no_progress,
            "form": form,
        }
        evaluating.evaluate(path, source, naming, k=k, **more, **how)
        return 0
    if out_of_scope or plot or naming.given:
        raise click.UsageError("--out-of-scope, --plot and columns are about a file of queries; name it with --eval")
    questions = Questions(text, None if vector is None else options.numbers_of(vector), form)
    with softkv.open(path, "r", embedder=model) as db:
        for asked in questions:
            with questions.answering(asked):
                _print_comparison(asked, db.compare(asked, k=k, show=show, where=where, **how), form)
    return questions.failed


class Questions:
    """What is asked: one text, one vector, or the lines of stdin, each of which gets an answer of its own."""

    def __init__(self, text: str | None, vector: list[float] | None, form: str | None) -> None:
        if (text is None) == (vector is None):
            raise click.UsageError("give a text to look up, or --vector; one of the two")
        self._one, self._form = vector if text is None else text, form
        self._line, self.failed = 0, 0

    def __iter__(self) -> Iterator[Any]:
        return output.lines_of_stdin() if self._one == "-" else iter([self._one])

    @contextmanager
    def answering(self, asked: Any) -> Iterator[None]:
        """Around the answer to one question: among many, one that cannot be asked does not silence the others."""
        self._line += 1
        try:
            yield
        except InputError as error:
            if self._one != "-":
                raise
            self.failed = 1
            output.say(f"stdin:{self._line}: {in_options(str(error))}")
            if output.resolved(self._form) == "json":
                output.print_json({"query": asked, "error": str(error)})
            elif self._form == "plain":
                click.echo()


def _print_answer(asked: Any, answer: Any, form: str | None, *, explain: bool) -> None:
    chosen = output.resolved(form)
    if chosen == "json":
        extra = {"arithmetic": _arithmetic(answer)} if explain else {}
        output.print_json({"query": asked, **_readable(answer.to_dict()), **extra})
    elif chosen == "csv" and explain:
        output.print_csv(_arithmetic(answer), ARITHMETIC_COLUMNS)
    elif chosen == "csv":
        records = [{"query": asked, **one} for one in answer.to_dict()["contributors"]]
        output.print_csv(records, CONTRIBUTOR_COLUMNS)
    elif chosen == "plain":
        output.echo(output.plain_text(_bare(answer)))
    else:
        output.show(_title(value_of(answer)), _contributors(answer), facts_of(answer))
        if explain:
            output.show("", _explained(answer))


def _readable(plain: dict[str, Any]) -> dict[str, Any]:
    """An answer without what nobody reads: the mean embedding of texts, and labels that have no weight."""
    plain.pop("embedding", None)
    if "distribution" in plain:
        shares = sorted(plain["distribution"].items(), key=lambda pair: -pair[1])
        plain["distribution"] = {label: share for label, share in shares if share >= NEGLIGIBLE}
    return plain


def _bare(answer: Any) -> Any:
    """The value of an answer with nothing around it."""
    texts = answer.texts
    return texts[0].text if texts else answer.label if answer.labels is not None else _listed(answer.value)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _title(text: str) -> Any:
    from rich.text import Text

    return Text(text, style="bold")


def _contributors(answer: Any) -> Any:
    carried = any(one.payload is not None for one in answer.contributors)
    table = output.new_table("weight", "", "key", "value", *(["payload"] if carried else []), whole=("weight", ""))
    for one in answer.contributors:
        value = None if isinstance(one.value, str) and one.value == one.key else one.value
        cells = map(output.in_table, (value, one.payload) if carried else (value,))
        table.add_row(output.share(one.weight), f"{one.weight:.1%}", name_of(one), *cells)
    return table


def _arithmetic(answer: Any) -> list[dict[str, Any]]:
    """Each weight from its score, step by step. Exponentials are relative to the best, which has 1: none overflows."""
    import math

    if answer.head_weights is not None or not answer.contributors:
        raise InputError("there are no scores to explain: nothing was shown, or several heads were asked")
    best = answer.contributors[0].score / answer.temperature
    total = math.exp(answer.log_mass - best)
    steps = []
    for one in answer.contributors:
        logit = one.score / answer.temperature
        step = {"key": name_of(one), "score": one.score, "score/T": logit, "exp": math.exp(logit - best)}
        steps.append({**step, "sum": total, "weight": step["exp"] / total})
    rest = max(0.0, total - sum(step["exp"] for step in steps))
    # Top-k blends some of the rows, but a weight is a share of all, of which it does not say how many they are.
    if answer.scored > len(steps) or answer.mass < 1:
        others = "(all others)" if answer.mass < 1 else f"({answer.scored - len(steps):,} others)"
        steps.append({"key": others, "score": None, "score/T": None, "exp": rest, "sum": total, "weight": rest / total})
    return steps


def _explained(answer: Any) -> Any:
    steps = _arithmetic(answer)
    table = output.new_table(
        "key", "score", f"÷ T = {number(answer.temperature)}", "exp(… − best)", "÷ sum", "= weight"
    )
    for step in steps:
        numbers = [step[name] for name in ("score", "score/T", "exp", "sum")]
        table.add_row(step["key"], *("" if x is None else f"{x:.4f}" for x in numbers), f"{step['weight']:.4f}")
    return table


def _print_comparison(asked: Any, found: Any, form: str | None) -> None:
    chosen = output.resolved(form)
    if chosen == "json":
        plain = found.to_dict()
        ways = {way: _readable(plain[way]) for way in ("hard", "top_k", "soft")}
        output.print_json({"query": asked, **plain, **ways})
    elif chosen == "table":
        output.show(_ways(found), _strip(found))
    else:
        records = [{"way": way, "value": _way_value(found, way)} for way in ("exact", "hard", "top_k", "soft")]
        output.print_records(records, ("way", "value"), chosen, plain="value")


def _way_value(found: Any, way: str) -> Any:
    if way == "exact":
        return None if found.exact is None else _listed(found.exact.value)
    return _bare(getattr(found, way))


def _ways(found: Any) -> Any:
    """The four ways as columns: the value, who it is made of, and how much of the mass that is."""
    from rich.text import Text

    ways = (found.hard, found.top_k, found.soft)
    exact = "no such key" if found.exact is None else short(found.exact.value)
    table = output.new_table("", "exact", "hard", f"top {found.top_k.scored}", "full soft")
    table.add_row("value", Text(exact), *(Text(value_of(way)) for way in ways))
    made_of = ("\n".join(f"{one.weight:6.1%} {_brief(name_of(one))}" for one in way.contributors[:5]) for way in ways)
    table.add_row("weights", "", *map(Text, made_of))
    table.add_row("effective", "", *(number(way.effective) for way in ways))
    table.add_row("of the mass", "", *(f"{way.mass:.1%}" for way in ways))
    return table


def _brief(name: str) -> str:
    return name if len(name) <= BRIEF else name[: BRIEF - 1] + "…"


def _strip(found: Any) -> Any:
    """The same query from cold, where the best key takes all, to warm, where all count alike."""
    columns = ("temperature", "weight of the best", "", "effective")
    table = output.new_table(*columns, "value", whole=columns)
    for one in found.strip:
        usual = " (usual)" if one.temperature == found.soft.temperature else ""
        weight = (output.share(one.weight), f"{one.weight:.1%}")
        table.add_row(number(one.temperature) + usual, *weight, number(one.effective), output.in_table(one.value))
    return table
