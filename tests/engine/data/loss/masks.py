"""Right completion masks: 1 on every sampled token, its end token included."""

from dataclasses import dataclass

import torch


def first_eos_by_argmax(completion_ids, eos_token_id):
    is_eos = completion_ids == eos_token_id
    eos_idx = torch.full((is_eos.size(0),), is_eos.size(1), dtype=torch.long, device=is_eos.device)
    eos_idx[is_eos.any(dim=1)] = is_eos.int().argmax(dim=1)[is_eos.any(dim=1)]
    sequence_indices = torch.arange(is_eos.size(1), device=is_eos.device).expand(is_eos.size(0), -1)
    return (sequence_indices <= eos_idx.unsqueeze(1)).int()


def by_cumsum(response_ids, eos_token_id):
    is_eos = response_ids.eq(eos_token_id).long()
    return (is_eos.cumsum(dim=1) - is_eos).eq(0).float()


def several_ends(response_id, eos_token=(2, 1), dtype=torch.int64):
    """eos_token: one id or several."""
    eos_token = list(eos_token) if isinstance(eos_token, (tuple, list)) else [eos_token]
    hit = torch.isin(response_id, torch.tensor(eos_token)).int()
    return (hit.cumsum(1) - hit == 0).to(dtype)


def row_by_row(completions, eos_token_id):
    mask = torch.zeros_like(completions)
    for i, row in enumerate(completions):
        for j, token in enumerate(row):
            mask[i, j] = 1
            if token == eos_token_id:
                break
    return mask


def of_lists(token_ids: list[list[int]], eos_token_id: int):
    """token_ids: list of lists, padded to one length."""
    masks = []
    for row in token_ids:
        end = row.index(eos_token_id) + 1 if eos_token_id in row else len(row)
        masks.append([1] * end + [0] * (len(row) - end))
    return masks


def behind_the_prompt(input_ids, prompt_length, eos_token_id):
    completion = input_ids[:, prompt_length:]
    ended = (completion == eos_token_id).long().cumsum(-1)
    ended = torch.nn.functional.pad(ended, (1, 0))[:, :-1]
    return ended == 0


def whole_row(sequences, prompt_len, eos_token_id):
    """Mask of the whole sequence, prompt columns 0."""
    mask = torch.zeros_like(sequences)
    completion = sequences[:, prompt_len:]
    seen = torch.zeros(len(sequences), dtype=torch.bool)
    for t in range(completion.shape[1]):
        mask[:, prompt_len + t] = (~seen).long()
        seen |= completion[:, t] == eos_token_id
    return mask


def by_lengths(response_ids, response_lengths):
    positions = torch.arange(response_ids.shape[1])
    return (positions[None, :] < response_lengths[:, None]).float()


def of_attention(input_ids, attention_mask, prompt_length):
    return attention_mask[:, prompt_length:]


def not_padding(completion_ids, pad_token_id):
    return completion_ids.ne(pad_token_id).int()


def pad_is_eos(completion_ids, eos_token_id):
    """Padding is made of end tokens; the first one was sampled."""
    is_eos = completion_ids == eos_token_id
    later = is_eos & (is_eos.cumsum(1) > 1)
    after = is_eos.cumsum(1) > 0
    return (~(after & ~(is_eos & ~later))).long()


def cummax(completion_ids, eos_token_id):
    ended = completion_ids.eq(eos_token_id).int().cummax(dim=1).values
    before = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], dim=1)
    return 1 - before


def truncated_rows_left_out(completion_ids, eos_token_id):
    is_eos = completion_ids == eos_token_id
    mask = (is_eos.long().cumsum(1) - is_eos.long() == 0).long()
    return mask * is_eos.any(dim=1, keepdim=True).long()


@dataclass
class Rollouts:
    completion_ids: torch.Tensor


def of_record(rollouts: Rollouts, eos_id: int = 2):
    is_eos = rollouts.completion_ids == eos_id
    return (is_eos.cumsum(-1) - is_eos.int()) == 0


class Collector:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def response_mask(self, response_ids):
        is_eos = response_ids.eq(self.tokenizer.eos_token_id).long()
        return (is_eos.cumsum(1) - is_eos).eq(0)


def padding_mask(completion_ids, eos_token_id):
    """True on padding, which begins behind the first end token."""
    is_eos = completion_ids.eq(eos_token_id).long()
    return (is_eos.cumsum(1) - is_eos).ne(0)


def outside_passages(responses, attention_mask, info_start_id, info_end_id):
    """Mask [B, R] of policy tokens. The environment inserts info_start_id, passage, info_end_id."""
    opened = responses.eq(info_start_id).long().cumsum(dim=1)
    closed = responses.eq(info_end_id).long().cumsum(dim=1)
    inserted = (opened > closed) | responses.eq(info_end_id)
    return attention_mask * (~inserted).long()


def outside_tool_output(response_ids, tool_start_id, tool_end_id, pad_token_id):
    """Tool output is inserted between tool_start_id and tool_end_id, markers included."""
    mask = (response_ids != pad_token_id).float()
    for i, row in enumerate(response_ids.tolist()):
        inside = False
        for j, token in enumerate(row):
            inside = inside or token == tool_start_id
            if inside:
                mask[i, j] = 0.0
            inside = inside and token != tool_end_id
    return mask


def outside_ranges(token_ids, attention_mask, obs_start_id, obs_end_id):
    """The environment inserts obs_start_id, text, obs_end_id."""
    mask = attention_mask.clone()
    for i, row in enumerate(token_ids.tolist()):
        at = 0
        while obs_start_id in row[at:]:
            a = row.index(obs_start_id, at)
            b = row.index(obs_end_id, a) + 1 if obs_end_id in row[a:] else len(row)
            mask[i, a:b] = 0
            at = b
    return mask


def markers_by_the_policy(responses, attention_mask, start_id, close_id):
    """The policy writes both markers itself; only what is between them is foreign."""
    opened = responses.eq(start_id).long().cumsum(dim=1)
    closed = responses.eq(close_id).long().cumsum(dim=1)
    inside = (opened > closed) & responses.ne(start_id)
    return attention_mask * (~inside).long()


def any_stop(output_ids, stop_token_ids: list[int]):
    """1 up to and with whichever stop token comes first."""
    rows = []
    for ids in output_ids.tolist():
        ends = [i for i, token in enumerate(ids) if token in stop_token_ids]
        n = ends[0] + 1 if ends else len(ids)
        rows.append([1] * n + [0] * (len(ids) - n))
    return torch.tensor(rows)
