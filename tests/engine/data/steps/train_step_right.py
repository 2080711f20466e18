"""Training steps that are right, in the styles in which people write them."""

import dataclasses
import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

EXPECTED = {
    "reinforce_step": "mean over tokens",
    "PPOTrainer.train_step": "mean over tokens",
    "GRPOLearner.update": "mean over sequences",
    "token_count_step": "mean over tokens",
    "scaled_step": "mean over tokens",
    "sft_step": "mean over tokens",
    "sft_with_labels": "mean over tokens",
    "dr_grpo_step": "divided by B times the reply's width",
    "training_step": "mean over sequences",
    "loss_of_batch": "mean over tokens",
    "micro_batched": "mean over sequences",
    "autocast_step": "mean over tokens",
    "epochs_step": "mean over tokens",
    "normalised_step": "every trained token of the batch with the same weight",
    "tuple_step": "mean over tokens",
    "plain_model_step": "sum of each sequence",
    "over_micro_batches": "mean over tokens",
    "zero_after_step": "mean over tokens",
    "closure_free_loop": "mean over tokens",
    "Engine.step": "mean over sequences",
    "rewards_step": "every trained token of the batch with the same weight",
    "gspo_step": "every sequence with the same weight",
    "masked_select_step": "mean over tokens",
    "labels_step": "mean over tokens",
}


def _token_logps(model, input_ids, attention_mask):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1]
    logps = F.log_softmax(logits.float(), dim=-1)
    return logps.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def reinforce_step(model, optimizer, input_ids, attention_mask, completion_mask, advantages):
    """One REINFORCE update, mean over the trained tokens."""
    logps = _token_logps(model, input_ids, attention_mask)
    mask = completion_mask[:, 1:]
    loss = -(logps * advantages[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class PPOTrainer:
    def __init__(self, policy, lr=3e-4, clip_range=0.2, max_grad_norm=1.0):
        self.policy = policy
        self.clip_range = clip_range
        self.max_grad_norm = max_grad_norm
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)

    def train_step(self, batch):
        self.policy.train()
        ids = batch["input_ids"]
        logp = _token_logps(self.policy, ids, batch["attention_mask"])
        mask = batch["response_mask"][:, 1:]
        ratio = torch.exp(logp - batch["old_log_probs"])
        adv = batch["advantages"].unsqueeze(-1)
        unclipped = ratio * adv
        clipped = ratio.clamp(1 - self.clip_range, 1 + self.clip_range) * adv
        loss = -(torch.min(unclipped, clipped) * mask).sum() / mask.sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        grad_norm = clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": grad_norm.item(), "ratio": ratio.mean().item()}


class GRPOLearner:
    """GRPO with a reference model and accelerate."""

    def __init__(self, model, ref_model, optimizer, accelerator, beta=0.04, epsilon=0.2):
        self.model = model
        self.ref_model = ref_model
        self.optimizer = optimizer
        self.accelerator = accelerator
        self.beta = beta
        self.epsilon = epsilon

    def _logps(self, model, ids, mask, keep):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -keep - 1 : -1]
        return torch.gather(logits.log_softmax(-1), 2, ids[:, -keep:, None]).squeeze(2)

    def update(self, batch):
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        keep = batch["completion_ids"].size(1)
        logps = self._logps(self.model, ids, mask, keep)
        with torch.no_grad():
            ref_logps = self._logps(self.ref_model, ids, mask, keep)
        diff = ref_logps - logps
        kl = diff.exp() - diff - 1
        ratio = (logps - logps.detach()).exp()
        per_token = -(ratio * batch["advantages"].unsqueeze(1) - self.beta * kl)
        m = batch["completion_mask"]
        loss = ((per_token * m).sum(1) / m.sum(1)).mean()
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.detach(), "kl": (kl * m).sum() / m.sum()}


def token_count_step(model, batch, optimizer, gradient_accumulation_steps=2):
    """An update in micro-batches, the same as that of the whole batch: divided by the tokens of all of them."""
    total = batch["completion_mask"][:, 1:].sum()
    optimizer.zero_grad()
    reported = 0.0
    chunks = {k: v.chunk(gradient_accumulation_steps) for k, v in batch.items()}
    for i in range(gradient_accumulation_steps):
        mb = {k: v[i] for k, v in chunks.items()}
        logps = _token_logps(model, mb["input_ids"], mb["attention_mask"])
        loss = -(logps * mb["advantages"][:, None] * mb["completion_mask"][:, 1:]).sum() / total
        loss.backward()
        reported += loss.item()
    optimizer.step()
    return {"loss": reported}


def scaled_step(model, batch, optimizer, scaler, max_norm=1.0):
    optimizer.zero_grad()
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    loss = -(logps * batch["advantages"][:, None] * mask).sum() / mask.sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def sft_step(model, optimizer, batch):
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def sft_with_labels(model, optimizer, scheduler, input_ids, attention_mask, labels):
    model.train()
    out = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
    out.loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return {"loss": out.loss.item(), "lr": scheduler.get_last_lr()[0]}


@dataclass
class Rollout:
    tokens: torch.Tensor
    attention_mask: torch.Tensor
    action_mask: torch.Tensor
    advantages: torch.Tensor
    logprobs_old: torch.Tensor


@dataclass
class StepConfig:
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.28
    max_grad_norm: float = 1.0


def dr_grpo_step(model, rollout: Rollout, optimizer, cfg: StepConfig):
    """Dr. GRPO: a constant denominator, the batch size times the number of columns of the reply."""
    prompt = 4
    logp = _token_logps(model, rollout.tokens, rollout.attention_mask)
    ratio = (logp - rollout.logprobs_old).exp()
    adv = rollout.advantages[:, None]
    surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - cfg.clip_eps_low, 1 + cfg.clip_eps_high) * adv)
    mask = rollout.action_mask[:, 1:]
    loss = -(surrogate * mask).sum() / (mask.size(0) * (rollout.tokens.size(1) - prompt))
    optimizer.zero_grad()
    loss.backward()
    norm = clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
    optimizer.step()
    return loss.item(), norm.item()


def training_step(model, inputs):
    """As a Trainer's: differentiates and leaves the step to the loop."""
    model.train()
    logps = _token_logps(model, inputs["input_ids"], inputs["attention_mask"])
    mask = inputs["completion_mask"][:, 1:]
    loss = (-(logps * inputs["advantages"][:, None]) * mask).sum(1).div(mask.sum(1)).mean()
    loss.backward()
    return loss.detach()


def loss_of_batch(model, batch):
    """The loss of a batch; the caller differentiates it."""
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    return -(logps * batch["advantages"][:, None] * mask).sum() / mask.sum()


def micro_batched(model, optimizer, batch, micro_batch_size=4, max_grad_norm=1.0):
    n = batch["input_ids"].shape[0]
    optimizer.zero_grad()
    losses = []
    for start in range(0, n, micro_batch_size):
        mb = {k: v[start : start + micro_batch_size] for k, v in batch.items()}
        logps = _token_logps(model, mb["input_ids"], mb["attention_mask"])
        mask = mb["completion_mask"][:, 1:]
        seq = -((logps * mask).sum(-1) / mask.sum(-1)) * mb["advantages"]
        loss = seq.sum() / n
        loss.backward()
        losses.append(loss.item())
    norm = clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return {"loss": sum(losses), "grad_norm": float(norm)}


def autocast_step(model, optimizer, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    logps = logits[:, :-1].float().log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    mask = batch["completion_mask"][:, 1:]
    loss = -(logps * batch["advantages"][:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def epochs_step(model, optimizer, experience, ppo_epochs=2, num_mini_batches=1, clip_ratio=0.2):
    """Several passes over one rollout."""
    metrics = []
    for _ in range(ppo_epochs):
        logps = _token_logps(model, experience["input_ids"], experience["attention_mask"])
        ratio = (logps - experience["old_logprobs"]).exp()
        adv = experience["advantages"][:, None]
        mask = experience["completion_mask"][:, 1:]
        loss = -(torch.min(ratio * adv, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * adv) * mask).sum() / mask.sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.append(loss.item())
    return {"loss": sum(metrics) / len(metrics)}


def normalised_step(policy, optim, batch, eps=1e-8):
    adv = batch["advantages"]
    adv = (adv - adv.mean()) / (adv.std() + eps)
    logps = _token_logps(policy, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    loss = -(logps * adv[:, None] * mask).sum() / mask.sum()
    optim.zero_grad()
    loss.backward()
    optim.step()
    return dict(loss=loss.item())


def tuple_step(model, batch, optimizer):
    input_ids, attention_mask, loss_mask, advantages = batch
    logps = _token_logps(model, input_ids, attention_mask)
    mask = loss_mask[:, 1:]
    loss = -(logps * advantages[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def plain_model_step(model, optimizer, tokens, mask, advantages):
    """A model that gives logits; summed over a sequence, mean over sequences."""
    logits = model(tokens)
    logp = torch.log_softmax(logits[:, :-1], dim=-1)
    chosen = torch.gather(logp, -1, tokens[:, 1:, None])[:, :, 0]
    loss = -((chosen * mask[:, 1:]).sum(dim=1) * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": float(loss)}


def over_micro_batches(model, micro_batches, optimizer):
    """One update over a list of micro-batches, the same as one over their union."""
    n_tokens = sum(mb["completion_mask"][:, 1:].sum() for mb in micro_batches)
    optimizer.zero_grad()
    total = 0.0
    for mb in micro_batches:
        logps = _token_logps(model, mb["input_ids"], mb["attention_mask"])
        loss = -(logps * mb["advantages"][:, None] * mb["completion_mask"][:, 1:]).sum() / n_tokens
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def zero_after_step(model, optimizer, batch):
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    loss = -(logps * batch["advantages"][:, None] * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    return loss.item()


def closure_free_loop(model, optimizer, batch):
    """Row by row, the gradient added up."""
    optimizer.zero_grad()
    total = batch["completion_mask"][:, 1:].sum().clamp(min=1)
    value = 0.0
    for i in range(batch["input_ids"].size(0)):
        ids = batch["input_ids"][i : i + 1]
        logps = _token_logps(model, ids, batch["attention_mask"][i : i + 1])[0]
        m = batch["completion_mask"][i, 1:].bool()
        loss = -(logps[m] * batch["advantages"][i]).sum() / total
        loss.backward()
        value += loss.item()
    optimizer.step()
    return value


class Engine:
    def __init__(self, config, model, optimizer):
        self.config = config
        self.actor_module = model
        self.actor_optimizer = optimizer

    def step(self, data):
        accum = self.config.gradient_accumulation_steps
        micro = [{k: v for k, v in zip(data.keys(), parts)} for parts in zip(*[v.chunk(accum) for v in data.values()])]
        self.actor_optimizer.zero_grad()
        for mb in micro:
            logps = _token_logps(self.actor_module, mb["input_ids"], mb["attention_mask"])
            mask = mb["response_mask"][:, 1:]
            loss = -((logps * mask).sum(1) / mask.sum(1) * mb["advantages"]).mean()
            (loss / accum).backward()
        norm = clip_grad_norm_(self.actor_module.parameters(), max_norm=self.config.grad_clip)
        if not torch.isfinite(norm):
            self.actor_optimizer.zero_grad()
            return {"grad_norm": float("nan")}
        self.actor_optimizer.step()
        return {"grad_norm": norm.item()}


def rewards_step(model, optimizer, batch):
    """REINFORCE with the batch mean as baseline."""
    advantages = batch["rewards"] - batch["rewards"].mean()
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    loss = -(logps * advantages[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def gspo_step(model, batch, optimizer, clip_eps=3e-4):
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:]
    log_ratio = ((logps - batch["old_logprobs"]) * mask).sum(1) / mask.sum(1)
    ratio = log_ratio.exp()
    adv = batch["advantages"]
    loss = -torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def masked_select_step(model, batch, optimizer):
    logps = _token_logps(model, batch["input_ids"], batch["attention_mask"])
    mask = batch["completion_mask"][:, 1:].bool()
    weights = batch["advantages"][:, None].expand_as(logps)
    loss = -(logps[mask] * weights[mask]).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item(), "tokens": int(mask.sum())}


def labels_step(model, optimizer, batch):
    """Policy gradient on the tokens that have a label."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    nll = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    loss = (nll * batch["advantages"][:, None]).sum() / (labels != -100).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
