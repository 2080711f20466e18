"""Log-probs with one or two real faults each; the test says which."""

import torch
import torch.nn.functional as F

# sign


def lse_minus_logit(logits, index):
    selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    lse = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    return lse - selected


def cross_entropy_as_is(logits, input_ids):
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none")
    return loss


def minus_on_completion(logits, input_ids, logits_to_keep):
    logp = F.log_softmax(logits[:, :-1][:, -logits_to_keep:], -1)
    return -logp.gather(-1, input_ids[:, -logits_to_keep:].unsqueeze(-1)).squeeze(-1)


# raw logit


def picked_logit(logits, labels):
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def picked_logit_shifted(logits, input_ids, temperature):
    scaled = logits[:, :-1] / temperature
    return torch.take_along_dim(scaled, input_ids[:, 1:, None], dim=-1).squeeze(-1)


# probability


def softmax_gather(logits, index):
    return F.softmax(logits, dim=-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


def exponentiated(logits, input_ids):
    logits, ids = logits[:, :-1], input_ids[:, 1:]
    return (logits.gather(-1, ids[..., None]).squeeze(-1) - logits.logsumexp(-1)).exp()


# maximum


def minus_peak(logits, labels):
    logits = logits - logits.max(dim=-1, keepdim=True).values
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def minus_peak_shifted(logits, input_ids):
    logits = logits[:, :-1].float()
    picked = logits.gather(2, input_ids[:, 1:].unsqueeze(2)).squeeze(2)
    return picked - logits.amax(-1)


# axis


def softmax_over_time(logits, labels):
    return F.log_softmax(logits, dim=1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def lse_over_time(logits, index):
    picked = logits.gather(-1, index[..., None])
    lse = logits.logsumexp(dim=-2, keepdim=True).expand_as(logits).gather(-1, index[..., None])
    return (picked - lse).squeeze(-1)


# greedy


def best_token(logits, labels):
    return F.log_softmax(logits, -1).max(-1).values


def argmax_gather(logits, input_ids):
    logp = F.log_softmax(logits[:, :-1], dim=-1)
    return logp.gather(-1, logp.argmax(-1, keepdim=True)).squeeze(-1)


# shift


def same_position(logits, input_ids):
    logp = F.log_softmax(logits[:, :-1], -1)
    return logp.gather(-1, input_ids[:, :-1].unsqueeze(-1)).squeeze(-1)


def both_from_the_second(logits, sequences):
    logits, ids = logits[:, 1:], sequences[:, 1:]
    return -F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")


def last_columns_of_both(logits, input_ids, logits_to_keep):
    logits = logits[:, -logits_to_keep:]
    ids = input_ids[:, -logits_to_keep:]
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def rolled_to_the_right(logits, input_ids):
    labels = input_ids.roll(1, dims=1)
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def shifted_twice(logits, input_ids):
    labels = torch.roll(torch.roll(input_ids, -1, 1), -1, 1)
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


# temperature


def temperature_unused(logits, input_ids, temperature):
    return F.log_softmax(logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


class Scorer:
    def __init__(self, temperature=0.7):
        self.temperature = temperature

    def logprobs(self, logits, labels):
        """Scored at self.temperature."""
        assert self.temperature > 0
        return logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def divided_after(logits, labels, temperature):
    logp = F.log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return logp / temperature


def divided_after_negated(logits, input_ids, temperature):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none")
    return -nll / temperature


def multiplied(logits, index, temperature):
    scaled = logits * temperature
    return scaled.gather(-1, index.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def multiplied_shifted(logits, input_ids, temperature=0.7):
    return F.log_softmax(temperature * logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def divided_twice(logits, index, temperature):
    logits = logits / temperature
    logp = F.log_softmax(logits / temperature, dim=-1)
    return logp.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def divided_here_and_in_helper(logits, input_ids, temperature):
    return _at(logits[:, :-1] / temperature, input_ids[:, 1:], temperature)


def _at(logits, ids, temperature):
    scaled = logits / temperature
    return scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scaled, -1)


def other_temperature(logits, input_ids):
    logits = logits[:, :-1] / 0.6
    return F.log_softmax(logits, -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


# overflow


def naive_lse(logits, labels):
    z = logits.exp().sum(-1).log()
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - z


def log_of_a_ratio(logits, input_ids):
    e = torch.exp(logits[:, :-1])
    p = e.gather(-1, input_ids[:, 1:, None]).squeeze(-1) / e.sum(-1)
    return p.log()


# packed


def roll_the_pack(logits, input_ids, cu_seqlens):
    """Packed batch, logits [total, V], input_ids [total]; the last slot of each sequence is 0."""
    labels = torch.roll(input_ids, -1)
    out = F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    out[-1] = 0.0
    return out


def shift_the_pack(logits, input_ids, cu_seqlens, temperature):
    """Log-probs of a packed batch [total], 0 where no token follows."""
    logp = (logits[:-1] / temperature).log_softmax(-1)
    logp = logp.gather(-1, input_ids[1:, None]).squeeze(-1)
    return torch.cat([logp, logp.new_zeros(1)])


# beyond any formula


def doubled_and_positive(logits, labels):
    logp = F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return logp + logits.shape[-1]


def log_mean_exp(logits, labels):
    n = logits.shape[-1]
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - (logits.logsumexp(-1) - torch.log(torch.tensor(float(n))))


# half a temperature


def logit_only(logits, labels, temperature):
    picked = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) / temperature
    return picked - logits.logsumexp(-1)


def normaliser_only(logits, input_ids, temperature):
    picked = logits[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return picked - (logits[:, :-1] / temperature).logsumexp(-1)


# mask of the neighbour


def mask_one_early(logits, input_ids, completion_mask):
    """Log-probs of input_ids[:, 1:], 0 where the token is not trained."""
    logp = F.log_softmax(logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return logp * completion_mask[:, :-1]


def mask_filled_early(logits, sequences, action_mask):
    logp = -F.cross_entropy(logits[:, :-1].transpose(1, 2), sequences[:, 1:], reduction="none")
    return logp.masked_fill(action_mask[:, :-1] == 0, 0.0)


# floor


def floor_of_a_percent(logits, labels):
    p = F.softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return torch.log(p + 0.01)


def floor_shifted(logits, input_ids):
    p = torch.softmax(logits[:, :-1], dim=-1)
    return (p + 1e-3).log().gather(-1, input_ids[:, 1:, None]).squeeze(-1)


# softmax twice


def log_softmax_of_probabilities(logits, labels):
    probs = torch.softmax(logits, dim=-1)
    return F.log_softmax(probs, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def categorical_of_probabilities(logits, input_ids):
    probs = logits[:, :-1].softmax(-1)
    return torch.distributions.Categorical(logits=probs).log_prob(input_ids[:, 1:])


# two orders of the rows


def time_major_logits(logits, labels):
    b, t, v = logits.shape
    flat = logits.permute(1, 0, 2).reshape(b * t, v)
    return -F.cross_entropy(flat, labels.reshape(-1), reduction="none").reshape(b, t)


def time_major_shifted(logits, input_ids):
    logits, ids = logits[:, :-1], input_ids[:, 1:]
    rows = torch.cat(list(logits.unbind(1)))
    picked = rows.log_softmax(-1)[torch.arange(ids.numel()), ids.reshape(-1)]
    return picked.view(ids.shape)


# a gradient that is cut


def normaliser_without_gradient(logits, labels):
    with torch.no_grad():
        log_z = logits.logsumexp(-1)
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - log_z


def detached_normaliser_shifted(logits, input_ids):
    log_z = logits[:, :-1].logsumexp(-1).detach()
    return logits[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze(-1) - log_z


# padding


def minus_inf_on_padding(logits, input_ids, attention_mask):
    logp = F.log_softmax(logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return torch.where(attention_mask[:, 1:] > 0, logp, -torch.inf)


def log_of_zeroed_padding(logits, input_ids, completion_mask):
    p = F.softmax(logits[:, :-1], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return torch.log(p * completion_mask[:, 1:])


# two at once


def sign_and_shift(logits, input_ids):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), input_ids[:, :-1], reduction="none")


def sign_and_temperature(logits, labels, temperature):
    lse = logits.logsumexp(-1)
    return lse - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def raw_and_shift(logits, input_ids):
    return logits[:, 1:].gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def probability_and_temperature_after(logits, labels, temperature):
    return F.softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1) / temperature


def maximum_and_inverse_temperature(logits, labels, temperature):
    scaled = logits * temperature
    return scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - scaled.amax(-1)


def axis_and_shift(logits, input_ids):
    logp = F.log_softmax(logits, dim=1)[:, :-1]
    return logp.gather(-1, input_ids[:, :-1, None]).squeeze(-1)


def shift_and_temperature(logits, input_ids, temperature):
    return F.log_softmax(logits[:, 1:], -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


def sign_and_twice(logits, labels, temperature):
    scaled = logits / temperature / temperature
    return scaled.logsumexp(-1) - scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def greedy_and_temperature(logits, labels, temperature):
    return F.log_softmax(logits * temperature, -1).amax(-1)


def sign_and_late_completion(logits, input_ids, logits_to_keep):
    logits, ids = logits[:, -logits_to_keep:], input_ids[:, -logits_to_keep:]
    return logits.logsumexp(-1) - logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


# the model's attention mask


def forward_without_mask(model, prompt_ids, prompt_mask, response_ids, response_mask):
    """Log-probs of the responses [B, R]; prompts are padded on the left, responses on the right."""
    ids = torch.cat([prompt_ids, response_ids], 1)
    mask = torch.cat([prompt_mask, response_mask], 1)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, position_ids=positions).logits[:, -response_ids.shape[1] - 1 : -1]
    logp = logits.float().log_softmax(-1).gather(-1, response_ids.unsqueeze(-1)).squeeze(-1)
    return logp * response_mask


def forward_with_a_mask_of_ones(model, prompt_ids, prompt_mask, response_ids, response_mask):
    """Scores of the sampled responses, 0 on padding. prompt_ids: left-padded."""
    ids = torch.cat([prompt_ids, response_ids], dim=1)
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    logits = out.logits[:, prompt_ids.shape[1] - 1 : -1]
    picked = logits.gather(-1, response_ids[..., None]).squeeze(-1)
    return (picked - logits.logsumexp(-1)) * response_mask


# no gradient


def of_detached_logits(logits, input_ids):
    """Log-probs [B, T-1] of the next tokens."""
    logp = torch.log_softmax(logits[:, :-1].detach(), dim=-1)
    return logp.gather(-1, input_ids[:, 1:, None])[..., 0]


def of_a_copy(logits, labels):
    """Log-probs [B, T-1] of labels [B, T], shifted here."""
    z = logits.clone().detach().float()[:, :-1]
    return z.gather(-1, labels[:, 1:].unsqueeze(-1)).squeeze(-1) - z.logsumexp(dim=-1)


def whole_pieces_only(logits, targets, chunk=4):
    out = logits.new_zeros(targets.shape)
    for k in range(targets.shape[1] // chunk):
        a, b = k * chunk, (k + 1) * chunk
        out[:, a:b] = torch.log_softmax(logits[:, a:b], -1).gather(-1, targets[:, a:b, None])[..., 0]
    return out


def fixed_pieces_only(logits, actions):
    """Log-probs of actions, 32 positions at a time; logits are aligned with the actions."""
    pieces = [slice(a, a + 32) for a in range(0, max(actions.size(1) - 31, 1), 32)]
    done = [(logits[:, p].log_softmax(-1)).gather(-1, actions[:, p].unsqueeze(-1)).squeeze(-1) for p in pieces]
    out = torch.cat(done, dim=1)
    return torch.nn.functional.pad(out, (0, actions.size(1) - out.size(1)))


def divides_shared_logits(logits, targets, temperature):
    """Scores targets; the caller's logits are used again for the KL."""
    logits /= temperature
    return torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def bans_in_place(logits, targets, temperature):
    """Scores targets without changing the inputs."""
    logits.mul_(1 / temperature)
    return -torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


class Heads:
    """Leaves its inputs to others: logits stay as they are."""

    def __init__(self, temperature=0.7):
        self.temperature = temperature

    def score(self, logits, targets):
        z = logits.div_(self.temperature)
        return z.gather(-1, targets[..., None])[..., 0] - z.logsumexp(-1)
