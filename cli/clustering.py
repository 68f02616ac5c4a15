"""Clusters of stores: `cluster create`, `status`, `grow`, `check`, `backup` and `restore`.

All other commands take the directory of a cluster as they take a store.
"""

from dataclasses import asdict
from typing import Any

import click

from softkv.kinds import ValueKind

from . import options, output, raying, upkeep

COLUMNS = ("path", "buckets", "items", "commit", "bytes_on_disk", "index")


@click.group(epilog=options.example("softkv cluster create films --shards 3"))
def cluster() -> None:
    """Make and look at clusters: several stores that all other commands take for one."""


@cluster.command(epilog=options.example("softkv cluster create films --shards 3"))
@click.argument("directory")
@click.option("--shards", type=click.IntRange(1, 256), default=8, show_default=True, help="How many stores.")
@options.disks
@click.option("--kind", "--value", "value", type=click.Choice([kind.value for kind in ValueKind]), help="Of values.")
@options.compatibility
@options.temperature
@options.force
def create(directory: str, shards: int, disks: tuple[str, ...], **wishes: Any) -> None:
    """Make a cluster of empty stores in DIRECTORY, where nothing is yet."""
    from softkv.doors import cluster as clusters

    clusters.create(directory, shards, disks, **wishes)
    output.say(f"made {directory}, of {shards} shards")


@cluster.command(epilog=options.example("softkv cluster status films"))
@click.argument("directory")
@options.form
def status(directory: str, form: str | None) -> None:
    """Say of each shard where it is, what it holds, and why it does not answer if it does not."""
    from softkv.doors import cluster as clusters

    found = clusters.status(directory)
    if output.resolved(form) == "json":
        output.print_json(asdict(found))
        return
    output.print_records(map(asdict, found.shards), COLUMNS, form, plain="path")
    for one in found.shards:
        if not one.reachable:
            output.say(f"{one.path} does not answer: {one.why}")


def _by_paths(command: click.Command, example: str, **paths: str) -> click.Command:
    """A command of upkeep, with those of its parameters that are paths as arguments."""
    others = [one for one in command.params if one.name not in paths]
    arguments = [click.Argument([name], metavar=shown) for name, shown in paths.items()]
    shown = options.example(f"softkv cluster {command.name} {example}")
    told = f"What `softkv {command.name}` does, of a cluster."
    return click.Command(command.name, params=[*arguments, *others], callback=command.callback, help=told, epilog=shown)


@cluster.command(epilog=options.example("softkv cluster grow films --shards 16"))
@click.argument("directory")
@click.option(
    "--shards", type=click.IntRange(1, 256), default=16, show_default=True, help="How many the cluster is to have."
)
@options.disks
@options.force
@options.wait
@options.progress_off
def grow(directory: str, shards: int, disks: tuple[str, ...], force: bool, wait: float, no_progress: bool) -> None:
    """Divide the shards of a cluster until there are so many. Readers are not disturbed.

    Needs room for two copies of the largest shard. Interrupted, it goes on where it stopped, with the same disks.
    """
    from softkv.doors import cluster as clusters

    with output.stages("dividing", quiet=no_progress) as moved:
        grown = clusters.grow(directory, shards, disks, force=force, wait=wait, progress=moved)
    output.say(f"{directory} has {grown.shards} shards; {grown.moved:,} items are in another than before")
    if grown.renamed:
        output.say(
            f"{grown.renamed:,} of them have no key, and so another name: their numbers are those of their shards"
        )
    for path in grown.left:
        output.say(f"{path} is still read; it is removed when the cluster is next written to")


cluster.add_command(_by_paths(upkeep.check, "films", path="DIRECTORY"))
cluster.add_command(_by_paths(upkeep.backup, "films films.backup", path="DIRECTORY", directory="TO"))
cluster.add_command(_by_paths(upkeep.restore, "films.backup films.again", directory="BACKUP", path="TO"))
for held in (raying.start, raying.stop, raying.processes):
    cluster.add_command(held)
