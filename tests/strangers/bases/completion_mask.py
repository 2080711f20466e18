"""Right masks of what the policy sampled."""

import torch

ROLE = "completion_mask"
BASES = {"by_argmax": {}, "by_cumsum": {}, "row_by_row": {}}


def by_argmax(completion_ids, eos_token_id):
    """Mask [B, T]: 1 up to and including the first end token, 0 behind it; all 1 without an end token."""
    is_eos = completion_ids == eos_token_id
    first = torch.full((is_eos.size(0),), is_eos.size(1), dtype=torch.long)
    has = is_eos.any(dim=1)
    first[has] = is_eos.int().argmax(dim=1)[has]
    positions = torch.arange(is_eos.size(1)).expand(is_eos.size(0), -1)
    return (positions <= first.unsqueeze(1)).int()


def by_cumsum(completion_ids, eos_token_id):
    """Mask [B, T]: 1 up to and including the first end token, 0 behind it."""
    ended = (completion_ids == eos_token_id).long()
    before = ended.cumsum(dim=1) - ended
    return (before == 0).float()


def row_by_row(completion_ids, eos_token_id):
    """Mask [B, T]: every sampled token counts, the first end token included; nothing behind it does."""
    mask = torch.zeros_like(completion_ids)
    for i, row in enumerate(completion_ids.tolist()):
        for t, token in enumerate(row):
            mask[i, t] = 1
            if token == eos_token_id:
                break
    return mask
