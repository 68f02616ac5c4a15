"""`demo`: print the worked examples, one after the other."""

import os
import shutil

import click

from . import output

CODE = ("    >>>", "    ...")
NARROWEST, WIDEST = 60, 96  # columns of prose
INTRODUCTION = (
    "{count} worked examples of a soft lookup. Lines with >>> are Python; what stands below them is what they printed "
    "just now, on this machine. One alone: softkv demo {name}"
)


@click.command(epilog="Example: softkv demo incomes")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="Only list the examples.")
@click.option("--page", "as_page", is_flag=True, help="Show them as a tour in a browser.")
@click.option("-o", "--output", "file", metavar="FILE", help="With --page: only write FILE, such as demo.html.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def demo(names: tuple[str, ...], only_list: bool, as_page: bool, file: str | None, force: bool) -> None:
    """Show what a soft lookup is, by worked examples: all of them, or those named."""
    from softkv_examples import tell, titles

    known = titles()
    if only_list:
        listed = [{"name": name, "title": title} for name, title in known.items()]
        output.print_records(listed, ("name", "title"), None, plain="name")
        return
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no example {name!r}; there are {', '.join(known)}")
    if as_page or file is not None:
        _show(names, file, force=force)
        return
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns - 1))
    if not names:
        _print(click.wrap_text(INTRODUCTION.format(count=len(known), name=next(iter(known))), width))
        click.echo()
    for number, name in enumerate(names or known):
        if number:
            click.echo("\n")
        for position, line in enumerate(tell(name, width=width)):
            _print(line, bold=position < 2)


def _show(names: tuple[str, ...], file: str | None, *, force: bool) -> None:
    """The examples as a tour: in the browser, or only written."""
    import tempfile

    from softkv_examples.tour import content

    from softkv.page import write

    # Subtle: the folder stays, since a browser may read the file long after this process has ended.
    place = file or os.path.join(tempfile.mkdtemp(prefix="softkv-"), "demo.html")
    write(content(names), place, store=None, force=force)
    output.say(f"wrote {place}: the examples as a tour; open it in a browser")
    if file is None:
        import webbrowser

        webbrowser.open(f"file://{place}")


def _print(line: str, *, bold: bool = False) -> None:
    """A line of a tale; on a terminal its heading stands out, and so does its code."""
    if bold:
        line = click.style(line, bold=True)
    elif line.startswith(CODE):
        line = click.style(line, fg="cyan")
    click.echo(line, color=False if os.environ.get("NO_COLOR") else None)
