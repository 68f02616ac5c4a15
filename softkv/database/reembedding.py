"""Embed all items of a store again, with another model, into a new generation.

Can be interrupted and goes on. Readers see the old vectors until all new ones are there, and then only the new ones.

Only items whose text is known can be embedded again: bare vectors make it refuse before anything is written.
"""

from dataclasses import replace

from softkv.asking.embedding import AnyEmbedder
from softkv.asking.profile import Profile
from softkv.database.carrying import LearnedNotCarried
from softkv.database.guarding import rebased
from softkv.embedders import DEFAULT, Identity, find
from softkv.errors import EmbedderNeeded, InputError
from softkv.logs import hint
from softkv.progress import Progress
from softkv.storage import Store

BATCH = 4096


def reembed(store: Store, embedder: AnyEmbedder, progress: Progress | None) -> int:
    """Write a new generation with the vectors of another model; returns how many items it has.

    Without a model it goes on with a change that was begun.
    """
    begun = store.unfinished
    if embedder is None:
        if begun is None:
            raise InputError("expected the embedder to change to, got None. Name one; `softkv models` lists them.")
        known = Profile.of(begun.settings).embedder
        embedder = known.name if known else None
    found = find(embedder or DEFAULT)
    kept = Profile.of(store.settings)
    wanted = replace(kept, embedder=Identity.of(found), temperature=kept.chosen_temperature, projection=None)
    if begun is None:
        _refuse_bare(store)
        if kept.projection is not None:
            _say_what_is_forgotten(store)
    is_text = store.layout is not None and store.layout.kind.embedded
    with store.snapshot() as now:  # in which nothing changes until all is done, also when that was interrupted
        settings = rebased(wanted.settings(), now)
    rebuild = store.rebuild(key_width=found.width, value_width=found.width if is_text else None, settings=settings)
    while items := rebuild.waiting(BATCH):
        vectors = found.documents([item.text or "" for item in items])
        values = found.documents([str(item.value) for item in items]) if is_text else None
        rebuild.write(vectors, values)
        if progress is not None:
            progress(rebuild.done, rebuild.total)
    rebuild.finish()
    return rebuild.total


def _refuse_bare(store: Store) -> None:
    """Refuse when some items were given as bare vectors."""
    with store.snapshot() as now:
        bare = sum(item.text is None for rows in now.in_portions() for item in now.items(rows))
        items = len(now)
    if bare:
        raise EmbedderNeeded(
            f"{bare:,} of {items:,} items were given as bare vectors, so there is no text to embed again. Delete "
            "them, or add them anew with texts=. Nothing was written."
        )


def _say_what_is_forgotten(store: Store) -> None:
    """Warn that what was learned is forgotten, since it suits the old vectors only."""
    hint(
        f"what {store.path} has learned (`fit`) is about its present vectors, and is forgotten once all items are "
        "embedded anew. Learn again then.",
        LearnedNotCarried,
    )
