"""Embedding models: `models list`, `models fingerprint`, `models distil`, `models onnx`."""

from dataclasses import asdict

import click

from . import options, output

COLUMNS = ("name", "origin", "width", "extra")


@click.group(invoke_without_command=True, epilog=options.example("softkv models"))
@click.pass_context
def models(context: click.Context) -> None:
    """List the models that turn texts into vectors, compare fingerprints, distil or convert one.

    Any folder or name of a sentence-transformers model can be given to --model as well.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@models.command("list", epilog=options.example("softkv models list"))
@options.form
def list_(form: str | None) -> None:
    """List the models that are here; `extra`, where there is one, is what has to be installed first."""
    from softkv.embedders import names

    output.print_records([asdict(one) for one in names()], COLUMNS, form, plain="name")


@models.command(epilog=options.example("softkv models fingerprint static"))
@click.argument("name")
def fingerprint(name: str) -> None:
    """Print what a store would remember of this model, as JSON: equal behaviour, equal numbers (but for rounding)."""
    from softkv.embedders import Identity, find

    output.print_json(Identity.of(find(name)).to_json())


@models.command(epilog=options.example("softkv models distil all-MiniLM-L6-v2 ./small --width 64"))
@click.argument("source")
@click.argument("folder")
@click.option("--width", type=click.IntRange(min=1), default=256, show_default=True, help="Numbers in a vector.")
@options.progress_off
def distil(source: str, folder: str, width: int, no_progress: bool) -> None:
    """Make a small, fast model, like the bundled one, from a model of sentence-transformers, and write it to FOLDER."""
    from softkv.embedders.distillation import distil as distilled

    with output.progress("distilling", quiet=no_progress) as moved:
        made = distilled(source, folder, width=width, progress=moved)
    output.say(f"distilled {source} into {folder}, {made.width} wide; use it with --model {folder}")


@models.command(epilog=options.example("softkv models onnx all-MiniLM-L6-v2 ./minilm"))
@click.argument("source")
@click.argument("folder")
def onnx(source: str, folder: str) -> None:
    """Write a model of sentence-transformers as ONNX to FOLDER, from where it runs without torch, and starts sooner."""
    from softkv.embedders.onnx import write

    made = write(source, folder)
    output.say(f"wrote {source} as ONNX into {folder}, {made.width} wide; use it with --model {folder}")
