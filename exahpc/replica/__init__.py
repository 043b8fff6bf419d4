"""One replica: an MPI world of tensor-parallel x pipeline-parallel ranks. Knows token ids only.

Rank 0 hears the agent (`mouth`), schedules (`head`, `batching`: pure) and broadcasts a `plan`; every rank runs it
(`worker`) on its `engine.stage`. `guard` ends the whole step when anything goes wrong on one rank. The only room,
with `models`, that needs torch, DeepSpeed and MPI.
"""
