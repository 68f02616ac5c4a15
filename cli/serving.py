"""`softkv serve`: stores for several processes, languages and machines, over HTTP. `softkv mcp`: memory for agents."""

import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from softkv.errors import MissingExtra

from . import options, output

IDLE = options.Seconds(min=0, min_open=True)


@click.command(epilog=options.example("softkv serve films.softkv"))
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=7411, show_default=True, help="0 takes a free one.")
@click.option("--token-file", metavar="FILE", help="Tokens that may do all, one a line; otherwise one is made.")
@click.option("--reader-token-file", metavar="FILE", help="Tokens that may only read.")
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="A name that clients call it by.")
@click.option("--tls-cert", metavar="FILE", help="The certificate, for https.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--behind-proxy", metavar="ADDRESS", help="The proxy that does https and alone may ask.")
@click.option("--read-only", is_flag=True, help="Write nothing; others may write beside it.")
@click.option("--backups", metavar="DIR", help="Where clients may have backups made.")
@click.option("--model", metavar="NAME", help="What clients may have the texts embedded with anew.")
@click.option("--idle-end", type=IDLE, metavar="SECONDS", help="End when nothing was asked for so long.")
@options.wait
@click.option("--quiet", is_flag=True, help="No line for each request.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser; it asks for the token.")
def serve(paths: tuple[str, ...], opens: bool, quiet: bool, **settings: Any) -> None:
    """Serve stores over HTTP, until Ctrl-C.

    Other processes read and write the stores through this server. Each store is named after its directory, without
    `.softkv`. The token is printed after the # of the URL.
    """
    try:
        from softkv.doors.server import running
    except ModuleNotFoundError as error:
        raise MissingExtra("softkv serve", package=error.name or "uvicorn", extra="serve") from error

    def began(url: str, names: Sequence[str]) -> None:
        import logging

        lines = logging.StreamHandler()
        lines.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger("softkv.doors.server").addHandler(lines)
        logging.getLogger("softkv.doors.server").setLevel(logging.ERROR if quiet else logging.INFO)
        click.echo(url)
        output.say(f"serving {', '.join(names)}; Ctrl-C ends it")
        if opens:
            output.say("the page asks for a token: what stands behind the # of the URL, or one of --token-file")
            import webbrowser

            webbrowser.open(url.partition("#")[0])  # Subtle: others can read the arguments of a process

    running.serve(paths, running.Settings(**settings), began)


@click.command(epilog=options.example("softkv mcp --db memories.softkv"))
@options.database
@click.option(
    "--idle-end",
    type=IDLE,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="A server that is started here ends when nothing was asked for so long.",
)
def mcp(path: str, idle_end: float) -> None:
    """Be the memory of an agent: answer by the Model Context Protocol on stdin and stdout.

    Several clients may use one store: they go through its server, which is started if there is none. `--db` is a path,
    at which a store is made if there is none, or the URL of a store that is served.
    """
    try:
        from softkv.doors.mcp import tools
    except ModuleNotFoundError as error:
        raise MissingExtra("softkv mcp", package=(error.name or "mcp").partition(".")[0], extra="mcp") from error

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Subtle: a thread that waits for stdin would hold up an orderly end
    serving = [sys.executable, "-m", "softkv_cli", "serve", "--port", "0", "--quiet", "--idle-end", str(idle_end)]
    if sys.stdin.isatty():
        output.say("this is for clients of the Model Context Protocol, which start it themselves; Ctrl-C ends it")
    tools.run(path, serving)
