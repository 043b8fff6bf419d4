"""Everything that touches tensors: a `stage` of the model on one rank, loaded from a memory-mapped `checkpoint`,
split by DeepSpeed's AutoTP over a `group` of ranks, run by `decoder`; `attention` over the slot cache; `sampler`.
"""
