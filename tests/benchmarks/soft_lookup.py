"""How fast is the exact full softmax over many rows? `python -m tests.benchmarks.soft_lookup`.

Asks softkv and the two fastest exact ways in torch in turn, within one process and with the same threads; prints the
medians, their ratio, and the memory that softkv takes above its inputs. A ratio of 1 is as fast as the faster torch.

Does not judge: nothing passes or fails here, because timings depend on the machine and its other users.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from softkv_cli.machine import machine

import softkv

STATUS = "/proc/self/status"


def main() -> None:
    """Measure one query and a batch, and print a table."""
    chosen = _options()
    torch.set_num_threads(chosen.threads)
    print(f"{machine()}, {chosen.threads} threads, torch {torch.__version__}")
    print(f"{chosen.rows:,} keys x {chosen.width}, {chosen.value_width}-wide values, float32")
    generator = np.random.default_rng(0)
    keys = generator.standard_normal((chosen.rows, chosen.width), dtype=np.float32)
    values = generator.standard_normal((chosen.rows, chosen.value_width), dtype=np.float32)
    for count, repeats in ((1, chosen.repeats), (chosen.queries, max(3, chosen.repeats // 5))):
        queries = generator.standard_normal((count, chosen.width), dtype=np.float32)
        print(report(count, contest(queries, keys, values, repeats=repeats)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time softkv.soft_lookup against torch.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--value-width", type=int, default=64)
    parser.add_argument("--queries", type=int, default=256, help="how many queries in the batch")
    parser.add_argument("--repeats", type=int, default=15, help="rounds for one query; a fifth of that for the batch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="set OPENBLAS_NUM_THREADS alike")
    return parser.parse_args()


def contest(queries: Any, keys: Any, values: Any, *, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds (median) and megabytes above the inputs of each contestant, asked in turn."""
    tensors = [torch.from_numpy(array) for array in (queries, keys, values)]
    padded = torch.nn.functional.pad(tensors[2], (0, keys.shape[1] - values.shape[1]))
    contestants: dict[str, Callable[[], Any]] = {
        "softkv (NumPy)": lambda: softkv.soft_lookup(queries, keys, values),
        "softkv (torch)": lambda: softkv.soft_lookup(*tensors),
        "torch sdpa, values padded": lambda: sdpa(tensors[0], tensors[1], padded),
        "torch softmax(K@q/T)@V": lambda: plain(*tensors),
    }
    memory = {name: _megabytes_of(ask) for name, ask in contestants.items()}  # also warms up
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, ask in contestants.items():
            time.sleep(0.2)  # until the threads of the one before have stopped waiting for more
            start = time.perf_counter()
            ask()
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(taken), memory[name]) for name, taken in seconds.items()}


def sdpa(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Torch's own attention; values as wide as keys, because it is slow on others."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(queries[None, None], keys[None, None], values[None, None])


def plain(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The formula as it is written, with the temperature folded into the query."""
    scaled = queries / keys.shape[1] ** 0.5
    if len(queries) == 1:
        return torch.softmax(keys @ scaled[0], 0) @ values
    return torch.softmax(scaled @ keys.T, -1) @ values


def report(count: int, results: dict[str, tuple[float, float]]) -> str:
    """The table of one contest."""
    best = min(seconds for name, (seconds, _) in results.items() if name.startswith("torch"))
    lines = [f"\n{count} quer{'y' if count == 1 else 'ies'}"]
    for name, (seconds, megabytes) in results.items():
        lines.append(
            f"  {name:28}{seconds * 1e3:10.1f} ms {seconds / best:7.2f} x {megabytes:8.0f} MB above the inputs"
        )
    return "\n".join(lines)


def _megabytes_of(ask: Callable[[], Any]) -> float:
    """The peak of resident memory during a call, above what was resident before. NaN where /proc cannot tell."""
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")  # sets the peak to what is resident now
        before = _status("VmRSS")
        ask()
        return (_status("VmHWM") - before) / 1e3
    except OSError:
        ask()
        return float("nan")


def _status(field: str) -> float:
    with open(STATUS) as status:
        return next(float(line.split()[1]) for line in status if line.startswith(field))


if __name__ == "__main__":
    main()
