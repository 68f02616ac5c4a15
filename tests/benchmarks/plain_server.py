"""Twenty lines that serve lookups of one store: what somebody would write who has FastAPI and no `softkv serve`.

Run: python -m tests.benchmarks.plain_server PATH PORT
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import softkv

app = FastAPI()
db = softkv.open(sys.argv[1], "r")


class Asked(BaseModel):
    """What is asked."""

    query: list[float]


@app.post("/lookup")
def lookup(asked: Asked) -> dict:  # by the threads of FastAPI, which the handle answers together
    """Look a vector up."""
    return db.lookup(asked.query).to_dict()


uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
