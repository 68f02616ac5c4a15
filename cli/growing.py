"""`softkv cluster grow`: more shards, among which the buckets of a cluster are divided."""

import click

from . import options, output


@click.command(epilog=options.example("softkv cluster grow films --shards 16"))
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
    from softkv.doors import cluster

    with output.stages("dividing", quiet=no_progress) as moved:
        grown = cluster.grow(directory, shards, disks, force=force, wait=wait, progress=moved)
    output.say(f"{directory} has {grown.shards} shards; {grown.moved:,} items are in another than before")
    if grown.renamed:
        output.say(
            f"{grown.renamed:,} of them have no key, and so another name: their numbers are those of their shards"
        )
    for path in grown.left:
        output.say(f"{path} is still read; it is removed when the cluster is next written to")
