"""One question over one view of a store, and nothing else.

Reading order: question.py; profile.py (what a store remembers), embedding.py (its embedder, when a text needs one),
learned.py and indexed.py (the projection and the index of one commit), view.py (one commit); route.py (how a question
is answered, and why); scan.py (by all rows), planes.py, lists.py (by the index), sampled.py (by rows that are drawn),
heads.py (several heads by it), proposers.py and proposed.py (by what another index proposes), rounding.py (how far a
scan can be trusted), joined.py (answers to some of the queries, put together), promised.py (which answers the guard is
about), spanning.py (several stores as one), together.py (several threads at once); asked.py, given.py and asker.py
(what was asked, with all defaults filled in).
"""
