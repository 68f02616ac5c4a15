"""What the index brings, and what it holds: all its figures, each with the goal that it was built for.

    python -m tests.benchmarks.index [SECTION ...] [--folder FOLDER]

With a folder, data sets, stores and exact answers are kept there and used again, so that sections can be run one at a
time; at full size they take some 20 GB. Ratios are of medians; contestants take turns in one process.

Does not judge: a goal that is missed is told, and nothing fails.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from softkv_cli.machine import machine, threads

from .filling import kept_in
from .index_adding import adding
from .index_contests import scans
from .index_coverage import coverage
from .index_growth import changed, growth
from .index_plots import plots
from .index_processes import memory, opening
from .index_quality import mixture, spectrum, text
from .index_report import Bench, Section, never_cheap

SECTIONS: dict[str, Section] = {
    "scans": scans,
    "mixture": mixture,
    "spectrum": spectrum,
    "text": text,
    "growth": growth,
    "changed": changed,
    "opening": opening,
    "memory": memory,
    "adding": adding,
    "coverage": coverage,
    "plots": plots,
}
NEED_TEXTS = ("text",)


def main() -> None:
    """Run the sections that are named, or all of them."""
    chosen = _options()
    with ExitStack() as stack:
        bench = _bench(chosen, stack.enter_context(kept_in(chosen.folder)))
        print(f"{machine()}, {_versions(bench.threads)}", flush=True)
        if bench.scale < 1:
            print(f"\nScaled down to {bench.scale:g} of its size. {stack.enter_context(never_cheap())}", flush=True)
        for name in chosen.sections or SECTIONS:
            if name in NEED_TEXTS and not bench.texts:
                print(f"\n### {name}: left out, because SOFTKV_DATA does not name the folder of texts", flush=True)
            else:
                SECTIONS[name](bench)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all")
    parser.add_argument("--folder", type=Path, help="where to keep everything; default: a temporary one")
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"), help="where plots are written")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink all sizes, to try it out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two contestants")
    parser.add_argument("--threads", type=int, default=threads(), help="set OPENBLAS_NUM_THREADS alike")
    parser.add_argument("--rebuild", action="store_true", help="build indexes anew, also where there are some")
    chosen = parser.parse_args()
    unknown = set(chosen.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"expected sections of {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    return chosen


def _bench(chosen: argparse.Namespace, folder: Path) -> Bench:
    return Bench(
        folder=folder.resolve(),
        figures=chosen.figures,
        scale=chosen.scale,
        rounds=chosen.rounds,
        pause=chosen.pause,
        threads=chosen.threads,
        texts=os.environ.get("SOFTKV_DATA"),
        anew=set() if chosen.rebuild else None,
    )


def _versions(count: int) -> str:
    """The others, set to the same threads."""
    import faiss
    import torch

    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)
    return f"faiss {faiss.__version__}, torch {torch.__version__}, {count} threads"


if __name__ == "__main__":
    main()
