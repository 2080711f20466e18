"""Supervised losses with real faults; `EXPECTED` says which."""

import torch
import torch.nn.functional as F

EXPECTED = {
    "not_shifted": "SFTL-NO-SHIFT",
    "not_shifted_hf": "SFTL-NO-SHIFT",
    "wrong_side": "SFTL-SHIFT-REVERSED",
    "wrong_side_masked": "SFTL-SHIFT-REVERSED",
    "shifted_twice": "SFTL-SHIFT-TWICE",
    "shifts_targets": "SFTL-SHIFT-TWICE",
    "transposed_view": "SFTL-FLATTEN-ORDER",
    "time_first": "SFTL-FLATTEN-ORDER",
    "over_time": "SFTL-AXIS",
    "over_time_logsumexp": "SFTL-AXIS",
    "softmax_first": "SFTL-DOUBLE-SOFTMAX",
    "probabilities_as_logits": "SFTL-DOUBLE-SOFTMAX",
    "likelihood": "SFTL-SIGN",
    "likelihood_of_logprobs": "SFTL-SIGN",
    "clamped_and_trained": "SFTL-IGNORED-TRAINED",
    "prompt_trained": "SFTL-IGNORED-TRAINED",
    "mask_forgotten": "SFTL-IGNORED-TRAINED",
    "mask_not_shifted": "SFTL-MASK-SHIFT",
    "validity_of_the_last_token": "SFTL-MASK-SHIFT",
    "weights_not_shifted": "SFTL-MASK-SHIFT",
    "mask_inverted": "SFTL-MASK-INVERTED",
    "mask_as_padding": "SFTL-MASK-INVERTED",
    "mean_over_all": "SFTL-PADDED-DENOMINATOR",
    "over_the_batch": "SFTL-PADDED-DENOMINATOR",
    "count_unused": "SFTL-COUNT-IGNORED",
    "count_twice": "SFTL-COUNT-IGNORED",
    "dft_differentiated": "SFTL-WEIGHT-DIFFERENTIATED",
    "chord_differentiated": "SFTL-WEIGHT-DIFFERENTIATED",
    "smoothing_everywhere": "SFTL-SMOOTHS-IGNORED",
    "smoothing_padding": "SFTL-SMOOTHS-IGNORED",
    "sequence_mean": "SFTL-AGGREGATION",
    "summed": "SFTL-AGGREGATION",
    "reversed_and_padded": "SFTL-PADDED-DENOMINATOR SFTL-SHIFT-REVERSED",
    "softmax_and_all": "SFTL-DOUBLE-SOFTMAX SFTL-PADDED-DENOMINATOR",
}


def not_shifted(logits, labels):
    """Next-token cross-entropy; labels are the input ids with -100 on the prompt."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def not_shifted_hf(model, input_ids, attention_mask, labels):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    logp = logits.log_softmax(-1)
    keep = labels != -100
    return -logp.gather(-1, labels.clamp(min=0)[..., None])[..., 0][keep].mean()


def wrong_side(logits, labels):
    return F.cross_entropy(logits[:, 1:].transpose(1, 2), labels[:, :-1])


def wrong_side_masked(logits, input_ids, loss_mask):
    logp = logits[:, 1:].log_softmax(-1).gather(-1, input_ids[:, :-1].unsqueeze(-1)).squeeze(-1)
    mask = loss_mask[:, :-1]
    return -(logp * mask).sum() / mask.sum()


def shifted_twice(logits, labels):
    logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])


def shifts_targets(logits, targets):
    """targets are already shifted: targets[t] belongs to logits[t]."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:])


def transposed_view(logits, labels):
    z = logits[:, :-1].transpose(0, 1).reshape(-1, logits.size(-1))
    return F.cross_entropy(z, labels[:, 1:].reshape(-1))


def time_first(logits, labels):
    z = torch.stack(list(logits[:, :-1].unbind(1))).flatten(0, 1)
    y = labels[:, 1:].flatten()
    keep = y != -100
    return -z[keep].log_softmax(-1).gather(1, y[keep].unsqueeze(1)).mean()


def over_time(logits, labels):
    logp = F.log_softmax(logits, dim=1)[:, :-1]
    y = labels[:, 1:]
    keep = y.ne(-100)
    return -logp.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)[keep].mean()


def over_time_logsumexp(logits, labels):
    y = labels[:, 1:].clamp(min=0)[..., None]
    nll = (logits.logsumexp(1, keepdim=True) - logits)[:, :-1].gather(-1, y).squeeze(-1)
    keep = (labels[:, 1:] != -100).float()
    return (nll * keep).sum() / keep.sum()


def softmax_first(logits, labels):
    return F.cross_entropy(logits.softmax(-1)[:, :-1].transpose(1, 2), labels[:, 1:])


def probabilities_as_logits(logits, labels):
    probs = torch.softmax(logits[..., :-1, :], dim=-1)
    loss_fn = torch.nn.CrossEntropyLoss()
    return loss_fn(probs.reshape(-1, probs.size(-1)), labels[..., 1:].reshape(-1))


def likelihood(logits, labels):
    y = labels[:, 1:]
    keep = y != -100
    logp = logits[:, :-1].log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (logp * keep).sum() / keep.sum()


def likelihood_of_logprobs(per_token_logps, loss_mask):
    return (per_token_logps * loss_mask).sum() / loss_mask.sum()


def clamped_and_trained(logits, labels):
    y = labels[:, 1:].clamp(min=0)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), y)


def prompt_trained(logits, labels):
    y = labels[:, 1:].masked_fill(labels[:, 1:] == -100, 0)
    return -logits[:, :-1].log_softmax(-1).gather(-1, y[..., None]).mean()


def mask_forgotten(logits, input_ids, loss_mask):
    """loss_mask is 1 on the tokens of the answer."""
    logp = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return -logp.sum() / loss_mask[:, 1:].sum()


def mask_not_shifted(logits, input_ids, loss_mask):
    logp = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    mask = loss_mask[:, :-1].float()
    return -(logp * mask).sum() / mask.sum()


def validity_of_the_last_token(logits, labels):
    y = labels[:, 1:]
    valid = (labels[:, :-1] != -100).float()
    nll = -logits[:, :-1].log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (nll * valid).sum() / valid.sum()


def weights_not_shifted(logits, labels, loss_weights):
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    return (nll * loss_weights[:, :-1]).sum() / (y != -100).sum()


def mask_inverted(logits, input_ids, loss_mask):
    """loss_mask is 1 on the tokens of the answer."""
    y = input_ids.masked_fill(loss_mask.bool(), -100)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), y[:, 1:])


def mask_as_padding(logits, input_ids, completion_mask):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none")
    keep = 1 - completion_mask[:, 1:].float()
    return (nll * keep).sum() / keep.sum()


def mean_over_all(logits, labels):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean()


def over_the_batch(logits, labels):
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return nll / labels.numel()


def count_unused(logits, labels, num_items_in_batch=None):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])


def count_twice(logits, labels, num_items_in_batch):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]) / num_items_in_batch


def dft_differentiated(logits, labels):
    """Dynamic fine-tuning."""
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    return (torch.exp(-nll) * nll).sum() / (y != -100).sum()


def chord_differentiated(logits, labels):
    """The weight p(1-p) only scales the gradient."""
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    p = torch.exp(-nll)
    return (p * (1 - p) * nll)[y != -100].mean()


def smoothing_everywhere(logits, labels, epsilon=0.1):
    logp = -F.log_softmax(logits[:, :-1], dim=-1)
    y = labels[:, 1:]
    keep = y != -100
    nll = logp.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1) * keep
    return ((1 - epsilon) * nll.sum() + epsilon * logp.mean(-1).sum()) / keep.sum()


def smoothing_padding(logits, labels, label_smoothing=0.1):
    z, y = logits[:, :-1], labels[:, 1:]
    n = (y != -100).sum()
    nll = F.cross_entropy(z.transpose(1, 2), y, reduction="sum") / n
    flat = -z.log_softmax(-1).mean(-1).sum() / n
    return (1 - label_smoothing) * nll + label_smoothing * flat


def sequence_mean(logits, labels):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return (nll.sum(-1) / (labels[:, 1:] != -100).sum(-1)).mean()


def summed(logits, labels):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return nll.sum(-1).mean()


def reversed_and_padded(logits, labels):
    return F.cross_entropy(logits[:, 1:].transpose(1, 2), labels[:, :-1], reduction="none").mean()


def softmax_and_all(logits, labels):
    return F.cross_entropy(logits.softmax(-1)[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean()
