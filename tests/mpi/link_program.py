"""mpirun -n 2 python link_program.py: the contract of `StageLink`, held by every implementation.

Rank 0 sends, rank 1 receives and judges. Prints one JSON line: {implementation: {law: true or what was wrong}}.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from mpi4py import MPI

from exahpc.replica.engine import group
from exahpc.replica.guard import guarded
from exahpc.replica.link import DeviceLink, HostLink, Int8Link, StageLink

WORLD = MPI.COMM_WORLD
SENDS = WORLD.rank == 0
MANY = 24  # messages under way at once, far beyond what a library buffers
SHAPES = ((1, 576), (37, 100), (600, 64))
Close = Callable[[torch.Tensor, torch.Tensor], bool]


def numbers(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The same on both ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul_(10).to(dtype)


def exact(got: torch.Tensor, sent: torch.Tensor) -> bool:
    return torch.equal(got, sent)


def rounded(got: torch.Tensor, sent: torch.Tensor) -> bool:
    """Within half a step of the largest number there is, and the rounding of the dtype itself."""
    bound = float(sent.float().abs().max()) * (0.5 / 127 + torch.finfo(sent.dtype).eps)
    return got.dtype == sent.dtype and float((got.float() - sent.float()).abs().max()) <= bound


def once(link: StageLink, shape: tuple[int, int], dtype: torch.dtype, seed: int, close: Close) -> bool:
    sent = numbers(shape, dtype, seed)
    if SENDS:
        link.send(sent).wait()
        return True
    out = torch.full(shape, 3.0, dtype=dtype)
    link.receive(out).wait()
    return close(out, sent)


def every_shape_and_dtype(link: StageLink, close: Close) -> bool:
    cases = [(s, d) for s in SHAPES for d in (torch.float32, torch.bfloat16, torch.float16)]
    kept = [once(link, shape, dtype, seed, close) for seed, (shape, dtype) in enumerate(cases)]
    return all(kept)  # not earlier: both ends must go through all


def order_is_kept_and_send_waits_for_nobody(link: StageLink, close: Close) -> bool:
    shape = (200, 512)
    sent = [numbers(shape, torch.float32, seed) for seed in range(MANY)]
    if SENDS:
        transfers = [link.send(tensor) for tensor in sent]
        WORLD.Barrier()  # the other end only now begins to receive
        for transfer in transfers:
            transfer.wait()
        return True
    WORLD.Barrier()
    outs = [torch.empty(shape) for _ in sent]
    transfers = [link.receive(out) for out in outs]
    for transfer in reversed(transfers):  # whoever waits for the last has the first, too
        transfer.wait()
    return all(close(out, tensor) for out, tensor in zip(outs, sent, strict=True))


def memory_is_free_after_the_transfer(link: StageLink, close: Close) -> bool:
    """One tensor is sent again and again, overwritten in between."""
    tensor, right = torch.empty(64, 96), True
    for seed in range(5):
        tensor.copy_(numbers((64, 96), torch.float32, seed))
        if SENDS:
            link.send(tensor).wait()
        else:
            out = torch.empty_like(tensor)
            link.receive(out).wait()
            right &= close(out, tensor)
    return right


def a_number_that_is_none_arrives_as_none(link: StageLink, _: Close) -> bool:
    sent = numbers((3, 128), torch.float32, 1)
    sent[1, 5], sent[2, 100] = torch.nan, torch.inf
    if SENDS:
        link.send(sent).wait()
        return True
    out = torch.empty_like(sent)
    link.receive(out).wait()
    return out.isfinite().all(1).tolist() == [True, False, False]


def done_without_waiting(link: StageLink, _: Close) -> bool:
    """Polling is enough to bring a message to its end (not asked of gloo, which only knows after `wait`)."""
    tensor = torch.ones(300, 300)
    transfer = link.send(tensor) if SENDS else link.receive(tensor)
    end = time.monotonic() + 60
    while not transfer.done() and time.monotonic() < end:
        time.sleep(0.001)
    found = transfer.done()
    transfer.wait()
    return found


LAWS = (
    every_shape_and_dtype,
    order_is_kept_and_send_waits_for_nobody,
    memory_is_free_after_the_transfer,
    a_number_that_is_none_arrives_as_none,
)


def main() -> None:
    torch.set_num_threads(1)
    tp = WORLD.Split(WORLD.rank)
    group.init(tp, None, world=WORLD, backend="gloo")
    peer = 1 - WORLD.rank
    host, device = HostLink(WORLD, peer), DeviceLink(peer)
    links: dict[str, tuple[StageLink, Close]] = {
        "host": (host, exact),
        "device": (device, exact),
        "host int8": (Int8Link(host, 64), rounded),
        "device int8": (Int8Link(device, 32), rounded),
    }
    results: dict[str, dict[str, bool]] = {}
    for name, (link, close) in links.items():
        laws = (*LAWS, done_without_waiting) if name.startswith("host") else LAWS
        for law in laws:
            results.setdefault(name, {})[law.__name__] = law(link, close)
            WORLD.Barrier()
    if WORLD.rank == 1:
        print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    guarded(main)
