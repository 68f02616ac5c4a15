"""Clusters whose shards actors of Ray hold: `cluster start`, `cluster stop` and `cluster processes`.

They are commands of the group `cluster` (clustering.py).
"""

import click

from . import options, output

_address = click.option("--address", help="Where Ray is; otherwise on this machine, where it is started if need be.")


@click.command(epilog=options.example("softkv cluster start films"))
@click.argument("directory")
@_address
def start(directory: str, address: str | None) -> None:
    """Start a process for each shard of the cluster in DIRECTORY, which stays until `cluster stop`."""
    from softkv.doors.cluster import actors

    found = actors.start(directory, address)
    output.say(f"{len(found)} shards are held; open ray:{directory}")


@click.command(epilog=options.example("softkv cluster stop films"))
@click.argument("directory")
@_address
def stop(directory: str, address: str | None) -> None:
    """End the processes of the shards, once they have written all they were sent; Ray goes on (`ray stop` ends it)."""
    from softkv.doors.cluster import actors

    actors.stop(directory, address)
    output.say(f"nobody holds the shards of {directory} any more")


@click.command(epilog=options.example("softkv cluster processes films"))
@click.argument("directory")
@_address
def processes(directory: str, address: str | None) -> None:
    """Print the process of each shard, one a line; one that does not answer has none."""
    import softkv
    from softkv.doors.cluster import actors

    with softkv.open(f"ray:{directory}", "r", address=address) as db:
        for number, process in enumerate(actors.processes(db)):
            click.echo(f"shard {number}: {process or 'does not answer'}")
