"""torch.distributed and DeepSpeed over MPI ranks.

On CPUs torch.distributed's world is one stage's tensor-parallel group; everything else a replica says is plain
MPI. The collectives run on mpi4py itself: torch's wheel has no MPI backend, and gloo costs milliseconds per
all-reduce once ranks outnumber cores. It needs no port either.

With accelerators the world is the whole replica, so that stages can hand over hidden states by the accelerators'
own library (NCCL, RCCL, oneCCL), and the tensor-parallel group is a subgroup. Its rendezvous comes by MPI. That
path is tested with gloo in the library's place; not run on CUDA yet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import deepspeed
import deepspeed.comm
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

    def sum(self, tensor: torch.Tensor) -> None:
        """`allreduce` without what lies between a caller and MPI: that takes longer than a small sum."""
        if tensor.dtype is torch.float32 and tensor.is_contiguous():
            self._comm.Allreduce(MPI.IN_PLACE, [buffer(tensor), tensor.numel(), MPI.FLOAT], MPI.SUM)
        else:
            self.allreduce([tensor])

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


class _Parallel:
    """What Megatron calls mpu: DeepSpeed asks it for the tensor-parallel group of this rank."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._group

    def get_model_parallel_rank(self) -> int:
        return self._group.rank()

    def get_model_parallel_world_size(self) -> int:
        return self._group.size()

    def get_data_parallel_group(self) -> None:
        return None

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_world_size(self) -> int:
        return 1


_settings: dict[str, Any] = {}


def init(
    tp: MPI.Intracomm, device: int | None, *, world: MPI.Intracomm | None = None, backend: str | None = None
) -> None:
    """Make `tp`, this stage's ranks, the tensor-parallel group of torch.distributed and DeepSpeed.

    device: this rank's accelerator (index among the visible), or None on CPUs. world: the whole replica, stage
    after stage; torch's world is then that and `tp` a subgroup. backend: default the device's own library,
    "mpi4py" on CPUs. Collective over `world`, else over `tp`.
    """
    accelerator = deepspeed.accelerator.get_accelerator()
    whole = world or tp
    if device is None:
        backend = backend or "mpi4py"
    else:
        os.environ["LOCAL_RANK"] = str(device)  # DeepSpeed sets its device from this
        accelerator.set_device(device)
        backend = backend or accelerator.communication_backend_name()
    store: c10d.Store
    if backend == "mpi4py":
        store = c10d.HashStore()
        _register(whole)
    else:
        store = _store(whole)
    dist.init_process_group(backend, rank=whole.rank, world_size=whole.size, store=store)
    # DeepSpeed's shared-memory all-reduce is compiled at start (a minute), busy-waits, ignores process groups and
    # leaves files in /dev/shm: the work goes to the group made above.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    _settings.clear()
    _settings["tp_size"] = tp.size
    if whole.size > tp.size:
        groups = [dist.new_group(list(range(a, a + tp.size))) for a in range(0, whole.size, tp.size)]
        mine = groups[whole.rank // tp.size]
        # Both: with mpu alone DeepSpeed splits nothing, with tp_group alone it builds the first stage's group.
        _settings.update(mpu=_Parallel(mine), tp_group=mine)


def settings() -> dict[str, Any]:
    """`tensor_parallel` of deepspeed.init_inference, after `init`."""
    return dict(_settings)


def summation(group: Any) -> Callable[[torch.Tensor], None] | None:
    """How the ranks of a group sum a tensor in place; None when there is nothing to sum.

    group: the `mp_group` of a module that AutoTP made.
    """
    if group is None or group.size() == 1:
        return None
    if isinstance(group, MPIProcessGroup):
        return group.sum

    def by_deepspeed(tensor: torch.Tensor) -> None:
        deepspeed.comm.inference_all_reduce(tensor, group=group)

    return by_deepspeed


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
