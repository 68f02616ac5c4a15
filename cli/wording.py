"""Rewrite messages of the library for the command, which has options instead of arguments.

The library says "use kind='label'"; for a command that is "--kind label". What stands in quotes in a message, and the
paths that the command was given, are not the library's words and stay as they are.
"""

import os
import re
import sys
from collections.abc import Callable
from operator import methodcaller

NUMBER = re.compile(r"\W*\d[\d.,]*(e[+-]?\d+)?\W*")  # a word that is shown whole or not at all
# Arguments whose options have their names; those that are no words of prose are known without "=" too.
ARGUMENTS = "backend|collection|compatibility|encoding|format|key|kind|payload|skip|text|tolerance|values?|vector"
BARE = "out_of_scope|skip_bad|strangers_at_most|wrong_at_most"
VALUE = r"(?:'[\w-]+'(?: or '\w+')?|\d+)?(?=[\s,;:?)]|\.?$|\.\s)"
# Phrases of the library, of which {} is a word or a number that may stand in quotes, and what the command says instead.
PHRASES = (
    ("Make one by opening it with mode 'c'.", "`softkv add` makes one; --db or SOFTKV_DB names another."),
    ("Make a store there by opening it with mode 'c'.", "`softkv add` makes one there."),
    ("Close it there, have it waited for with wait=SECONDS, or open with mode 'r'.",
     "Wait until it is done, as --wait SECONDS does; reading works meanwhile."),
    ("can only be read (mode 'r').", "can only be read: `query`, `list` and the like work."),
    ("or open with force=True if", "or use the library with force=True if"),
    ("or replace it with force=True", "or overwrite it with --force"),
    ("on_conflict={}", "--{}"),
    ("Ask with a vector of width {}",
     "Ask with --vector, {} numbers between commas (`--vector -` reads lines of them)"),
    ("Give vectors of width {}: add(keys, values, vectors=...)", "Give --vector, {} numbers"),
    ("Give vectors=,", "Give --vector,"),
    ("or give vectors=.", "or give --vector."),
    ("open the store with embedder= and the model", "name with --model the one"),
    ("For the single best row ask for k=1; for the plain mean use",
     "For the best key alone use --hard; for the plain mean"),
    ("For the best key alone, ask `nearest`", "For the best key alone use --hard"),
    ("Open it without value=, or make another store.", "Leave out --kind, or name another store with --db."),
    ("Make it with value=", "Make it with --kind"),
    ("value='label'", "--kind label"),
    ("Open it without compatibility=, and pass compatibility={} to a lookup to compare otherwise once.",
     "Leave out --compatibility here; `softkv query --compatibility {}` compares otherwise once."),
    (", bilinear(W), additive(W_q, W_k, v) or a function, got", ", got"),
    ("Pass compatibility={}(...), imported from softkv.", "They can be given in Python alone."),
    ("build the index again", "build it again with `softkv index build`"),
    ("as token=, or in the variable", "in the variable"),
    ("(partial=True)", "(`softkv query --partial`)"),
    ("(projection=False)", "(--no-projection)"),
    ("or give queries and their answers.", "or give --queries, a file of some with their answers."),
    ("(`tune`, `fit`)", "(`softkv tune --hold-out 0.5`)"),
    ("`fit`", "`softkv fit`"),
    ("`guard`", "`softkv guard`"),
    ("`forget_guard`", "`softkv guard --drop`"),
    ("confidence=None, on average, takes", "--on-average takes"),
)  # fmt: skip


def in_options(message: str) -> str:
    """A message of the library, with options of the command in its advice."""
    from softkv.files.record import QUOTED

    # Paths stand in messages without quotes, relative or absolute: each part that could pass for an argument is kept.
    parts = (part for one in (*sys.argv[1:], os.environ.get("SOFTKV_DB", "")) for part in re.split("^-[a-z-]+=|/", one))
    kept = "|".join((*(re.escape(part) for part in parts if "=" in part), QUOTED))
    for phrase, words in PHRASES:
        pattern = re.escape(phrase).replace(r"\{\}", r"'?(\w+)'?")
        message = _outside(kept, pattern, methodcaller("expand", words.replace("{}", r"\2")), message)
    return _outside(kept, rf"(?<![^\s(])(?:(?:{ARGUMENTS})={VALUE}|(?:{BARE})\b(?:=True)?)", _option, message)


def _outside(kept: str, pattern: str, words: Callable[[re.Match[str]], str], message: str) -> str:
    return re.sub(f"({kept})|{pattern}", lambda found: found[1] or words(found), message)


def _option(found: re.Match[str]) -> str:
    name, _, value = found[0].replace("=True", "").partition("=")
    return f"--{name.replace('_', '-')} {value}".replace("'", "").rstrip()
