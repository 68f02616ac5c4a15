"""Proposers of rows: how many of the best they find, what they refuse, and how they come back from bytes."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from softkv.errors import FormatTooNew, IndexDamaged, InputError, KindError, MissingExtra, NotFinite, ShapeError
from softkv.index import candidates, engine
from softkv.index.candidates import Proposer, spelled_out

faiss = pytest.importorskip("faiss")
Matrix = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Blocks = Callable[[], Iterator[tuple[int, Matrix]]]
ROWS, WIDTH, BEST = 4000, 32, 10
SHORT = ("hnsw", "ivf", "pq", "rabitq")


def drawn(rows: int, seed: int) -> Matrix:
    """Rows of length 1 in 100 clusters, which are the same for every seed."""
    middles = np.random.default_rng(9).standard_normal((100, WIDTH))
    random = np.random.default_rng(seed)
    found = middles[random.integers(0, 100, rows)] + 0.6 * random.standard_normal((rows, WIDTH))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


KEYS, QUERIES = drawn(ROWS, 1), drawn(50, 2)
SCATTERED = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)  # without any clusters


def blocks(keys: Matrix = KEYS, size: int = 1500) -> Blocks:
    """The keys, some at a time, as often as one likes."""
    return lambda: ((first, keys[first : first + size]) for first in range(0, len(keys), size))


def built(kind: str, metric: str = "dot", keys: Matrix = KEYS, **options: Any) -> Proposer:
    """A proposer of the keys."""
    options = {"rows": len(keys), "metric": metric, "backend": "cpu"} | options
    return Proposer.build(kind, blocks(keys), keys, keys.shape[1], **options)


def recall(proposed: Rows, metric: str, queries: Matrix = QUERIES, keys: Matrix = KEYS) -> float:
    """The share of the true best rows that are among the proposed ones; the oracle is NumPy in float64."""
    dots = queries.astype(np.float64) @ keys.T.astype(np.float64)
    scores = dots if metric == "dot" else dots - 0.5 * (keys.astype(np.float64) ** 2).sum(axis=1)
    best = np.argsort(-scores, axis=1)[:, :BEST]
    return float(np.mean([np.isin(one, two).mean() for one, two in zip(best, proposed, strict=True)]))


@pytest.fixture(scope="module")
def ivf() -> Proposer:
    """One that is not changed by anybody."""
    return built("IVF64,SQ8")


@pytest.mark.parametrize("metric", ["dot", "l2"])
@pytest.mark.parametrize(("kind", "least"), [("hnsw", 0.97), ("ivf", 0.9), ("pq", 0.85), ("rabitq", 0.85)])
def test_the_short_names_find_most_of_the_best(kind: str, least: float, metric: str) -> None:
    """Eight times as many rows as are wanted have them; more effort finds at least about as many."""
    proposer = built(kind, metric)
    proposed = proposer.propose(QUERIES, 8 * BEST)
    assert proposed.shape == (50, 8 * BEST)
    assert proposed.dtype == np.int64
    found = recall(proposed, metric)
    assert found >= least
    assert recall(proposer.propose(QUERIES, 8 * BEST, effort=16), metric) >= found - 0.05


@pytest.mark.parametrize(
    "kind", ["Flat", "HNSW16", "HNSW16,Flat", "IVF64,Flat", "IVF64_HNSW8,SQfp16", "PQ16x4fs", "PCAR24,SQ8", "SQ8"]
)
def test_factory_strings_are_taken_as_they_are(kind: str) -> None:
    """The proposer remembers what it is, and finds rows."""
    proposer = built(kind)
    assert (proposer.kind, proposer.rows, proposer.width, proposer.metric) == (kind, ROWS, WIDTH, "dot")
    assert recall(proposer.propose(QUERIES, 8 * BEST, effort=4), "dot") > 0.9


def test_short_names_grow_with_the_rows_and_fit_the_sample() -> None:
    """Lists in proportion to √rows, never more than the sample can train; a scan where there is little to gain."""
    assert spelled_out("ivf", 384, 1_000_000, 500_000) == "IVF4000,SQ8"
    assert spelled_out("ivf", 384, 1_000_000, 16_000) == "IVF1000,SQ8"
    assert spelled_out("pq", 10, 10_000, 10_000) == "Pad12,IVF400,PQ3x4fs"
    assert spelled_out("rabitq", 384, 999, 999) == "Flat"
    assert spelled_out("HNSW32", 384, 5, 5) == "HNSW32"


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("rows", [0, 1, 3, 1000])
def test_any_number_of_rows_of_any_width_will_do(kind: str, rows: int) -> None:
    """A width that no code divides, and hardly any rows; what there is is proposed once."""
    keys = np.ascontiguousarray(np.resize(KEYS, (1000, 7))[:rows])
    proposed = built(kind, keys=keys).propose(QUERIES[:, :7], 5, effort=100)
    assert proposed.shape == (50, 5)
    assert ((proposed >= 0).sum(axis=1) == min(rows, 5)).all()
    assert all(len({one for one in row if one >= 0}) == min(rows, 5) for row in proposed.tolist())


@pytest.mark.parametrize("kind", SHORT)
def test_copies_of_one_key_can_be_indexed(kind: str) -> None:
    """Clusters without an extent break nothing, and the one list that has rows is found."""
    proposed = built(kind, keys=np.tile(KEYS[:1], (1200, 1))).propose(QUERIES, 5)
    assert ((proposed >= 0) & (proposed < 1200)).all()


@pytest.mark.parametrize(
    "kind",
    [
        "nonsense", "", "hnsw ", "IVF", "IVF64", "IVF64,", "HNSW-5", "HNSW0", "HNSW1", "PQ0", "PQ48x24", "PQ7",
        "IVF0,Flat", "IVF64,PQ16x0", "HNSW99999999999999999999", "IDMap,Flat", "Flat,IDMap2", "ZnLattice0x10_6",
        "HNSW16,PQ16", "NSG16", "IVF64,SQ8,RFlat", "Fl\0at", "PQ１６", "(" * 5000, None, 7, b"Flat",
    ],
)  # fmt: skip
def test_other_strings_are_refused_before_anything_is_done(kind: Any) -> None:
    """Some of them make FAISS end the process, or compare by another metric; no block is asked for."""

    def untouched() -> Iterator[tuple[int, Matrix]]:
        raise AssertionError("a block was asked for")

    with pytest.raises(InputError, match=r"cannot be a candidate index.*IVF1024,PQ48x4fs"):
        Proposer.build(kind, untouched, KEYS, WIDTH, rows=ROWS, metric="dot", backend="cpu")


def test_a_sample_too_small_to_train_on_is_an_error_of_ours() -> None:
    """What FAISS says is told, without the line of its sources."""
    with pytest.raises(InputError, match="cannot train 100 rows as 'IVF128,SQ8'") as caught:
        built("IVF128,SQ8", keys=KEYS[:100])
    assert "/faiss/" not in str(caught.value)


def test_building_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """FAISS would print that it was given few points for each cluster."""
    for kind in (*SHORT, "IVF64,PQ4x6", "HNSW8,PQ4"):
        built(kind, "l2", KEYS[:1500])
    assert capfd.readouterr() == ("", "")


def test_blocks_come_in_order_and_complete() -> None:
    """Rows keep their numbers, so none may be left out or come twice."""
    for given in ([(0, KEYS[:10]), (20, KEYS[20:])], [(5, KEYS)], [(0, KEYS[:10]), (0, KEYS)], [(0, KEYS[:-1])], []):
        with pytest.raises(ShapeError, match="expected"):
            Proposer.build("Flat", lambda given=given: iter(given), KEYS, WIDTH, rows=ROWS, metric="l2", backend="cpu")


def test_numbers_that_faiss_cannot_square_are_refused() -> None:
    """NaN, infinity and huge ones, in the sample or in a block; FAISS would abort in k-means."""
    for error, number in ((NotFinite, np.nan), (NotFinite, np.inf), (InputError, 1e30)):
        bad = KEYS.copy()
        bad[3000, 4] = number
        with pytest.raises(error, match=r"sample|keys"):
            Proposer.build("ivf", blocks(), bad, WIDTH, rows=ROWS, metric="l2", backend="cpu")
        with pytest.raises(error, match="keys"):
            Proposer.build("ivf", blocks(bad), KEYS, WIDTH, rows=ROWS, metric="l2", backend="cpu")


def test_progress_is_told_and_may_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told after each piece; what it raises comes through, and FAISS is left as it was."""
    monkeypatch.setattr(candidates, "_PIECE", 1000)
    told: list[tuple[int, int]] = []
    built("SQ8", progress=lambda *one: told.append(one))
    assert told == [(row, ROWS) for row in (1000, 1500, 2500, 3000, 4000)]

    def enough(done: int, of: int) -> None:
        raise KeyboardInterrupt

    before = getattr(faiss.cvar, engine.THRESHOLD)
    with pytest.raises(KeyboardInterrupt):
        built("SQ8", progress=enough)
    assert getattr(faiss.cvar, engine.THRESHOLD) == before


def test_effort_counts_for_one_call_only() -> None:
    """More lists find more rows; the next call, without it, is as if nothing had been."""
    for proposer in (built("IVF64,SQ8", keys=SCATTERED), built("HNSW4", keys=SCATTERED)):
        usual = proposer.propose(QUERIES, BEST)
        low, high = (proposer.propose(QUERIES, BEST, effort=effort) for effort in (0.01, 1000))
        found = [recall(one, "dot", keys=SCATTERED) for one in (low, usual, high)]
        assert found[0] < found[1] < found[2]
        assert found[2] > 0.95
        assert np.array_equal(proposer.propose(QUERIES, BEST), usual)


def test_effort_reaches_through_a_transform() -> None:
    """The lists behind it are the ones that are opened."""
    proposer = built("Pad36,IVF64,SQ8", keys=SCATTERED)
    assert recall(proposer.propose(QUERIES, BEST, effort=0.01), "dot", keys=SCATTERED) < 0.5
    assert recall(proposer.propose(QUERIES, BEST, effort=100), "dot", keys=SCATTERED) > 0.95


def test_enough_lists_are_opened_for_what_is_asked() -> None:
    """Whoever asks for half of the rows gets them, also with little effort; so it is when most lists are empty."""
    assert (built("IVF500,SQ8").propose(QUERIES, ROWS // 2, effort=0.01) >= 0).all()


def test_more_than_there_is_is_filled_up(ivf: Proposer) -> None:
    """All rows come, each once, and -1 for the rest."""
    (proposed,) = ivf.propose(QUERIES[:1], ROWS + 5)
    assert sorted(proposed.tolist()) == [-1] * 5 + list(range(ROWS))
    assert ivf.propose(QUERIES[:0], 3).shape == (0, 3)


def test_mistakes_of_a_question_are_named(ivf: Proposer) -> None:
    """Widths, counts and numbers may be wrong."""
    with pytest.raises(ShapeError, match="width 5, the index 32"):
        ivf.propose(np.ones((1, 5), np.float32), 3)
    with pytest.raises(NotFinite, match=r"queries\[1\]"):
        ivf.propose(np.stack([QUERIES[0], QUERIES[0] * np.float32(np.nan)]), 3)
    for count in (0, -1, 1.5, True):
        with pytest.raises(KindError, match="count"):
            ivf.propose(QUERIES, count)  # type: ignore[arg-type]
    for metric in ("cosine", None):
        with pytest.raises(InputError, match="dot, l2"):
            built("Flat", metric)  # type: ignore[arg-type]


def test_huge_queries_are_answered(ivf: Proposer) -> None:
    """Scores that overflow are nobody's concern: rows are proposed, or none."""
    proposed = ivf.propose(QUERIES * np.float32(1e38), 5)
    assert ((proposed >= -1) & (proposed < ROWS)).all()


def test_threads_get_what_one_alone_gets(ivf: Proposer) -> None:
    """Many may ask at once, with efforts of their own."""
    efforts, wrong = (0.5, 1.0, 2.0, 4.0), []
    alone = {effort: ivf.propose(QUERIES, BEST, effort=effort) for effort in efforts}

    def ask(effort: float) -> None:
        wrong.extend(
            effort for _ in range(10) if not np.array_equal(ivf.propose(QUERIES, BEST, effort=effort), alone[effort])
        )

    threads = [threading.Thread(target=ask, args=(effort,)) for effort in efforts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("metric", ["dot", "l2"])
@pytest.mark.parametrize("kind", [*SHORT, "Flat", "PCAR24,IVF64,Flat", "HNSW8,Flat"])
def test_what_was_written_is_read_again(kind: str, metric: str) -> None:
    """Bytes, or a read-only view of them, give the same proposals, and the same bytes again."""
    proposer = built(kind, metric)
    given = proposer.to_bytes()
    again = Proposer.from_bytes(memoryview(bytearray(given)).toreadonly(), width=WIDTH, rows=ROWS)
    assert (again.kind, again.metric, again.width, again.rows) == (proposer.kind, metric, WIDTH, ROWS)
    assert np.array_equal(again.propose(QUERIES, BEST), proposer.propose(QUERIES, BEST))
    assert again.to_bytes() == given


def test_bytes_of_a_wrong_length_are_refused(ivf: Proposer) -> None:
    """Cut anywhere, or with more behind: nothing is read that is not there."""
    given = ivf.to_bytes()
    for length in [*range(80), len(given) // 2, len(given) - 1]:
        with pytest.raises(IndexDamaged, match="build the index again"):
            Proposer.from_bytes(given[:length], width=WIDTH, rows=ROWS)
    with pytest.raises(IndexDamaged, match="bytes"):
        Proposer.from_bytes(given + b"\0", width=WIDTH, rows=ROWS)


def test_an_index_for_other_rows_is_refused(ivf: Proposer) -> None:
    """It says for which rows it was made, and which are there."""
    for width, rows in ((WIDTH + 1, ROWS), (WIDTH, ROWS - 1)):
        with pytest.raises(IndexDamaged, match=f"4000 rows of width 32, but {rows} rows of width {width}"):
            Proposer.from_bytes(ivf.to_bytes(), width=width, rows=rows)


def test_a_newer_format_is_refused_with_its_number(ivf: Proposer) -> None:
    """It is refused before anything behind the number is read."""
    given = bytearray(ivf.to_bytes())
    given[8] = 2
    with pytest.raises(FormatTooNew, match="format 2; this softkv reads up to 1"):
        Proposer.from_bytes(given[: candidates._HEAD.size], width=WIDTH, rows=ROWS)


def file_of(index: Any, **changes: Any) -> bytes:
    """Bytes of an index under a head that tells what it likes."""
    fields = {"kind": "Flat", "metric": "dot", "width": WIDTH, "rows": ROWS} | changes
    text = json.dumps({name: one for name, one in fields.items() if one is not None}).encode()
    body = faiss.serialize_index(index).tobytes()
    return candidates._HEAD.pack(b"SOFTPROP", 1, len(text), len(body)) + text + body


def filled(kind: str, metric: int, rows: int = ROWS) -> Any:
    """An index that FAISS made alone."""
    index = faiss.index_factory(WIDTH, kind, metric)
    index.train(KEYS)
    index.add_with_ids(KEYS[:rows], np.arange(rows)) if "IDMap" in kind else index.add(KEYS[:rows])
    return index


def test_the_head_must_tell_the_truth() -> None:
    """Rows, metric and width of the index are compared with it, and rows must be numbered plainly."""
    dot, l2 = faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2
    assert Proposer.from_bytes(file_of(filled("Flat", dot)), width=WIDTH, rows=ROWS).rows == ROWS
    for index in (filled("Flat", l2), filled("Flat", dot, 10), filled("IDMap,Flat", dot), filled("IDMap2,Flat", dot)):
        with pytest.raises(IndexDamaged, match="candidate index"):
            Proposer.from_bytes(file_of(index), width=WIDTH, rows=ROWS)
    with pytest.raises(IndexDamaged, match="width 32, while its head says 33"):
        Proposer.from_bytes(file_of(filled("Flat", dot), width=33), width=33, rows=ROWS)


@pytest.mark.parametrize(
    "changes",
    [{"kind": None}, {"kind": 5}, {"metric": "cosine"}, {"width": 32.0}, {"rows": True}, {"rows": -1}, {"more": 1}],
)
def test_heads_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    """Something is missing, unknown, or of a wrong type."""
    with pytest.raises(IndexDamaged, match="head"):
        Proposer.from_bytes(file_of(filled("Flat", faiss.METRIC_INNER_PRODUCT), **changes), width=WIDTH, rows=ROWS)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 4000, b"{}" + b" " * 5000])
def test_heads_that_are_no_json_are_refused(text: bytes) -> None:
    """Anything may stand there, as long as the lengths are right."""
    with pytest.raises(IndexDamaged, match="head"):
        Proposer.from_bytes(candidates._HEAD.pack(b"SOFTPROP", 1, len(text), 0) + text, width=WIDTH, rows=ROWS)


def test_bytes_that_faiss_does_not_know_are_refused() -> None:
    """Bytes of another build of FAISS are an error of ours, with what it says."""
    given = file_of(filled("Flat", faiss.METRIC_INNER_PRODUCT))
    place = re.search(rb"\}", given).end()  # type: ignore[union-attr]
    with pytest.raises(IndexDamaged, match="cannot be read by this FAISS"):
        Proposer.from_bytes(given[:place] + b"ABCD" + given[place + 4 :], width=WIDTH, rows=ROWS)


def test_rows_that_are_not_there_are_never_proposed() -> None:
    """An index with numbers of its own, however it came about, cannot make the caller read beyond the keys."""
    index = faiss.index_factory(WIDTH, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(KEYS)
    index.add_with_ids(KEYS, np.arange(ROWS) * 1000 - 2000)
    proposer = Proposer.from_bytes(file_of(index, kind="IVF4,Flat"), width=WIDTH, rows=ROWS)
    proposed = proposer.propose(QUERIES, ROWS, effort=100)
    assert set(np.unique(proposed)) == {-1, 0, 1000, 2000, 3000}


def test_without_faiss_the_extra_is_named(ivf: Proposer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building, reading and asking all say what to type."""
    given = ivf.to_bytes()
    monkeypatch.setitem(sys.modules, "faiss", None)
    for act in (
        lambda: built("hnsw"),
        lambda: Proposer.from_bytes(given, width=WIDTH, rows=ROWS),
        lambda: ivf.propose(QUERIES, 3),
    ):
        with pytest.raises(MissingExtra, match=r"a candidate index needs faiss-cpu.*softkv\[cpu\]"):
            act()


@pytest.mark.skipif(engine._gpus(faiss) == 0, reason="FAISS sees no GPU here")
@pytest.mark.parametrize("kind", SHORT)
def test_centres_may_be_trained_on_a_gpu(kind: str) -> None:
    """What is found afterwards is as good."""
    proposed = built(kind, backend="gpu").propose(QUERIES, 8 * BEST)
    assert recall(proposed, "dot") > 0.85
