"""Twenty lines that serve lookups of one store: what somebody would write who has FastAPI and no `softkv serve`.

Run: python -m tests.benchmarks.plain_server PATH PORT
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import softkv


class Asked(BaseModel):
    """What is asked."""

    query: list[float]


def main(path: str, port: str) -> None:
    """Serve the store at this port; the threads of FastAPI ask one handle, which answers them together."""
    app, db = FastAPI(), softkv.open(path, "r")

    @app.post("/lookup")
    def lookup(asked: Asked) -> dict:
        return db.lookup(asked.query).to_dict()

    uvicorn.run(app, port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
