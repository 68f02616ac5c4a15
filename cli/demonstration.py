"""`demo`: the worked examples, told one after the other."""

import click

from . import output


@click.command(epilog="Example: softkv demo incomes")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="Only list the examples.")
def demo(names: tuple[str, ...], only_list: bool) -> None:
    """Show what a soft lookup is, by worked examples: all of them, or those named."""
    from softkv_examples import tell, titles

    known = titles()
    if only_list:
        output.print_records(
            [{"name": name, "title": title} for name, title in known.items()], ("name", "title"), None, plain="name"
        )
        return
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no example {name!r}; there are {', '.join(known)}")
    for name in names or known:
        for line in tell(name):
            click.echo(line)
