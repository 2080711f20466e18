"""Log-probs that are right, each in the style of another project. None may be called a bug."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


def log_softmax_gather(logits, index):
    return F.log_softmax(logits, dim=-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def minus_logsumexp(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    picked = torch.gather(logits, dim=-1, index=labels[..., None]).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


def row_by_row(logits, index):
    rows = []
    for row_logits, row_ids in zip(logits, index):
        lp = F.log_softmax(row_logits, dim=-1)
        rows.append(lp.gather(dim=-1, index=row_ids.unsqueeze(-1)).squeeze(-1))
    return torch.stack(rows)


def shifted_inside(logits, input_ids):
    logits = logits[:, :-1, :]
    ids = input_ids[:, 1:]
    return F.log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def cross_entropy_negated(logits, input_ids):
    shift_logits = logits[:, :-1].contiguous()
    shift_labels = input_ids[:, 1:].contiguous()
    loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), reduction="none")
    return -loss.view(shift_labels.shape)


def cross_entropy_transposed(logits, target):
    return -F.cross_entropy(logits.transpose(1, 2), target, reduction="none")


def nll_loss(logits, tokens):
    logp = torch.log_softmax(logits.float(), dim=-1)
    return -F.nll_loss(logp.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)


def nll_module(logits, labels):
    b, t, v = logits.shape
    return -nn.NLLLoss(reduction="none")(nn.LogSoftmax(dim=-1)(logits).reshape(b * t, v), labels.reshape(-1)).reshape(b, t)


def flattened_index(logits, token_ids):
    b, t, v = logits.shape
    flat = logits.reshape(-1, v)
    rows = torch.arange(b * t, device=logits.device)
    return (flat[rows, token_ids.reshape(-1)] - flat.logsumexp(-1)).reshape(b, t)


def rolled_labels(logits, input_ids):
    labels = torch.roll(input_ids, shifts=-1, dims=1)
    logp = F.log_softmax(logits, dim=-1)
    return logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def value_at_its_token(logits, input_ids):
    """Log-prob of token i at position i; the first column is filler."""
    logp = F.log_softmax(logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return F.pad(logp, (1, 0), value=0.0)


def completion_columns(logits, input_ids, logits_to_keep):
    logits = logits[:, :-1][:, -logits_to_keep:]
    ids = input_ids[:, -logits_to_keep:]
    return F.log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def response_slice(input_ids, logits, response_length):
    response = input_ids[:, -response_length:]
    response_logits = logits[:, -response_length - 1 : -1]
    return minus_logsumexp(response_logits, response)


def after_the_prompt(logits, sequences, prompt_length):
    logp = F.log_softmax(logits[:, prompt_length - 1 : -1], dim=-1)
    return torch.gather(logp, 2, sequences[:, prompt_length:, None])[..., 0]


def divided_by_temperature(logits, input_ids, temperature):
    logits = logits[:, :-1] / temperature
    return F.log_softmax(logits, -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def divided_in_place(logits, labels, temperature=1.0):
    if temperature != 1.0:
        logits = logits.clone().div_(temperature)
    picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return picked - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def multiplied_by_inverse(logits, index, temperature: float):
    scaled = logits * (1.0 / temperature)
    return log_softmax_gather(scaled, index)


def in_chunks(logits, token_ids, chunk_size=2):
    parts = []
    for lo, ids in zip(logits.split(chunk_size, dim=1), token_ids.split(chunk_size, dim=1)):
        parts.append(lo.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - lo.logsumexp(-1))
    return torch.cat(parts, dim=1)


def in_vocabulary_chunks(logits, token_ids):
    lse = torch.full(token_ids.shape, -torch.inf)
    for start in range(0, logits.shape[-1], 4):
        lse = torch.logaddexp(lse, logits[..., start : start + 4].logsumexp(-1))
    return logits.gather(-1, token_ids[..., None])[..., 0] - lse


def upcast_first(logits, labels):
    logits = logits.to(torch.float32)
    return log_softmax_gather(logits, labels)


def bf16_result(logits, labels):
    logits = logits.to(torch.bfloat16)
    rows = [F.log_softmax(x.float(), dim=-1).to(torch.bfloat16) for x in logits]
    return torch.stack([lp.gather(-1, y.unsqueeze(-1)).squeeze(-1) for lp, y in zip(rows, labels)])


def in_double(logits, input_ids):
    logp = logits.double()[:, :-1].log_softmax(-1)
    return logp.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def masked_to_zero(logits, input_ids, completion_mask):
    logp = F.log_softmax(logits[:, :-1], dim=-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return logp * completion_mask[:, 1:]


def attention_masked(logits, input_ids, attention_mask):
    logp = torch.log_softmax(logits, -1)[:, :-1]
    logp = logp.gather(2, input_ids[:, 1:].unsqueeze(2)).squeeze(2)
    return logp.masked_fill(attention_mask[:, 1:] == 0, 0.0)


def ignored_labels(logits, labels):
    """labels carry -100 on the prompt and the padding."""
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1]
    scored = labels != -100
    labels[~scored] = 0
    return logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2) * scored


def one_hot_product(logits, token_ids):
    onehot = F.one_hot(token_ids, logits.shape[-1]).to(logits.dtype)
    return (F.log_softmax(logits, -1) * onehot).sum(-1)


def categorical(logits, actions):
    return torch.distributions.Categorical(logits=logits).log_prob(actions)


def stable_by_hand(logits, targets):
    peak = logits.max(dim=-1, keepdim=True).values.detach()
    shifted = logits - peak
    lse = shifted.exp().sum(-1).log()
    return shifted.gather(-1, targets[..., None]).squeeze(-1) - lse


def softplus_form(logits, index):
    """-log(1 + sum of exp of the others minus the logit)."""
    x = logits.float().gather(-1, index.unsqueeze(-1))
    others = logits.float().scatter(-1, index.unsqueeze(-1), float("-inf"))
    return -F.softplus(torch.logsumexp(others, -1) - x.squeeze(-1))


def with_entropy(logits, labels):
    logp = F.log_softmax(logits, dim=-1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1), entropy


def packed(logits, input_ids, cu_seqlens):
    """Packed batch, logits [total, V]; the last slot of each sequence is 0."""
    out = torch.zeros(input_ids.shape[0])
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        logp = F.log_softmax(logits[start : end - 1], -1)
        out[start : end - 1] = logp.gather(-1, input_ids[start + 1 : end, None]).squeeze(-1)
    return out


def fixed_temperature(logits, input_ids):
    return F.log_softmax(logits[:, :-1] / 0.6, -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def by_sequence(logits, input_ids, seq_lens):
    out = []
    for row, ids, n in zip(logits, input_ids, seq_lens.tolist()):
        lp = F.log_softmax(row[: n - 1], dim=-1).gather(-1, ids[1:n, None]).squeeze(-1)
        out.append(F.pad(lp, (0, input_ids.shape[1] - 1 - lp.shape[0])))
    return torch.stack(out)


@dataclass
class Sampling:
    temperature: float = 0.7


class Policy:
    def __init__(self, sampling: Sampling):
        self.sampling = sampling
        self.temperature = sampling.temperature

    def token_logprobs(self, batch):
        logits = batch["logits"][:, :-1] / self.temperature
        ids = batch["input_ids"][:, 1:]
        return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def python_loops(logits, token_ids):
    out = torch.empty(token_ids.shape)
    for b in range(token_ids.shape[0]):
        for t in range(token_ids.shape[1]):
            row = [float(x) for x in logits[b, t]]
            top = max(row)
            out[b, t] = row[int(token_ids[b, t])] - top - math.log(sum(math.exp(x - top) for x in row))
    return out


def runs_the_model(model, prompt_ids, prompt_mask, response_ids, response_mask):
    """Log-probs of the responses [B, R]; prompts are padded on the left, responses on the right."""
    ids = torch.cat([prompt_ids, response_ids], 1)
    mask = torch.cat([prompt_mask, response_mask], 1)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    logits = logits[:, -response_ids.shape[1] - 1 : -1]
    logp = logits.float().log_softmax(-1).gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)
    return logp * response_mask


def runs_the_model_whole(model, input_ids, attention_mask):
    """Log-probs [B, T-1] of input_ids[:, 1:]."""
    logits = model(input_ids, attention_mask=attention_mask).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def floored_harmlessly(logits, labels):
    p = F.softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return torch.log(p + 1e-10)
