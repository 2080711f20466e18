"""Measures of spread that are no listed bug. None may be called a bug."""

import torch


def normalised(logits):
    return torch.special.entr(logits.softmax(-1)).sum(-1) / torch.tensor(float(logits.shape[-1])).log()


def renyi_2(logits):
    return -logits.softmax(-1).square().sum(-1).log()


def gini(logits):
    return 1.0 - logits.softmax(-1).square().sum(-1)


def perplexity(logits):
    return torch.special.entr(logits.softmax(-1)).sum(-1).exp()


def of_the_top_5(logits):
    return torch.special.entr(logits.topk(5, -1).values.softmax(-1)).sum(-1)


def min_entropy(logits):
    return -logits.log_softmax(-1).amax(-1)
