"""Looking up by likeness: `query` and `compare`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial as applied
from typing import Any

import click

from softkv.errors import InputError
from softkv.portrait import facts_of, name_of, number, scale_of, value_of

from . import comparison, evaluating, labelled, options, output, served
from .wording import in_options

TOGETHER = 256  # questions of stdin
UNKNOWN = 3  # the exit code where a query is not known
NO_GUARD = "`--known` needs a guard, and this store has none: `softkv guard` makes one."
NEGLIGIBLE = 1e-6  # labels with a smaller share are left out of JSON
ARITHMETIC_COLUMNS = ("query", "answer", "key", "score", "score/T", "exp", "sum", "weight", "refused")
CONTRIBUTOR_COLUMNS = ("query", "answer", "known", "key", "weight", "score", "text", "value", "payload", "refused")
vector = click.option(
    "--vector", metavar="X,Y,...", help="Ask with a vector, not a text; `-` reads one from each line of stdin."
)
blended = click.option("-k", type=click.IntRange(min=1), help="Blend only the k heaviest items.")
plainly = click.option("--no-projection", is_flag=True, help="Compare as if the store had never learned to (`fit`).")
shown = click.option(
    "-n", "--show", type=click.IntRange(min=1), default=10, show_default=True, help="How many contributors to show."
)
allowed = click.option(
    "--tolerance",
    type=float,
    default=0.01,
    show_default=True,
    help="The error to allow, as a share of the value scale; 0 scans.",
)
sure = click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="How sure that is to be, where it is estimated."
)


@click.command(epilog=options.example('softkv query "a boy looking for treasure" --db films.softkv -n 3 --explain'))
@options.one_text
@options.database
@blended
@options.temperature
@shown
@options.compatibility
@allowed
@sure
@click.option("--guarantee", type=click.Choice(["bound"]), help="An error that always holds, whatever is asked.")
@options.where
@vector
@plainly
@click.option("--hard", is_flag=True, help="The best key takes all.")
@click.option("--explain", is_flag=True, help="Show the arithmetic: score, ÷ T, exp, ÷ sum.")
@click.option("--partial", is_flag=True, help="Where shards of a cluster do not answer, estimate from the others.")
@click.option("--known", is_flag=True, help="Exit with 3 where a query is not known (without `softkv guard`: is far).")
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
    vector: str | None,
    no_projection: bool,
    hard: bool,
    explain: bool,
    partial: bool,
    known: bool,
    model: str | None,
    form: str | None,
) -> int:
    """Look TEXT up softly: the average of all values, each weighted by how well its key compares.

    `-` reads one query from each line of stdin, and prints an answer for each: a line that cannot be asked is reported,
    and answered by an error (--json), why it was refused (--csv) or an empty line (--plain). So does `--vector -`, for
    lines of numbers between commas.
    """
    contradicting = options.given("k", "show", "confidence", "guarantee", "partial") if hard else []
    if contradicting:
        raise click.UsageError(f"--hard is -k 1, and names that one item; leave out {', '.join(contradicting)}")
    how: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "where": where}
    how["projection"] = not no_projection
    sure: dict[str, Any] = {"tolerance": tolerance, "confidence": confidence, "guarantee": guarantee}
    sure |= {"partial": True} if partial else {}
    if hard and options.given("tolerance"):  # without one, the best key is looked for among all
        how["tolerance"] = tolerance
    questions = Questions(text, vector, form, ARITHMETIC_COLUMNS if explain else CONTRIBUTOR_COLUMNS, known=known)
    if model is None and not questions.many:
        wanted = {"query": questions.one, **how, **({} if hard else {"k": k, "show": show, **sure})}
        if (told := served.asked(path, "nearest" if hard else "lookup", wanted)) is not None:
            with questions.answering(questions.one):
                questions.judge(served.Told(told))
                _print_answer(questions, served.Told(told), show, explain=explain)
            return questions.failed
    import softkv

    with softkv.open(path, "r", embedder=model) as db:
        ask = applied(db.nearest, **how) if hard else applied(db.lookup, k=k, show=show, **sure, **how)
        for asked, answered in questions.answered_by(ask):
            with questions.answering(asked):
                answer = answered()
                questions.judge(answer)
                _print_answer(questions, answer, show, explain=explain)
                if questions.form != "table":  # a table says it in its last line
                    questions.hint_at_scan(answer, db)
    return questions.failed


@click.command(epilog=options.example('softkv compare "a boy looking for treasure" --db films.softkv -k 2'))
@options.one_text
@options.database
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="How many items top-k blends.")
@options.temperature
@shown
@options.compatibility
@allowed
@sure
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
    tolerance: float,
    confidence: float,
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
    """Look TEXT up side by side: exact, hard, top-k and full soft; then at other temperatures.

    With --eval, look up all queries of a file (as `add -i` reads them), and measure how good each way answers.
    """
    import softkv

    how: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "projection": not no_projection}
    if source is not None:
        if text is not None or where is not None:
            raise click.UsageError("--eval asks all items the queries of a file; leave out TEXT and --where")
        if options.given("show"):
            raise click.UsageError("--eval names no contributors; leave out -n/--show")
        if estimated := options.given("tolerance", "confidence"):
            raise click.UsageError(f"--eval allows the usual error; leave out {', '.join(estimated)}")
        naming = replace(naming, vector=labelled.names_of(vector))
        evaluating.evaluate(
            path, source, naming, out_of_scope, plot=plot, model=model, quiet=no_progress, form=form, k=k, **how
        )
        return 0
    if out_of_scope or plot or naming.given:
        raise click.UsageError("--out-of-scope, --plot and columns are about a file of queries; name it with --eval")
    questions = Questions(text, vector, form, comparison.COLUMNS)
    how |= {"where": where, "tolerance": tolerance, "confidence": confidence}
    with softkv.open(path, "r", embedder=model) as db:
        for asked in questions:
            with questions.answering(asked):
                found = db.compare(questions.read(asked), k=k, show=show, **how)
                _print_comparison(questions, found, show)
                for answer in (found.soft, found.top_k, found.hard):
                    questions.hint_at_scan(answer, db)
    return questions.failed


class Questions:
    """The questions: one text, one vector, or the lines of stdin, each of which gets an answer of its own."""

    def __init__(
        self, text: str | None, vector: str | None, form: str | None, columns: Sequence[str], *, known: bool = False
    ) -> None:
        if (text is None) == (vector is None):
            raise click.UsageError("give a text to look up, or --vector; one of the two")
        self._vectors, self.many = vector == "-", "-" in (text, vector)
        self.one = text if vector is None or self._vectors else options.numbers_of(vector)
        self.form, self._columns = output.resolved(form), columns
        self._line, self.failed, self._headed, self._hinted = 0, 0, False, False
        self._named: dict[str, Any] = {}
        self._known, self._promised = known, True

    def judge(self, answer: Any) -> None:
        """Note an answer that is not known, if --known asks for it; an error if that cannot be decided.

        Without a guard, a query far from all items counts as not known; a message says that this promises nothing.
        """
        if not self._known or answer.known:
            return
        if answer.known is None and (answer.why_unknown or answer.is_far is None):
            raise InputError(answer.why_unknown or NO_GUARD)
        if answer.known is None and self._promised:
            self._promised = False
            output.say(f"{NO_GUARD} Until then a query is not known if it is far from all items; nothing is promised.")
        if answer.known is not None or answer.is_far:
            self.failed = self.failed or UNKNOWN

    def __iter__(self) -> Iterator[Any]:
        return output.lines_of_stdin() if self.many else iter([self.one])

    def read(self, asked: Any) -> Any:
        """The query of a question: its text, or the vectors in a line or in several."""
        if not self._vectors:
            return asked
        try:
            return list(map(self.read, asked)) if isinstance(asked, list) else options.numbers_of(asked)
        except click.BadParameter as error:
            raise InputError(error.message) from None

    def answered_by(self, ask: Callable[[Any], Any]) -> Iterator[tuple[Any, Callable[[], Any]]]:
        """Each question, with a function that returns its answer or raises; lines at hand are asked together."""
        for some in output.lines_at_hand(TOGETHER) if self.many else [[self.one]]:
            yield from zip(some, _answers(some, lambda asked: ask(self.read(asked))), strict=True)

    @contextmanager
    def answering(self, asked: Any) -> Iterator[None]:
        """Around the answer to one question: among many, an error is reported and the others go on."""
        self._line += 1
        self._named = {"query": asked} if isinstance(asked, str) else {}  # a vector would be long
        self._named |= {"query": self._line} if self._vectors else {}
        try:
            yield
        except InputError as error:
            if not self.many:
                raise
            self.failed = 1
            output.say(f"stdin:{self._line}: {in_options(str(error))}")
            if self.form == "json":
                self.print_json({"error": str(error)})
            elif self.form == "csv":
                self.print_csv([{"refused": str(error)}])
            elif self.form == "plain":
                click.echo()

    def hint_at_scan(self, answer: Any, db: Any) -> None:
        """Say once on a terminal why so many numbers were read."""
        if self._hinted or answer.route != "scan" or not answer.reason or not sys.stderr.isatty():
            return
        from softkv.asking.route import LARGE

        self._hinted = True
        if answer.rows_read * (db.info().key_width or 0) > LARGE:
            output.say(f"hint: all {answer.rows_read:,} rows were read: {answer.reason}")

    def print_json(self, answer: dict[str, Any]) -> None:
        """The answer to the present question, in a line that names it."""
        output.print_json({**self._named, **answer})

    def print_csv(self, records: Iterable[output.Printed]) -> None:
        """The answer to the present question, in lines that name it below one header for all questions."""
        output.print_csv(({**self._named, **one} for one in records), self._columns, header=not self._headed)
        self._headed = True


def _answers(some: list[Any], ask: Callable[[Any], Any]) -> list[Callable[[], Any]]:
    """For each of some questions a function that returns its answer, or raises its error when its turn comes."""
    if len(some) < 2:
        return [applied(ask, one) for one in some]
    try:
        return [applied(_given, answer) for answer in ask(some)]
    except InputError:
        middle = len(some) // 2
        return _answers(some[:middle], ask) + _answers(some[middle:], ask)


def _given(answer: Any) -> Any:
    return answer


def _print_answer(questions: Questions, answer: Any, show: int, *, explain: bool) -> None:
    if questions.form == "json":
        extra = {"arithmetic": _arithmetic(answer)} if explain else {}
        questions.print_json({**_readable(answer.to_dict(), show), **extra})
    elif questions.form == "csv":
        value = comparison.bare(answer)
        lines = _arithmetic(answer) if explain else answer.to_dict()["contributors"]
        questions.print_csv({"answer": value, "known": answer.known, **one} for one in lines)
    elif questions.form == "plain":
        output.echo(output.plain_text(comparison.bare(answer)))
    else:
        from rich.text import Text

        output.show(Text(value_of(answer), style="bold"), _contributors(answer), facts_of(answer))
        if explain:
            output.show("", _explained(answer))


def _print_comparison(questions: Questions, found: Any, show: int) -> None:
    if questions.form == "json":
        plain = found.to_dict()
        questions.print_json({**plain, **{way: _readable(plain[way], show) for way in ("hard", "top_k", "soft")}})
    elif questions.form == "csv":
        questions.print_csv(comparison.values(found))
    elif questions.form == "plain":
        for one in comparison.values(found):
            output.echo(output.plain_text(one["value"]))
    else:
        comparison.show(found)


def _readable(plain: dict[str, Any], show: int) -> dict[str, Any]:
    """An answer without the mean embedding of texts, and with only the labels of the most weight."""
    plain.pop("embedding", None)
    if "distribution" in plain:
        shares = sorted(plain["distribution"].items(), key=lambda pair: -pair[1])
        plain["distribution"] = {label: share for label, share in shares[:show] if share >= NEGLIGIBLE}
        plain["other"] = sum(share for label, share in shares if label not in plain["distribution"])
    return plain


def _contributors(answer: Any) -> Any:
    carried, scale = any(one.payload is not None for one in answer.contributors), scale_of(answer)
    table = output.new_table("weight", "", "key", "value", *(["payload"] if carried else []), whole=("",))
    for one in answer.contributors:
        value = None if isinstance(one.value, str) and one.value == one.key else one.value
        cells = [output.in_table(value, scale), *([output.in_table(one.payload)] if carried else [])]
        table.add_row(f"{one.weight:.1%}", output.share(one.weight), name_of(one), *cells)
    return table


def _arithmetic(answer: Any) -> list[dict[str, Any]]:
    """Each weight from its score, step by step. Exponentials are relative to the best, which has 1: none overflows."""
    import math

    if answer.head_weights is not None or not answer.contributors:
        raise InputError("there are no scores to explain: nothing was shown, or several heads were asked")
    best = answer.contributors[0].score / answer.temperature
    total = 1 / answer.contributors[0].weight if answer.log_mass is None else math.exp(answer.log_mass - best)
    held = 1 if answer.mass is None else answer.mass
    steps = []
    for one in answer.contributors:
        logit = one.score / answer.temperature
        step = {"key": name_of(one), "score": one.score, "score/T": logit, "exp": math.exp(logit - best)}
        steps.append({**step, "sum": total, "weight": step["exp"] / total})
    rest = max(0.0, total - sum(step["exp"] for step in steps))
    # With -k some rows are blended, but weights are shares of all, whose number the answer does not have.
    if answer.scored > len(steps) or held < 1:
        others = "(all others)" if held < 1 else f"({answer.scored - len(steps):,} others)"
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
