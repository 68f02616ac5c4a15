"""Embedders turn texts into key vectors: the bundled model, models of sentence-transformers, and the user's own.

Reading order: embedder.py (the protocol), vectors.py (checks of inputs and outputs), static.py (the bundled model),
transformer.py and fetching.py (sentence-transformers), brought.py (the user's own), registry.py (names), identity.py
(what a store records of its embedder), distillation.py (how a static model is made) and onnx.py (a model of
sentence-transformers that runs without torch).

Does not know about stores, queries or scores. tokenizers, torch, sentence_transformers and onnxruntime are imported
where they are used.

>>> static = find("static")
>>> keys = static.documents(["a boy looking for treasure", "the price of coffee"])
>>> keys.shape
(2, 256)
>>> scores = keys @ static.queries(["how much is a cup?"])[0]
>>> bool(scores[1] > scores[0])
True
"""

from softkv.embedders.embedder import Embedder
from softkv.embedders.identity import Identity
from softkv.embedders.registry import DEFAULT, Listed, find, names, register

__all__ = ["DEFAULT", "Embedder", "Identity", "Listed", "find", "names", "register"]
