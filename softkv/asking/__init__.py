"""One question over one view of a store, and nothing else.

Reading order: question.py; profile.py (the settings of a store), embedding.py (its embedder, loaded when needed),
learned.py and indexed.py (the projection and the index of one commit), view.py (one commit); route.py (how a question
is answered, and why); scan.py (read all rows), planes.py, lists.py (use the index), sampled.py (draw rows at random),
heads.py (several heads by the index), proposers.py and proposed.py (rows proposed by another index), rounding.py (the
rounding error of a scan), joined.py (join answers to parts of a batch), promised.py (which answers the guard covers),
spanning.py (several stores as one), together.py (questions of several threads as one batch); asked.py, given.py and
asker.py (the arguments of a lookup: their types, their checks, their defaults).
"""
