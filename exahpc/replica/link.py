"""How hidden states go from a stage to the next.

A `StageLink` is one directed edge between two ranks. Both ends know shape and dtype of every message from the
plan, so nothing but the numbers travels. What every implementation keeps (tests/mpi/test_mpi_link.py):

- messages arrive in the order in which they were sent, bit for bit (`Int8Link`: within its rounding);
- `send` returns at once, however late the other end receives; any number may be under way;
- what was sent may be overwritten once its transfer is `done`, what is received may be read after `wait`;
- tensors lie on the stage's device.

`HostLink` goes through host memory by MPI and works anywhere. `DeviceLink` uses the accelerators' own collective
library, device to device; not run on CUDA yet. `Int8Link` sends a quarter (float32) or half (16 bit) of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import deepspeed
import torch
import torch.distributed as dist
from mpi4py import MPI

from exahpc.deployment.spec import StageLinks
from exahpc.replica.engine.group import buffer
from exahpc.replica.engine.quantize import pack, packed_width, unpack
from exahpc.replica.waiting import wait

_HIDDEN = 1
"""MPI tag of hidden states in a pipeline's communicator."""


class Transfer(Protocol):
    """One message under way."""

    def done(self) -> bool:
        """Whether it has come to its end, without waiting. Some libraries only know after `wait`."""

    def wait(self) -> None:
        """Return when it has: work that is given to the device from now on sees a received tensor's numbers."""


class StageLink(Protocol):
    """One directed edge of the pipeline; one end only sends, the other only receives."""

    def send(self, tensor: torch.Tensor) -> Transfer:
        """Begin to send a contiguous tensor."""

    def receive(self, out: torch.Tensor) -> Transfer:
        """Begin to receive into a contiguous tensor."""


class HostLink:
    """By MPI from host memory to host memory; pinned where the accelerator can.

    comm: any communicator of the two ranks; peer: the other end's rank in it.
    """

    def __init__(self, comm: MPI.Intracomm, peer: int) -> None:
        self._comm, self._peer = comm, peer
        self._idle: list[torch.Tensor] = []  # staging buffers in no use: pinning one costs milliseconds

    def send(self, tensor: torch.Tensor) -> Transfer:
        if tensor.device.type == "cpu":
            return Message(self._comm.Isend(buffer(tensor), self._peer, _HIDDEN), tensor)
        flat, host = self._stage(tensor)
        host.copy_(tensor)
        request = self._comm.Isend(buffer(host), self._peer, _HIDDEN)
        return Message(request, host, after=lambda: self._idle.append(flat))

    def receive(self, out: torch.Tensor) -> Transfer:
        if out.device.type == "cpu":
            return Message(self._comm.Irecv(buffer(out), self._peer, _HIDDEN), out)
        flat, host = self._stage(out)

        def after() -> None:
            out.copy_(host)  # not queued: the buffer is free again when this returns
            self._idle.append(flat)

        return Message(self._comm.Irecv(buffer(host), self._peer, _HIDDEN), host, after=after)

    def _stage(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(a buffer, its front shaped as `like`) in host memory."""
        size = like.numel() * like.element_size()
        flat = self._idle.pop() if self._idle else torch.empty(0, dtype=torch.uint8)
        if flat.numel() < size:
            flat = torch.empty(size, dtype=torch.uint8)
            flat = deepspeed.accelerator.get_accelerator().pin_memory(flat)
        return flat, flat[:size].view(like.dtype).view(like.shape)


class Message:
    """A transfer that is an MPI request: it, the memory that it uses, and what is left to do at its end (once)."""

    __slots__ = ("_after", "_keep", "_request")

    def __init__(self, request: MPI.Request, keep: object, after: Callable[[], None] | None = None) -> None:
        self._request, self._keep, self._after = request, keep, after

    def done(self) -> bool:
        if self._request.Test():
            self._finish()
            return True
        return False

    def wait(self) -> None:
        wait(self._request)
        self._finish()

    def _finish(self) -> None:
        after, self._after = self._after, None
        if after is not None:
            after()


class DeviceLink:
    """By torch.distributed's point to point, whose world must hold both ranks (`group.init` with `world`).

    peer: the other end's rank in that world. Both ends must use it in the same order, which plans give.
    """

    def __init__(self, peer: int) -> None:
        self._peer = peer

    def send(self, tensor: torch.Tensor) -> Transfer:
        return _Posted(dist.isend(tensor, self._peer), tensor)

    def receive(self, out: torch.Tensor) -> Transfer:
        return _Posted(dist.irecv(out, self._peer), out)


class _Posted:
    """Work of torch.distributed and the memory that it uses. On accelerators `wait` orders streams only."""

    __slots__ = ("_keep", "_work")

    def __init__(self, work: dist.Work | None, keep: torch.Tensor) -> None:
        if work is None:
            raise RuntimeError("this rank is not in torch.distributed's world: group.init needs `world`")
        self._work, self._keep = work, keep

    def done(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._work.wait()


class Int8Link:
    """Another link whose tensors [T, hidden] travel in 8 bits, quantized by groups of so many numbers."""

    def __init__(self, inner: StageLink, group: int) -> None:
        self._inner, self._group = inner, group

    def send(self, tensor: torch.Tensor) -> Transfer:
        return self._inner.send(pack(tensor, self._group))

    def receive(self, out: torch.Tensor) -> Transfer:
        tokens, hidden = out.shape
        packed = torch.empty(tokens, packed_width(hidden, self._group), dtype=torch.uint8, device=out.device)
        return _Packed(self._inner.receive(packed), packed, out, self._group)


class _Packed:
    """A message in 8 bits that becomes `out` when it has arrived."""

    __slots__ = ("_group", "_inner", "_out", "_packed")

    def __init__(self, inner: Transfer, packed: torch.Tensor, out: torch.Tensor, group: int) -> None:
        self._inner, self._packed, self._out, self._group = inner, packed, out, group

    def done(self) -> bool:
        return self._inner.done()

    def wait(self) -> None:
        self._inner.wait()
        unpack(self._packed, self._out, self._group)


def connect(links: StageLinks, number: int, comm: MPI.Intracomm, peer: int, device_peer: int | None) -> StageLink:
    """One end of link `number`, which joins stages `number` and `number` + 1.

    peer: the other end in comm; device_peer: in torch.distributed's world where that holds the whole replica and
    hidden states may travel on it, else None.
    """
    link: StageLink = HostLink(comm, peer) if device_peer is None else DeviceLink(device_peer)
    return Int8Link(link, links.group) if links.int8 and number not in links.exact else link
