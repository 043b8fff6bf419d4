"""torch.distributed and DeepSpeed over MPI ranks.

torch.distributed's world is one replica stage's tensor-parallel group; everything else a replica says is plain
MPI. On CPUs the collectives run on mpi4py itself: torch's wheel has no MPI backend, and gloo costs milliseconds
per all-reduce once ranks outnumber cores. It needs no port either. Accelerators use their own library (NCCL,
RCCL, oneCCL), whose rendezvous comes from the same communicator.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from mpi4py import MPI

_WIDE = (torch.bfloat16, torch.float16)  # MPI cannot add these: reduced in float32
_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int64: MPI.INT64_T,
    torch.int32: MPI.INT32_T,
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
}
_OPS = {dist.ReduceOp.SUM: MPI.SUM, dist.ReduceOp.MAX: MPI.MAX, dist.ReduceOp.MIN: MPI.MIN}


def buffer(tensor: torch.Tensor) -> MPI.buffer:
    """Raw bytes of a contiguous CPU tensor of any dtype (bfloat16 included) as an MPI message."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"MPI needs contiguous host memory, got {tensor.device} {tensor.stride()}")
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class _Done(c10d.Work):
    """The result of a call that has already happened."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


_DONE = _Done()


class MPIProcessGroup(dist.ProcessGroup):
    """The collectives that DeepSpeed-Inference uses, on blocking MPI calls."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]
        self._comm = comm
        self._scratch = torch.empty(0)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "mpi4py"

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """A float32 copy in a buffer that is kept: allocating one per call costs more than the reduction."""
        count = tensor.numel()
        if self._scratch.numel() < count:
            self._scratch = torch.empty(count)
        return self._scratch[:count].copy_(tensor.reshape(-1))

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        op = _OPS[getattr(op, "op", op)]
        for tensor in tensors:
            work = self._wide(tensor) if tensor.dtype in _WIDE else tensor.contiguous()
            self._comm.Allreduce(MPI.IN_PLACE, [buffer(work), work.numel(), _TYPES[work.dtype]], op)
            if work.data_ptr() != tensor.data_ptr():
                tensor.copy_(work.view(tensor.shape))
        return _DONE

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        for tensor in tensors:
            work = tensor.contiguous()
            self._comm.Bcast(buffer(work), root=opts.rootRank)
            if work.data_ptr() != tensor.data_ptr():
                tensor.copy_(work)
        return _DONE

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Done:
        self._comm.Allgather(buffer(input.contiguous()), buffer(output))
        return _DONE

    def barrier(self, opts: Any = None) -> _Done:
        self._comm.Barrier()
        return _DONE


def init(comm: MPI.Intracomm, device: int | None) -> None:
    """Make `comm` the world of torch.distributed and of DeepSpeed.

    device: this rank's accelerator (index among the visible), or None on CPUs. Collective over `comm`.
    """
    accelerator = deepspeed.accelerator.get_accelerator()
    backend: str
    store: c10d.Store
    if device is None:
        backend, store = "mpi4py", c10d.HashStore()
        _register(comm)
    else:
        os.environ["LOCAL_RANK"] = str(device)  # DeepSpeed sets its device from this
        accelerator.set_device(device)
        backend, store = accelerator.communication_backend_name(), _store(comm)
    dist.init_process_group(backend, rank=comm.rank, world_size=comm.size, store=store)
    # DeepSpeed's shared-memory all-reduce is compiled at start (a minute), busy-waits, ignores process groups and
    # leaves files in /dev/shm: the work goes to the group made above.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, verbose=False)


def _register(comm: MPI.Intracomm) -> None:
    def create(opts: Any, _options: Any) -> MPIProcessGroup:
        ranks = list(opts.global_ranks_in_group) or list(range(opts.group_size))
        if len(ranks) == comm.size:
            return MPIProcessGroup(comm)
        return MPIProcessGroup(comm.Create_group(comm.group.Incl(ranks)))

    if "mpi4py" not in dist.Backend.backend_list:
        dist.Backend.register_backend("mpi4py", create, extended_api=True, devices=["cpu"])


def _store(comm: MPI.Intracomm) -> c10d.Store:
    """A rendezvous on a free port of the first rank's node, its address sent by MPI: nothing to clash with."""
    listener = socket.create_server(("", 0)) if comm.rank == 0 else None
    address = (socket.gethostname(), listener.getsockname()[1]) if listener else None
    host, port = comm.bcast(address)
    descriptor = listener.detach() if listener else None  # handed over open: no moment in which the port is free
    return c10d.TCPStore(host, port, comm.size, comm.rank == 0, master_listen_fd=descriptor)
