"""Hidden states in 8 bits for the way between two stages.

Symmetric quantization by group (Dettmers et al., LLM.int8(), 2022, there by row): each run of `group` neighbouring
numbers of a token shares one scale, its largest magnitude / 127. An outlier, which language models have in a few
fixed channels, so costs its own group precision and no other. The rounding error of a number is at most half its
group's scale.
"""

from __future__ import annotations

import torch

_LEAST = torch.finfo(torch.float32).tiny  # an all-zero group divides by this


def packed_width(hidden: int, group: int) -> int:
    """Bytes of one token on the wire: one a number, four (float32) a scale."""
    return hidden + 4 * -(-hidden // group)


def pack(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [T, hidden] of any float dtype -> uint8 [T, packed_width]: the numbers of each token, then its scales.

    A group with a number that is not finite comes back as NaN, whole: trouble is never rounded away.
    """
    tokens, hidden = x.shape
    groups = -(-hidden // group)
    wide = x.float()
    if hidden % group:
        wide = torch.nn.functional.pad(wide, (0, groups * group - hidden))
    wide = wide.reshape(tokens, groups, group)
    scale = wide.abs().amax(-1, keepdim=True).div_(127).clamp_(min=_LEAST)
    out = torch.empty(tokens, packed_width(hidden, group), dtype=torch.uint8, device=x.device)
    numbers = (wide / scale).round_().view(tokens, groups * group)[:, :hidden]
    out[:, :hidden].view(torch.int8).copy_(numbers)
    out[:, hidden:].copy_(scale.view(tokens, groups).view(torch.uint8))
    return out


def unpack(packed: torch.Tensor, out: torch.Tensor, group: int) -> None:
    """What `pack` wrote, into contiguous out [T, hidden] of any float dtype."""
    tokens, hidden = out.shape
    out.copy_(packed[:, :hidden].view(torch.int8))
    scale = packed[:, hidden:].contiguous().view(torch.float32)
    if hidden % group:
        out.mul_(scale.repeat_interleave(group, 1)[:, :hidden])
    else:
        out.view(tokens, hidden // group, group).mul_(scale[..., None])
