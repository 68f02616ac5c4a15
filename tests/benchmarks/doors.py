"""How fast is a layer over many rows? `python -m tests.benchmarks.doors`; on a GPU `--device cuda`.

Asks the layer, torch's own attention, and the formula as it is written in turn, within one process; prints the medians
of an answer and of a step of learning (an answer and the gradients of its queries), what torch's own attention takes of
it, and, of an answer, the share of the memory's bandwidth: the bytes of all keys and values over the time, beside what
a copy reaches.

Does not judge: nothing passes or fails here, because timings depend on the machine and its other users.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from softkv_cli.machine import machine
from torch import Tensor
from torch.nn import functional

from softkv.doors.torch import SoftKVLayer

Ask = Callable[[Tensor], Tensor]


def main() -> None:
    """Measure one query and a batch, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--queries", type=int, default=256, help="how many queries in the batch")
    parser.add_argument("--compatibility", default="scaled_dot", help="of the layer; the others take scaled products")
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    device, dtype = torch.device(chosen.device), getattr(torch, chosen.dtype)
    torch.manual_seed(0)
    keys, values = (torch.randn(chosen.rows, chosen.width, dtype=dtype, device=device) for _ in range(2))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{machine()}\n{name}, {chosen.rows:,} keys and values x {chosen.width}, {chosen.dtype}")
    bandwidth = copied(keys, rounds=chosen.rounds)
    print(f"a copy reads and writes {bandwidth / 1e9:,.0f} GB/s")
    contestants = contest(keys, values, chosen.compatibility)
    for count in (1, chosen.queries):
        queries = torch.randn(count, chosen.width, device=device)
        print(f"\n| {count} queries | an answer | of sdpa | a step of learning | of sdpa | of the bandwidth |")
        print("|---|---|---|---|---|---|")
        answers, steps = ({} for _ in range(2))
        for _ in range(chosen.rounds):
            for label, ask in contestants.items():
                answers.setdefault(label, []).append(seconds(ask, queries, learning=False))
                steps.setdefault(label, []).append(seconds(ask, queries, learning=True))
        medians = {one: [statistics.median(found[one]) for found in (answers, steps)] for one in contestants}
        for label, (answer, step) in medians.items():
            read = (keys.nbytes + values.nbytes) / answer / bandwidth
            print(
                f"| {label} | {answer * 1e3:,.1f} ms | {answer / medians['sdpa'][0]:.2f} | {step * 1e3:,.1f} ms | "
                f"{step / medians['sdpa'][1]:.2f} | {read:.0%} |"
            )


def contest(keys: Tensor, values: Tensor, compatibility: str) -> dict[str, Ask]:
    """Three ways to the same answer, if the layer compares as the others do."""
    layer = SoftKVLayer(keys, values, compatibility=compatibility, learn_temperature=False)

    def sdpa(queries: Tensor) -> Tensor:
        asked = queries.to(keys.dtype)[None, None]
        return functional.scaled_dot_product_attention(asked, keys[None, None], values[None, None])[0, 0]

    def plain(queries: Tensor) -> Tensor:
        scores = queries.to(keys.dtype) @ keys.T / keys.shape[1] ** 0.5
        return functional.softmax(scores, -1) @ values

    return {"layer": layer, "sdpa": sdpa, "softmax(QKᵀ/√d)V": plain}


def seconds(ask: Ask, queries: Tensor, *, learning: bool) -> float:
    """How long an answer takes, or an answer and the gradient of its queries."""
    queries = queries.clone().requires_grad_(learning)
    time.sleep(0.2)  # until the threads of the one before have stopped waiting for more
    _wait(queries.device)
    started = time.perf_counter()
    with torch.set_grad_enabled(learning):
        found = ask(queries)
        if learning:
            found.sum().backward()
    _wait(queries.device)
    return time.perf_counter() - started


def copied(x: Tensor, *, rounds: int) -> float:
    """The bytes that a copy reads and writes in a second."""
    target, taken = torch.empty_like(x), []
    for _ in range(rounds):
        _wait(x.device)
        started = time.perf_counter()
        target.copy_(x)
        _wait(x.device)
        taken.append(time.perf_counter() - started)
    return 2 * x.nbytes / statistics.median(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
