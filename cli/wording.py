"""Rewrite messages of the library for the command, which has options instead of arguments.

The library says "pass force=True"; for a command that is "--force". Each pair is a phrase of the library and its
replacement; a test looks for each phrase in the sources.
"""

import re

NUMBER = re.compile(r"\W*\d[\d.,]*(e[+-]?\d+)?\W*")  # a word that is shown whole or not at all
MODEL_OF = "name with --model the one"
PHRASES = (
    (r"Make one by opening it with mode 'c'\.", "`softkv add` makes one; --db or SOFTKV_DB names another."),
    (r"Make a store there by opening it with mode 'c'\.", "`softkv add` makes one there."),
    (r"Close it there, have it waited for with wait=SECONDS, or open with mode 'r'\.",
     "Wait until it is done, as --wait SECONDS does; reading works meanwhile."),
    (r"can only be read \(mode 'r'\)\.", "can only be read: `query`, `list` and the like work."),
    (r"or open with force=True if", "or use the library with force=True if"),
    (r"use on_conflict='replace' or 'ignore'", "use --replace or --ignore"),
    (r"or replace it with force=True", "or overwrite it with --force"),
    (r"Ask with a vector of width (\d+), or open the store with embedder= and the model",
     rf"Ask with --vector, \1 numbers between commas (`--vector -` reads lines of them), or {MODEL_OF}"),
    (r"Ask with a vector of width (\d+)\.", r"Ask with --vector, \1 numbers between commas."),
    (r"Give vectors of width (\d+): add\(keys, values, vectors=\.\.\.\), "
     r"or open the store with embedder= and the model",
     rf"Give --vector, \1 numbers, or {MODEL_OF}"),
    (r"Give vectors=, or open the store with the model", f"Give --vector, or {MODEL_OF}"),
    (r"Give it one, or give vectors=\.", "Give it one, or give --vector."),
    (r"For the single best row ask for k=1; for the plain mean use compatibility='uniform'\.",
     "For the best key alone use --hard; for the plain mean --compatibility uniform."),
    (r"For the best key alone, ask `nearest`\.", "For the best key alone use --hard."),
    (r"Open it without value=, or make another store\.", "Leave out --kind, or name another store with --db."),
    (r"Open it without compatibility=, and pass compatibility='(\w+)' to a lookup to compare otherwise once\.",
     r"Leave out --compatibility here; `softkv query --compatibility \1` compares otherwise once."),
    (r"make a store with compatibility='dot' or 'gaussian'", "make a store with --compatibility dot or gaussian"),
    (r"use compatibility='dot' or 'gaussian'", "use --compatibility dot or gaussian"),
    (r"build the index again", "build it again with `softkv index build`"),
    (r"as token=, or in the variable", "in the variable"),
    (r", bilinear\(W\), additive\(W_q, W_k, v\) or a function, got", ", got"),
    (r"Pass compatibility=(\w+)\(\.\.\.\), imported from softkv\.", "They can be given in Python alone."),
    (r"backend='gpu' was asked for", "--backend gpu was asked for"),
    (r"Take backend='auto' or 'cpu'", "Take --backend auto or cpu"),
    (r"start the store anew with compatibility='gaussian'", "start the store anew with --compatibility gaussian"),
    (r"let `fit` learn their scales", "let `softkv fit` learn their scales"),
    (r"start the store anew with value='label'\.", "start the store anew with --kind label."),
    (r"and estimate \(partial=True\)", "and estimate (`softkv query --partial`)"),
    (r"ask without it \(projection=False\)", "ask without it (--no-projection)"),
    (r"with kind='number' it is refused by its line, and with skip_bad=True passed over",
     "with --kind number it is refused by its line, and with --skip-bad passed over"),
    (r"it is in \(encoding=", "it is in (--encoding "),
    (r"leave out key, text, value, payload and vector", "leave out --key, --text, --value, --payload and --vector"),
    (r"JSON lines\? format='jsonl'", "JSON lines? --format jsonl"),
    (r"give format= as one of", "give --format as one of"),
    (r"\(kind='(\w+)'\)", r"(--kind \1)"),
    (r"Give value=; the columns", "Give --value; the columns"),
    (r"Give key=, text= or vector=; there", "Give --key, --text or --vector; there"),
    (r"Give collection=; there", "Give --collection; there"),
    (r"give value=, such as", "give --value, such as"),
    (r"expected values= for 'faiss' and only there, and collection= for",
     "expected --values for 'faiss' and only there, and --collection for"),
    (r"go on with skip=(\d+)\. If not", r"go on with --skip \1. If not"),
    (r"or use on_conflict='replace', on_conflict='ignore' or skip_bad=True",
     "or use --replace, --ignore or --skip-bad"),
    (r"Drop it with `forget_guard`\.", "Drop it with `softkv guard --drop`."),
    (r"Make it again with `guard`\.", "Make it again with `softkv guard`."),
    (r"Ask with tolerance=0\.", "Ask with --tolerance 0."),
    (r"or give queries and their answers\.", "or give --queries, a file of some with their answers."),
    (r"hold more out \(`tune`, `fit`\)", "hold more out (`softkv tune --hold-out 0.5`)"),
    (r"confidence=None, on average, takes", "--on-average takes"),
    (r"wrong_at_most", "--wrong-at-most"),
    (r"strangers_at_most", "--strangers-at-most"),
    (r"Leave out_of_scope out", "Leave --out-of-scope out"),
    (r"start the store anew with value='label' \(--kind label\), and", "start the store anew with --kind label, and"),
)  # fmt: skip


def in_options(message: str) -> str:
    """A message of the library, with options of the command in its advice."""
    for phrase, words in PHRASES:
        message = re.sub(phrase, words, message)
    return message
