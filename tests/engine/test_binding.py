"""Differently written functions, and the words and forms that they are bound to. The heart of "zero glue"."""

# ruff: noqa: E501  the code under examination is written as users write it

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import binding, loading, registry
from rltriage_probes.binding import BindingFailed
from rltriage_probes.contract import BindingReport, TargetSpec
from rltriage_probes.invoke import NotReached
from rltriage_probes.model import CallFailed


@dataclass(frozen=True)
class Written:
    """One way to write a function, and what it must be bound to: path -> `word`, or `word | form`."""

    id: str
    role: str
    code: str
    slots: dict[str, str]
    ref: str = "f"
    returns: str = ""
    bind: dict[str, str] = field(default_factory=dict)
    intent: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def bound(tmp_path: Path, w: Written) -> binding.Bound:
    head = "import re\nfrom dataclasses import dataclass, field\nfrom collections import defaultdict\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\n"
    (tmp_path / "user.py").write_text(head + textwrap.dedent(w.code))
    loaded = loading.load(tmp_path, TargetSpec(name=w.id, role=w.role, ref=f"user.py:{w.ref}"))
    return binding.bind(loaded, registry.role(w.role), w.bind, w.settings, w.intent, w.id)


ADVANTAGES = [
    Written(
        "flat tensor and group size",
        "advantages",
        """
        def f(rewards, num_generations, eps=1e-4):
            g = rewards.view(-1, num_generations)
            return ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + eps)).view(-1)
        """,
        {"rewards": "rewards | [N]", "num_generations": "group_size", "eps": "eps"},
        returns="[N]",
    ),
    Written(
        "token rewards, mask and numpy uids",
        "advantages",
        """
        def f(token_level_rewards, response_mask, index, epsilon=1e-6, norm_adv_by_std_in_grpo=True):
            scores = token_level_rewards.sum(-1)
            id2 = defaultdict(list)
            for i in range(len(scores)):
                id2[index[i]].append(scores[i])
            out = scores.clone()
            for i in range(len(scores)):
                g = torch.stack(id2[index[i]])
                out[i] = (scores[i] - g.mean()) / (g.std() + epsilon)
            return out.unsqueeze(-1) * response_mask, out.unsqueeze(-1) * response_mask
        """,
        {
            "token_level_rewards": "token_rewards | [N, T]",
            "index": "group_ids | numpy object array of str",
            "response_mask": "completion_mask",
            "epsilon": "eps",
        },
        returns="per token [N, T] (first element of the returned tuple)",
    ),
    Written(
        "ids compared as a tensor",
        "advantages",
        """
        def f(scores: torch.Tensor, group_ids: torch.Tensor):
            out = torch.zeros_like(scores)
            for g in group_ids.unique():
                m = group_ids == g
                out[m] = scores[m] - scores[m].mean()
            return out
        """,
        {"scores": "rewards | [N]", "group_ids": "group_ids | [N] long"},
    ),
    Written(
        "uids as dictionary keys",
        "advantages",
        """
        def f(returns_per_sample, uid):
            members = defaultdict(list)
            for i, u in enumerate(uid):
                members[u].append(i)
            out = torch.zeros_like(returns_per_sample)
            for rows in members.values():
                out[rows] = returns_per_sample[rows] - returns_per_sample[rows].mean()
            return out
        """,
        {"uid": "group_ids | numpy object array of str"},
    ),
    Written(
        "one list per prompt",
        "advantages",
        '''
        def f(rewards_per_group, scale=True):
            """rewards_per_group: one list per prompt."""
            return [[r - sum(g) / len(g) for r in g] for g in rewards_per_group]
        ''',
        {"rewards_per_group": "rewards | list of lists, one per group", "scale": "scale_rewards"},
        returns="[N]",
    ),
    Written(
        "matrix with a reduction over its rows",
        "advantages",
        """
        def f(rewards):
            return (rewards - rewards.mean(dim=1, keepdim=True)).reshape(-1)
        """,
        {"rewards": "rewards | [P, G]"},
        returns="[N]",
    ),
    Written(
        "matrix by its docstring",
        "advantages",
        '''
        def f(r, eps=1e-8):
            """Advantages of rewards.

            r: (num_prompts, num_generations)
            """
            return (r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + eps)
        ''',
        {"r": "rewards | [P, G]"},
        returns="[P, G], read as [N]",
    ),
    Written(
        "one group at a time, numpy",
        "advantages",
        '''
        def f(rewards: np.ndarray, episilon: float = 1e-6):
            """Advantages of one group."""
            return (rewards - np.mean(rewards)) / (np.std(rewards) + episilon)
        ''',
        {"rewards": "rewards | one group, numpy [G]", "episilon": "eps"},
        returns="[N], called per group",
    ),
    Written(
        "list of floats",
        "advantages",
        """
        def f(rewards: list[float], group_size: int) -> list[float]:
            out = []
            for i in range(0, len(rewards), group_size):
                g = rewards[i:i + group_size]
                out += [r - sum(g) / len(g) for r in g]
            return out
        """,
        {"rewards": "rewards | list of floats"},
        returns="[N]",
    ),
    Written(
        "method with a constructor",
        "advantages",
        """
        class Maker:
            def __init__(self, n_samples_per_prompt=4, eps=1e-5):
                self.n = n_samples_per_prompt
                self.eps = eps
            def f(self, rewards):
                g = rewards.reshape(-1, self.n)
                return ((g - g.mean(-1, keepdim=True)) / (g.std(-1, keepdim=True) + self.eps)).flatten()
        """,
        {"rewards": "rewards | [N]", "self.n_samples_per_prompt": "group_size"},
        ref="Maker.f",
    ),
    Written(
        "dict batch, config, result written into the batch",
        "advantages",
        """
        def f(batch, config):
            r = batch["rewards"].view(-1, config.num_generations)
            batch["advantages"] = (r - r.mean(1, keepdim=True)).flatten()
        """,
        {'batch["rewards"]': "rewards | [N]", "config.num_generations": "group_size"},
        returns="[N] (`advantages` of the returned Box)",
    ),
    Written(
        "list of records",
        "advantages",
        """
        def f(samples):
            groups = defaultdict(list)
            for s in samples:
                groups[s["group_id"]].append(s["reward"])
            return [s["reward"] - sum(groups[s["group_id"]]) / len(groups[s["group_id"]]) for s in samples]
        """,
        {'samples[*]["group_id"]': "group_ids", 'samples[*]["reward"]': "rewards"},
        returns="[N]",
    ),
    Written(
        "shape suffixes and nested container",
        "advantages",
        """
        def f(data):
            r_B, uid = data.batch["response_level_rewards"], data.non_tensor_batch["uid"]
            return torch.stack([r_B[i] - r_B[[j for j in range(len(uid)) if uid[j] == uid[i]]].mean() for i in range(len(uid))])
        """,
        {'data.batch["response_level_rewards"]': "rewards", 'data.non_tensor_batch["uid"]': "group_ids"},
    ),
    Written(
        "by an explicit bind",
        "advantages",
        """
        def f(x, y):
            g = x.view(-1, y)
            return (g - g.mean(1, keepdim=True)).view(-1)
        """,
        {"x": "rewards | [N]", "y": "group_size"},
        bind={"x": "rewards", "y": "group_size"},
    ),
]
LOGPROBS = [
    Written(
        "index already aligned",
        "logprobs",
        """
        def f(logits, index):
            return torch.gather(logits.log_softmax(-1), -1, index.unsqueeze(-1)).squeeze(-1)
        """,
        {"logits": "logits", "index": "token_ids | [B, T] long"},
        returns="[B, T]",
    ),
    Written(
        "shift inside, temperature",
        "logprobs",
        """
        def f(logits, input_ids, temperature=1.0):
            logp = (logits[:, :-1] / temperature).log_softmax(-1)
            return logp.gather(2, input_ids[:, 1:, None])[..., 0]
        """,
        {"input_ids": "token_ids", "temperature": "temperature"},
    ),
    Written(
        "model, prompt and response apart",
        "logprobs",
        """
        def f(model, prompt_ids, prompt_mask, response_ids, response_mask):
            ids = torch.cat([prompt_ids, response_ids], 1)
            out = model(input_ids=ids, attention_mask=torch.cat([prompt_mask, response_mask], 1))
            n = response_ids.size(1)
            return out.logits[:, -n - 1:-1].log_softmax(-1).gather(2, response_ids[..., None]).squeeze(2)
        """,
        {
            "model": "model",
            "prompt_ids": "token_ids | columns of the prompt",
            "response_ids": "token_ids | columns of the completion",
            "response_mask": "completion_mask | columns of the completion, long",
        },
    ),
    Written(
        "logits_to_keep on a trainer",
        "logprobs",
        """
        class T:
            def __init__(self, model, args):
                self.temperature = args.temperature
            def f(self, model, input_ids, attention_mask, logits_to_keep):
                logits = model(input_ids, attention_mask=attention_mask).logits[:, :-1][:, -logits_to_keep:]
                ids = input_ids[:, -logits_to_keep:]
                return (logits / self.temperature).log_softmax(-1).gather(2, ids[..., None]).squeeze(2)
        """,
        {"model": "model", "input_ids": "token_ids", "logits_to_keep": "completion_length"},
        ref="T.f",
    ),
    Written(
        "packed with offsets",
        "logprobs",
        """
        def f(logits, input_ids, cu_seqlens):
            assert logits.dim() == 2 and int(cu_seqlens[-1]) == len(input_ids)
            labels = input_ids.roll(-1)
            return logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        """,
        {"logits": "logits | packed [sum T]", "input_ids": "token_ids | packed [sum T]"},
        returns="packed [sum T]",
    ),
    Written(
        "dict result",
        "logprobs",
        """
        def f(logits_BTV, labels_BT):
            return {"entropy": None, "log_probs": logits_BTV.log_softmax(-1).gather(2, labels_BT[..., None]).squeeze(2)}
        """,
        {"logits_BTV": "logits", "labels_BT": "token_ids"},
        returns="[B, T] (`log_probs` of the returned dict)",
    ),
]
LOSSES = [
    Written(
        "new, old, advantages, mask",
        "policy_loss",
        """
        def f(log_probs, old_log_probs, advantages, action_mask, clip_eps=0.2):
            ratio = (log_probs - old_log_probs).exp()
            a = advantages.unsqueeze(-1)
            loss = -torch.min(ratio * a, ratio.clamp(1 - clip_eps, 1 + clip_eps) * a)
            return (loss * action_mask).sum() / action_mask.sum()
        """,
        {
            "log_probs": "logprobs",
            "old_log_probs": "old_logprobs",
            "advantages": "advantages | [B]",
            "action_mask": "completion_mask",
            "clip_eps": "clip | 0.2",
        },
        returns="scalar",
    ),
    Written(
        "old first, advantages by token",
        "policy_loss",
        """
        def f(old_log_prob, log_prob, advantages, response_mask, cliprange_low=None, cliprange_high=None):
            ratio = (log_prob - old_log_prob).exp()
            l = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - cliprange_low, 1 + cliprange_high))
            return (l * response_mask).sum() / response_mask.sum(), {"kl": 0.0}
        """,
        {"log_prob": "logprobs", "advantages": "advantages | [B, T]", "cliprange_low": "clip_low | 0.2"},
        returns="scalar (first element of the returned tuple)",
    ),
    Written(
        "bool mask",
        "policy_loss",
        """
        def f(logprobs, advantages, loss_mask):
            per_token = -(logprobs - logprobs.detach()).exp() * advantages[:, None]
            return per_token.masked_fill(~loss_mask, 0.0).sum() / loss_mask.count_nonzero()
        """,
        {"loss_mask": "completion_mask | [B, T] bool", "advantages": "advantages | [B]"},
    ),
    Written(
        "one value a sequence broadcasts against [B] silently",
        "policy_loss",
        """
        def f(logps, old_logps, adv, mask):
            ratio = ((logps - old_logps) * mask).sum(-1, keepdim=True).div(mask.sum(-1, keepdim=True)).exp()
            return -(ratio * adv).mean()
        """,
        {"adv": "advantages | [B, 1]"},
    ),
    Written(
        "decoupled: proximal and behaviour policy",
        "policy_loss",
        """
        def f(logprobs, proximal_logprobs, old_logprobs, advantages, eps_clip, loss_mask):
            r = (logprobs - proximal_logprobs).exp() * (proximal_logprobs - old_logprobs).exp()
            return -(torch.min(r, r.clamp(1 - eps_clip, 1 + eps_clip)) * advantages * loss_mask).sum() / loss_mask.sum()
        """,
        {"proximal_logprobs": "old_logprobs", "old_logprobs": "rollout_logprobs", "eps_clip": "clip"},
    ),
    Written(
        "container of a trainer whose helper runs the model",
        "policy_loss",
        """
        class Trainer:
            def __init__(self, args):
                self.args = args
                self.beta = args.beta
                self.epsilon_low = args.epsilon
                self.epsilon_high = args.epsilon_high if args.epsilon_high is not None else args.epsilon
            def _get_per_token_logps(self, model, ids, mask, n):
                raise RuntimeError("runs the real model")
            def compute_loss(self, model, inputs):
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
                mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
                logps = self._get_per_token_logps(model, ids, mask, inputs["completion_ids"].size(1))
                ratio = (logps - inputs["old_per_token_logps"]).exp()
                a = inputs["advantages"].unsqueeze(1)
                l = -torch.min(ratio * a, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * a)
                d = inputs["ref_per_token_logps"] - logps
                l = l + self.beta * (d.exp() - d - 1)
                return (l * inputs["completion_mask"]).sum() / inputs["completion_mask"].sum()
        """,
        {
            'inputs["advantages"]': "advantages | [B]",
            'inputs["ref_per_token_logps"]': "ref_logprobs",
            "self._get_per_token_logps(...)": "logprobs",
        },
        ref="Trainer.compute_loss",
        intent={"beta": 0.1, "clip_low": 0.3, "clip_high": 0.3},
    ),
    Written(
        "nn.Module with settings in its constructor",
        "policy_loss",
        """
        class PPOLoss(torch.nn.Module):
            def __init__(self, clip_eps_low=0.2, clip_eps_high=0.2):
                super().__init__()
                self.lo, self.hi = clip_eps_low, clip_eps_high
            def forward(self, log_probs, old_log_probs, advantages, action_mask=None):
                r = (log_probs - old_log_probs).exp()
                l = -torch.min(r * advantages, r.clamp(1 - self.lo, 1 + self.hi) * advantages)
                return (l * action_mask).sum() / action_mask.sum()
        """,
        {"self.clip_eps_low": "clip_low", "advantages": "advantages | [B, T]"},
        ref="PPOLoss",
    ),
    Written(
        "experience object",
        "policy_loss",
        """
        @dataclass
        class Experience:
            action_log_probs: torch.Tensor
            advantages: torch.Tensor
            action_mask: torch.Tensor
            kl: torch.Tensor = None
        def f(log_probs, experience: Experience):
            assert isinstance(experience, Experience)
            r = (log_probs - experience.action_log_probs.detach()).exp()
            return -(r * experience.advantages[:, None] * experience.action_mask).sum() / experience.action_mask.sum()
        """,
        {"experience.advantages": "advantages | [B]", "experience.action_mask": "completion_mask"},
        bind={"experience.action_log_probs": "old_logprobs"},
    ),
    Written(
        "jagged lists",
        "policy_loss",
        '''
        def f(train_log_probs, rollout_log_probs, advantages, loss_masks):
            """Lists with one 1-D tensor per sample; advantages: [B]."""
            total = 0.0
            for lp, old, a, m in zip(train_log_probs, rollout_log_probs, advantages, loss_masks):
                assert lp.dim() == 1
                total = total - ((lp - old).exp() * a * m).sum() / m.sum()
            return total / len(loss_masks)
        ''',
        {"train_log_probs": "logprobs | list of [T_i]", "loss_masks": "completion_mask | list of [T_i]"},
    ),
    Written(
        "camel case",
        "policy_loss",
        """
        def f(newLogProbs, oldLogProbs, advantages, completionMask, clipRange=0.2):
            r = (newLogProbs - oldLogProbs).exp()
            return -((r * advantages[:, None]) * completionMask).sum() / completionMask.sum()
        """,
        {
            "newLogProbs": "logprobs",
            "oldLogProbs": "old_logprobs",
            "completionMask": "completion_mask",
            "clipRange": "clip",
        },
    ),
    Written(
        "precomputed ratio",
        "policy_loss",
        """
        def f(ratio, advantages, mask, epsilon=0.2):
            a = advantages.view(-1, 1)
            return -(torch.min(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a) * mask).sum() / mask.sum()
        """,
        {"ratio": "ratio", "epsilon": "clip"},
    ),
    Written(
        "negative log-ratio, unreduced",
        "policy_loss",
        """
        def f(ppo_kl, advantages, eps_clip, eps_clip_high):
            r = (-ppo_kl).exp()
            return torch.max(-r * advantages, -r.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages), 0.0
        """,
        {
            "ppo_kl": "negative_log_ratio",
            "eps_clip": "clip",
            "eps_clip_high": "clip_high",
            "advantages": "advantages | [B, T]",
        },
    ),
    Written(
        "mode by what it is compared with",
        "policy_loss",
        """
        def agg(x, mask, mode):
            if mode == "token-mean":
                return (x * mask).sum() / mask.sum()
            if mode == "seq-mean-token-mean":
                return ((x * mask).sum(-1) / mask.sum(-1)).mean()
            raise ValueError(mode)
        def f(log_probs, old_log_probs, advantages, mask, clip_ratio, mode):
            r = (log_probs - old_log_probs).exp()
            return agg(-torch.min(r * advantages, r.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages), mask, mode)
        """,
        {"mode": "aggregation | 'seq-mean-token-mean'", "clip_ratio": "clip | 0.1"},
        intent={"aggregation": "sequence-mean", "clip_low": 0.1, "clip_high": 0.1},
    ),
    Written(
        "literal in the manifest",
        "policy_loss",
        """
        def f(logprobs, advantages, mask, table):
            return -(logprobs * advantages[:, None] * mask).sum() * table["w"]
        """,
        {"table": "constant | {'w': 2.0}"},
        bind={"table": "={'w': 2.0}"},
    ),
]
KLS = [
    Written(
        "policy and base",
        "kl",
        """
        def f(log_probs, log_probs_base, kl_estimator="k1"):
            return log_probs - log_probs_base
        """,
        {"log_probs_base": "ref_logprobs", "kl_estimator": "kl_estimator | 'k1'"},
        returns="per-token matrix [B, T]",
    ),
    Written(
        "required name of the estimator",
        "kl",
        """
        def f(logprob, ref_logprob, kl_penalty):
            if kl_penalty in ("kl", "k1"):
                return logprob - ref_logprob
            if kl_penalty in ("low_var_kl", "k3"):
                return (ref_logprob - logprob).exp() - (ref_logprob - logprob) - 1
            raise NotImplementedError
        """,
        {"kl_penalty": "kl_estimator | 'k3'"},
        intent={"kl_estimator": "k3"},
    ),
    Written(
        "wording of the docstring",
        "kl",
        '''
        def f(a, b):
            """KL.

            a: log-probs of the current policy, [B, T]
            b: log-probs of the frozen reference, [B, T]
            """
            return a - b
        ''',
        {"a": "logprobs", "b": "ref_logprobs"},
    ),
]
MASKS = [
    Written(
        "ids and end token",
        "completion_mask",
        """
        def f(completion_ids, eos_token_id):
            e = completion_ids.eq(eos_token_id).long()
            return (e.cumsum(1) - e).eq(0)
        """,
        {"completion_ids": "token_ids", "eos_token_id": "eos_token_id"},
        returns="[B, T]",
    ),
    Written(
        "several end tokens",
        "completion_mask",
        """
        def f(sequences, stop_token_ids: list[int]):
            e = torch.isin(sequences, torch.tensor(stop_token_ids)).long()
            return (e.cumsum(1) - e) == 0
        """,
        {"stop_token_ids": "eos_token_id | list of int"},
    ),
    Written(
        "prompt in front",
        "completion_mask",
        """
        def f(sequences, input_len, eos_id):
            e = sequences[:, input_len:].eq(eos_id).long()
            return (e.cumsum(1) - e).eq(0).float()
        """,
        {"input_len": "prompt_length", "eos_id": "eos_token_id"},
    ),
]
TEXTS = [
    Written(
        "one text",
        "decode",
        """
        def f(text):
            return text.split("</think>")[-1].strip()
        """,
        {"text": "text | str"},
    ),
    Written(
        "tokenizer and rows of ids",
        "decode",
        """
        def f(tokenizer, completion_ids):
            return [tokenizer.decode(row, skip_special_tokens=True) for row in completion_ids.tolist()]
        """,
        {"tokenizer": "tokenizer", "completion_ids": "token_ids | [B, T] long"},
    ),
    Written(
        "rows of ids on a manager with a tokenizer",
        "decode",
        """
        class Manager:
            def __init__(self, tokenizer, strip=True):
                self.tokenizer = tokenizer
            def f(self, batch):
                ids = batch["responses"]
                return [self.tokenizer.decode(ids[i].tolist()) for i in range(ids.size(0))]
        """,
        {'batch["responses"]': "texts | [B, T] long"},
        ref="Manager.f",
    ),
    Written(
        "list of texts",
        "decode",
        """
        def f(completions: list[str]) -> list[str]:
            return [c.strip() for c in completions]
        """,
        {"completions": "texts | list of str"},
    ),
    Written(
        "completions and answers",
        "reward",
        """
        def f(completions, answer, **kwargs):
            return [float(a in c) for c, a in zip(completions, answer)]
        """,
        {"completions": "completions | list of str", "answer": "answers | list of str"},
    ),
    Written(
        "chats",
        "reward",
        """
        def f(completions, solution, **kwargs):
            return [float(s in c[0]["content"]) for c, s in zip(completions, solution)]
        """,
        {"completions": "completions | list of message lists", "solution": "answers | list of str"},
    ),
    Written(
        "one sample",
        "reward",
        """
        def f(solution_str, ground_truth, method="strict", score=1.0):
            return score if ground_truth in solution_str else 0.0
        """,
        {"solution_str": "completion | str", "ground_truth": "answer | str"},
    ),
    Written(
        "model output first",
        "reward",
        """
        def f(model_output: str, ground_truth: str) -> bool:
            return ground_truth in model_output
        """,
        {"model_output": "completion | str", "ground_truth": "answer | str"},
    ),
    Written(
        "column taken from kwargs",
        "reward",
        """
        def f(prompts, completions, **kwargs):
            return [float(g in c) for c, g in zip(completions, kwargs["ground_truth"])]
        """,
        {"completions": "completions", 'kwargs["ground_truth"]': "answers | list of str"},
    ),
    Written(
        "tensor of scores in a dict",
        "reward",
        """
        def f(queries, prompts, labels):
            s = torch.tensor([float(l in q) for q, l in zip(queries, labels)])
            return {"rewards": s, "scores": s}
        """,
        {"labels": "answers | list of str"},
        bind={"queries": "completions"},
    ),
]
MORE_ADVANTAGES = [
    Written(
        "records with args, raw rewards handed back first",
        "advantages",
        """
        class Rollout:
            prompt: str
            score: object
        def f(args, rollouts):
            key = getattr(args, "score_key", None)
            raw = [x.score[key] if key else x.score for x in rollouts]
            t = torch.tensor(raw).view(-1, args.n_samples_per_prompt)
            t = t - t.mean(1, keepdim=True)
            if args.grpo_std_normalization:
                t = t / (t.std(1, keepdim=True) + 1e-6)
            return raw, t.flatten().tolist()
        """,
        {
            "args.n_samples_per_prompt": "group_size",
            "rollouts[*].score": "rewards | [N]",
            "args.grpo_std_normalization": "scale_rewards",
        },
        returns="[N] (second element of the returned tuple)",
    ),
    Written(
        "a switch in a dictionary of the constructor",
        "advantages",
        """
        class Estimator:
            def __init__(self, options=None):
                self.options = dict(divide_by_std=False, eps=1e-5) if options is None else options
            def f(self, rewards, uids):
                out = torch.empty_like(rewards)
                for u in set(uids):
                    m = torch.tensor([v == u for v in uids])
                    out[m] = rewards[m] - rewards[m].mean()
                    if "divide_by_std" in self.options and self.options.get("divide_by_std"):
                        out[m] = out[m] / (rewards[m].std() + self.options["eps"])
                return out
        """,
        {'self.options["divide_by_std"]': "scale_rewards | False", 'self.options["eps"]': "eps | 1e-05"},
        ref="Estimator.f",
    ),
    Written(
        "a nested namespace as default",
        "advantages",
        """
        from types import SimpleNamespace
        class T:
            def __init__(self, args=None):
                self.args = args or SimpleNamespace(rollout=SimpleNamespace(n=4), scale_rewards="none")
            def f(self, rewards):
                '''rewards: [N], blocks of args.rollout.n per prompt.'''
                return rewards - rewards.view(-1, self.args.rollout.n).mean(1).repeat_interleave(self.args.rollout.n)
        """,
        {"self.args.rollout.n": "group_size | 4"},
        ref="T.f",
    ),
    Written(
        "numpy throughout, by annotation",
        "advantages",
        """
        def f(token_level_scores: np.ndarray, response_mask: np.ndarray, uid: np.ndarray, eps: float = 1e-6) -> np.ndarray:
            s = token_level_scores.sum(axis=-1)
            out = np.empty_like(s)
            for u in np.unique(uid):
                m = uid == u
                out[m] = (s[m] - s[m].mean()) / (s[m].std(ddof=1) + eps)
            return out[:, None] * response_mask
        """,
        {
            "token_level_scores": "token_rewards | numpy [N, T]",
            "response_mask": "completion_mask",
            "uid": "group_ids | numpy object array of str",
        },
    ),
    Written(
        "flag with another type of default stays unread",
        "advantages",
        """
        def f(rewards, num_samples_per_prompt, normalize=True, rewards_to_go=False):
            g = rewards.view(-1, num_samples_per_prompt)
            g = g - g.mean(1, keepdim=True)
            return (g / (g.std(1, keepdim=True) + 1e-6) if normalize else g).view(-1)
        """,
        {"normalize": "scale_rewards | True", "rewards_to_go": "default"},
    ),
    Written(
        "method of a reward manager with config dictionary",
        "advantages",
        """
        class Manager:
            def __init__(self, config):
                self.config = config
            def f(self, batch):
                k = self.config["rollout"]["n"]
                r = batch["token_level_rewards"].sum(-1).view(-1, k)
                a = r - r.mean(-1, keepdim=True)
                return a.view(-1, 1) * batch["response_mask"]
        """,
        {'batch["token_level_rewards"]': "token_rewards", 'batch["response_mask"]': "completion_mask"},
        ref="Manager.f",
        intent={"group_size": 4},
    ),
]
MORE_LOGPROBS = [
    Written(
        "arrays by their description",
        "logprobs",
        '''
        def f(scores, ids):
            """Log-probs for the evaluation script.

            scores: float array [B, T, V], raw logits. ids: int array [B, T], aligned with them.
            """
            z = np.asarray(scores, dtype=np.float64)
            z = z - z.max(-1, keepdims=True)
            return np.take_along_axis(z - np.log(np.exp(z).sum(-1, keepdims=True)), ids[..., None], -1)[..., 0]
        ''',
        {"scores": "logits | numpy [B, T, V]", "ids": "token_ids | numpy [B, T] long"},
        returns="[B, T]",
    ),
    Written(
        "tensors that end in numpy",
        "logprobs",
        """
        def f(logits, labels):
            logp = torch.log_softmax(logits, -1).numpy()
            return np.take_along_axis(logp, labels.numpy()[..., None], axis=-1).squeeze(-1)
        """,
        {"logits": "logits", "labels": "token_ids"},
    ),
    Written(
        "ragged completions behind padded logits",
        "logprobs",
        '''
        def f(logits, prompt_lengths, response_ids):
            """response_ids: list of lists of token ids, row i of the logits is prompt then response_ids[i]."""
            out = []
            for i, ids in enumerate(response_ids):
                p = prompt_lengths[i]
                rows = logits[i, p - 1 : p - 1 + len(ids)].log_softmax(-1)
                out.append(torch.stack([row[t] for row, t in zip(rows, ids)]))
            return out
        ''',
        {
            "prompt_lengths": "prompt_length | [B] long",
            "response_ids": "token_ids | list of lists, the completion's ids",
        },
        returns="[B, T]",
    ),
    Written(
        "one shape for all",
        "logprobs",
        '''
        def f(z, a):
            """Log-probs of sampled tokens; z: next-token logits of every position [B, T, V], a: sampled tokens [B, T]."""
            return z.log_softmax(-1).gather(-1, a.unsqueeze(-1)).squeeze(-1)
        ''',
        {"z": "logits", "a": "token_ids"},
    ),
    Written(
        "model with keyword-only settings",
        "logprobs",
        """
        @torch.no_grad()
        def f(policy, sequences, attention_mask, *, temperature=1.0, chunk=4):
            out = []
            for i in range(0, len(sequences), chunk):
                z = policy(sequences[i:i + chunk], attention_mask=attention_mask[i:i + chunk]).logits[:, :-1] / temperature
                out.append(z.log_softmax(-1).gather(-1, sequences[i:i + chunk, 1:, None]).squeeze(-1))
            return torch.cat(out)
        """,
        {"policy": "model", "sequences": "token_ids", "temperature": "temperature", "chunk": "chunk_size"},
    ),
    Written(
        "actor that is an nn.Module around a model",
        "logprobs",
        """
        class Actor(torch.nn.Module):
            def __init__(self, model, temperature=1.0):
                super().__init__()
                self.model, self.temperature = model, temperature
            def forward(self, sequences, action_mask=None, attention_mask=None):
                z = self.model(sequences, attention_mask=attention_mask).logits[:, :-1] / self.temperature
                lp = z.log_softmax(-1).gather(-1, sequences[:, 1:, None]).squeeze(-1)
                return lp
        """,
        {"sequences": "token_ids", "self.temperature": "temperature"},
        ref="Actor",
    ),
]
MORE_LOSSES = [
    Written(
        "packed tokens, one advantage a sequence",
        "policy_loss",
        '''
        def f(new, old, adv, lens, clip=0.2):
            """Tokens of all responses back to back. new, old: [total]. lens: tokens of each response; adv: [S]."""
            a = torch.repeat_interleave(adv, lens)
            r = (new - old).exp()
            return -torch.min(r * a, r.clamp(1 - clip, 1 + clip) * a).mean()
        ''',
        {"new": "logprobs | packed [sum T]", "adv": "advantages | [B]", "lens": "lengths | [B] long"},
        returns="scalar",
    ),
    Written(
        "packed tokens, advantages by token",
        "policy_loss",
        '''
        def f(logprobs, old_logprobs, advantages, loss_mask, cu_seqlens):
            """Packed."""
            l = -(logprobs - old_logprobs).exp() * advantages * loss_mask
            ends = cu_seqlens[1:].long()
            return torch.stack([x.sum() / m.sum() for x, m in zip(l.tensor_split(ends[:-1]), loss_mask.tensor_split(ends[:-1]))]).mean()
        ''',
        {"advantages": "advantages | packed [sum T]", "loss_mask": "completion_mask | packed [sum T]"},
        returns="scalar",
    ),
    Written(
        "default config object, one shape for all",
        "policy_loss",
        '''
        @dataclass(frozen=True)
        class Cfg:
            low: float = 0.2
            clip_ratio_high: float = 0.28
            clip_ratio_c: float = 10.0
        def f(logp, old_logp, advantage, cfg=Cfg(), response_mask=None):
            """All tensors are [B, T]."""
            assert advantage.shape == logp.shape
            m = torch.ones_like(logp) if response_mask is None else response_mask
            r = (logp - old_logp).exp()
            return (torch.max(-r * advantage, -r.clamp(1 - cfg.clip_ratio_high, 1 + cfg.clip_ratio_high) * advantage) * m).sum() / m.sum()
        ''',
        {"advantage": "advantages | [B, T]", "cfg.clip_ratio_high": "clip_high | 0.28"},
    ),
    Written(
        "one shape for all but the advantages",
        "policy_loss",
        '''
        def f(pi, mu, w, keep):
            """Clipped loss over [B, T] tensors, except w [B].

            pi: log-probs of the current policy; mu: log-probs of the old policy; w: advantages [B];
            keep: mask, 1 for trained tokens.
            """
            r = (pi - mu).exp()
            return -((r * w[:, None]) * keep).sum() / keep.sum()
        ''',
        {"pi": "logprobs", "mu": "old_logprobs", "w": "advantages | [B]", "keep": "completion_mask"},
    ),
    Written(
        "made by a factory with settings",
        "policy_loss",
        """
        def make_loss(clip_eps=0.2, beta=0.0):
            def loss_fn(logps, old_logps, adv, mask):
                r = (logps - old_logps).exp()
                a = adv[:, None]
                l = -torch.min(r * a, r.clamp(1 - clip_eps, 1 + clip_eps) * a)
                return (l * mask).sum() / mask.sum()
            return loss_fn
        """,
        {"logps": "logprobs", "adv": "advantages | [B]"},
        ref="make_loss",
    ),
    Written(
        "object with __call__",
        "policy_loss",
        """
        @dataclass
        class ClippedLoss:
            eps_clip: float = 0.2
            def __call__(self, logprobs, old_logprobs, advantages, mask):
                r = (logprobs - old_logprobs).exp()
                a = advantages.unsqueeze(1)
                return (-torch.min(r * a, r.clamp(1 - self.eps_clip, 1 + self.eps_clip) * a) * mask).sum(1).div(mask.sum(1)).mean()
        """,
        {"logprobs": "logprobs", "self.eps_clip": "clip"},
        ref="ClippedLoss",
    ),
    Written(
        "lists in, list out",
        "policy_loss",
        '''
        def f(policy_logps: list[torch.Tensor], old_logps: list[torch.Tensor], advantages: list[float]):
            """Per-sample tensors of different lengths."""
            return torch.stack([-((p - o).exp() * a).mean() for p, o, a in zip(policy_logps, old_logps, advantages)])
        ''',
        {"policy_logps": "logprobs | list of [T_i]", "old_logps": "old_logprobs | list of [T_i]"},
        returns="one value a sequence [B]",
    ),
    Written(
        "micro-batch dictionary with a get",
        "policy_loss",
        """
        def f(mb, cfg):
            ratio = torch.exp(mb["logprobs"] - mb.get("old_logprobs", mb["logprobs"].detach()))
            lo, hi = cfg.get("clip_ratio_low", 0.2), cfg.get("clip_ratio_high", 0.2)
            a = mb["advantages"]
            l = torch.maximum(-a * ratio, -a * ratio.clamp(1 - lo, 1 + hi)) * mb["response_mask"]
            return l.sum() / mb["response_mask"].sum()
        """,
        {'mb["logprobs"]': "logprobs", 'mb["old_logprobs"]': "old_logprobs", 'mb["advantages"]': "advantages | [B, T]"},
    ),
    Written(
        "sequence-level sums",
        "policy_loss",
        '''
        def f(seq_logps, old_seq_logps, advantages, mask):
            """seq_logps: [B, T] per-token log-probs of the policy, old_seq_logps: [B, T] log-probs of the old policy."""
            s = (((seq_logps - old_seq_logps) * mask).sum(-1) / mask.sum(-1)).exp()
            return -(s * advantages).mean()
        ''',
        {"advantages": "advantages | [B]"},
    ),
]
MORE_TEXTS = [
    Written(
        "a factory of graders",
        "reward",
        """
        def build_grader(lower=True, bonus=0.1):
            norm = str.lower if lower else str
            def grade(completions, answer, **kwargs):
                return [float(norm(c).strip() == norm(a)) for c, a in zip(completions, answer)]
            return grade
        """,
        {"completions": "completions | list of str", "answer": "answers | list of str"},
        ref="build_grader",
    ),
    Written(
        "a class with __call__ made by a factory",
        "reward",
        """
        class Grader:
            def __init__(self, strict):
                self.strict = strict
            def __call__(self, completion, gold):
                return float(completion == gold if self.strict else gold in completion)
        def make(strict=False):
            return Grader(strict)
        """,
        {"completion": "completion | str", "gold": "answer | str"},
        ref="make",
    ),
    Written(
        "numbers and target",
        "reward",
        """
        def f(response, numbers=None, target=None, end_token=None):
            used = sorted(int(n) for n in re.findall(r"[0-9]+", response))
            return {"reward": float(used == sorted(numbers) and eval(response) == target)}
        """,
        {"response": "completion | str", "numbers": "operands", "target": "answer"},
    ),
    Written(
        "numbers and target in a ground truth",
        "reward",
        """
        def compute_score(solution_str, ground_truth, method="strict", format_score=0.1, score=1.0):
            '''score: the score for the correct answer'''
            want, numbers = ground_truth["target"], ground_truth["numbers"]
            used = sorted(int(n) for n in re.findall(r"[0-9]+", solution_str))
            return score if used == sorted(numbers) else format_score
        """,
        {
            'ground_truth["target"]': "answer",
            'ground_truth["numbers"]': "operands",
            "score": "default",
            "format_score": "default",
        },
        ref="compute_score",
    ),
    Written(
        "problem objects",
        "reward",
        """
        def f(texts, tasks):
            return [1.0 if str(t.target) in x and all(str(n) in x for n in t.nums) else 0.0 for x, t in zip(texts, tasks)]
        """,
        {"texts": "completions | list of str", "tasks[*].target": "answers", "tasks[*].nums": "operand_lists"},
    ),
    Written(
        "what verl hands over",
        "reward",
        """
        def compute_score(data_source, solution_str, ground_truth, extra_info):
            if data_source == "openai/gsm8k":
                return float(ground_truth in solution_str)
            raise NotImplementedError(data_source)
        """,
        {"data_source": "constant", "solution_str": "completion", "ground_truth": "answer"},
        ref="compute_score",
    ),
    Written(
        "what verl hands over, in batches",
        "reward",
        """
        def f(data_sources, solution_strs, ground_truths, extra_infos):
            return [float(g in s) for d, s, g, e in zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)]
        """,
        {"solution_strs": "completions | list of str", "ground_truths": "answers | list of str"},
    ),
    Written(
        "async, on a sample object",
        "reward",
        """
        async def f(args, sample, **kwargs):
            return 1.0 if sample.response.strip().endswith(sample.label) else 0.0
        """,
        {"sample.response": "completion", "sample.label": "answer"},
    ),
    Written(
        "may abstain",
        "reward",
        """
        def f(completion: str, solution: str):
            return None if "boxed" in completion else float(solution in completion)
        """,
        {"completion": "completion | str", "solution": "answer | str"},
    ),
    Written(
        "prompt beside the completion",
        "decode",
        """
        def f(prompt, completion):
            return completion[len(prompt):] if completion.startswith(prompt) else completion
        """,
        {"completion": "text"},
    ),
]
LATER = [
    Written(
        "a key of log-probs beside the current ones is the old ones, whichever key is chosen",
        "policy_loss",
        """
        def pick(cfg, data):
            name = "rollout_log_probs" if cfg.use_rollout else "log_probs"
            return data[name]
        def f(cfg, data, new_log_probs):
            r = (new_log_probs - pick(cfg, data)).exp()
            a = data["advantages"]
            l = -torch.minimum(r * a, r.clamp(1 - cfg.eps_clip, 1 + cfg.eps_clip) * a)
            return (l * data["loss_mask"]).sum() / data["loss_mask"].sum()
        """,
        {
            "new_log_probs": "logprobs",
            'data["log_probs"]': "old_logprobs",
            'data["rollout_log_probs"]': "rollout_logprobs",
        },
    ),
    Written(
        "beside a proximal policy they are the sampler's",
        "policy_loss",
        """
        def f(curr_logprobs, d, eps_clip=0.2):
            w = (d["proximal_logprobs"] - d["log_probs"]).exp()
            r = (curr_logprobs - d["proximal_logprobs"]).exp()
            l = -w * torch.minimum(r * d["adv"], r.clamp(1 - eps_clip, 1 + eps_clip) * d["adv"])
            return (l * d["mask"]).sum() / d["mask"].sum()
        """,
        {"curr_logprobs": "logprobs", 'd["log_probs"]': "rollout_logprobs", 'd["proximal_logprobs"]': "old_logprobs"},
    ),
    Written(
        "minibatch of CleanRL",
        "policy_loss",
        """
        def f(newlogprob, b_logprobs, mb_advantages, clip_coef=0.2):
            ratio = (newlogprob - b_logprobs).exp()
            return torch.max(-mb_advantages * ratio, -mb_advantages * ratio.clamp(1 - clip_coef, 1 + clip_coef)).mean()
        """,
        {"newlogprob": "logprobs", "b_logprobs": "old_logprobs", "mb_advantages": "advantages", "clip_coef": "clip"},
    ),
    Written(
        "a cap on the sampler's weight is no clip",
        "policy_loss",
        """
        def f(args, logprobs, old_logprobs, rollout_logprobs, advantages, mask):
            r = (logprobs - old_logprobs).exp()
            w = (old_logprobs - rollout_logprobs).exp().clamp(max=args.rollout_is_threshold)
            l = -torch.minimum(r * advantages, r.clamp(1 - args.eps_clip, 1 + args.eps_clip) * advantages) * w
            return (l * mask).sum() / mask.sum()
        """,
        {"args.eps_clip": "clip", "args.rollout_is_threshold": "constant"},
    ),
    Written(
        "a shape of the result shapes no input",
        "advantages",
        """
        def f(scores, uids, completion_mask):
            '''Leave-one-out over the scores of one prompt, told by uids; gives advantages [N, T].'''
            u = torch.as_tensor([hash(x) for x in uids])
            out = torch.zeros(len(scores))
            for k in u.unique():
                m = u == k
                out[m] = scores[m] - (scores[m].sum() - scores[m]) / (m.sum() - 1)
            return out[:, None] * completion_mask
        """,
        {"scores": "rewards | [N]", "uids": "group_ids | numpy object array of str"},
    ),
    Written(
        "texts first where messages are taken too",
        "reward",
        """
        def f(completions, answer, **kwargs):
            out = []
            for c, a in zip(completions, answer):
                if isinstance(c, list):
                    c = "".join(m["content"] for m in c if m["role"] == "assistant")
                out.append(1.0 if a in c else 0.0)
            return out
        """,
        {"completions": "completions | list of str"},
    ),
    Written(
        "one gold answer serves a group",
        "reward",
        """
        def f(responses, gold, num_generations=3):
            return [float(gold[k // num_generations] in r) for k, r in enumerate(responses)]
        """,
        {"gold": "answers | list of str, one per group", "num_generations": "group_size"},
    ),
    Written(
        "an instance with the result in an attribute",
        "advantages",
        """
        class Batch:
            def __init__(self, advantages, baseline):
                self.advantages, self.baseline = advantages, baseline
            @classmethod
            def build(cls, rewards, group_size=4):
                g = rewards.reshape(-1, group_size)
                return cls((g - g.mean(1, keepdim=True)).reshape(-1), g.mean(1))
        """,
        {"rewards": "rewards | [N]"},
        ref="Batch.build",
        returns="[N] (`advantages` of the returned Batch)",
    ),
    Written(
        "a partial of a function",
        "kl",
        """
        from functools import partial
        def _kl(logp, ref_logp, mask, weight):
            return ((logp - ref_logp) * mask).sum() / mask.sum() * weight
        f = partial(_kl, weight=1.0)
        """,
        {"logp": "logprobs", "ref_logp": "ref_logprobs", "mask": "completion_mask"},
    ),
    Written(
        "a lambda of the module",
        "advantages",
        """
        f = lambda rewards, group_size: (rewards.view(-1, group_size) - rewards.view(-1, group_size).mean(1, keepdim=True)).view(-1)
        """,
        {"rewards": "rewards | [N]", "group_size": "group_size"},
    ),
    Written(
        "the model gives the log-probs",
        "policy_loss",
        """
        class Trainer:
            def __init__(self, eps=0.2):
                self.eps = eps
            def f(self, policy_model, batch):
                '''policy_model(batch) gives the log-probs [B, T]; "advantages" [B].'''
                logps = policy_model(batch)
                r = (logps - batch["old_logps"]).exp()
                a = batch["advantages"][:, None]
                l = -torch.minimum(r * a, r.clamp(1 - self.eps, 1 + self.eps) * a)
                return (l * batch["mask"]).sum() / batch["mask"].sum()
        """,
        {
            "policy_model(...)": "logprobs",
            'batch["old_logps"]': "old_logprobs",
            'batch["advantages"]': "advantages | [B]",
        },
        ref="Trainer.f",
    ),
    Written(
        "a fused head",
        "logprobs",
        """
        def f(hidden, head_weight, head_bias, input_ids):
            z = hidden @ head_weight.t() + head_bias
            return z[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None])[..., 0]
        """,
        {"hidden": "hidden_states | [B, T, H]", "head_weight": "lm_head_weight", "head_bias": "lm_head_bias"},
    ),
    Written(
        "prompts and responses as ids",
        "logprobs",
        """
        def f(batch, logits):
            start = batch["prompts"].size(1) - 1
            lp = logits[:, start:-1].log_softmax(-1)
            return lp.gather(-1, batch["responses"].unsqueeze(-1)).squeeze(-1)
        """,
        {
            'batch["prompts"]': "token_ids | columns of the prompt",
            'batch["responses"]': "token_ids | columns of the completion",
        },
    ),
    Written(
        "offsets that index",
        "logprobs",
        """
        def f(logits, input_ids, cu_seqlens):
            nxt = torch.cat([input_ids[1:], input_ids[:1]])
            lp = logits.log_softmax(-1).gather(-1, nxt[:, None])
            return lp.index_fill(0, cu_seqlens[1:] - 1, 0.0)
        """,
        {"cu_seqlens": "cu_seqlens | [B + 1] int64"},
        returns="packed [sum T]",
    ),
    Written(
        "sums of the scored labels",
        "logprobs",
        """
        def f(logits, labels, label_pad_token_id=-100):
            y = labels[:, 1:]
            keep = y != label_pad_token_id
            lp = logits[:, :-1].log_softmax(-1).gather(-1, y.masked_fill(~keep, 0)[..., None])[..., 0]
            return (lp * keep).sum(-1)
        """,
        {"labels": "labels", "logits": "logits"},
        returns="one value a sequence [B]",
    ),
    Written(
        "a penalty inside the rewards",
        "advantages",
        """
        def f(scores, logprobs, ref_logprobs, response_mask, rloo_k, kl_coef=0.05):
            r = (scores - kl_coef * ((logprobs - ref_logprobs) * response_mask).sum(1)).view(-1, rloo_k)
            return (r - (r.sum(1, keepdim=True) - r) / (rloo_k - 1)).flatten()
        """,
        {"scores": "rewards | [N]", "rloo_k": "group_size"},
        bind={"rloo_k": "group_size"},
    ),
    Written(
        "one value spread over each sample's tokens",
        "advantages",
        """
        def f(rewards, response_lengths, n_samples):
            r = torch.tensor(rewards).view(-1, n_samples)
            r = (r - r.mean(1, keepdim=True)).flatten()
            return [x.repeat(n) for x, n in zip(r, response_lengths)]
        """,
        {"response_lengths": "lengths"},
        returns="[N], spread over the tokens of each sample",
    ),
    Written(
        "the declared choice where the code spells it",
        "kl",
        """
        def f(logprob, ref_logprob, kl_penalty="k1"):
            d = ref_logprob - logprob
            if kl_penalty == "k1":
                return -d
            if kl_penalty == "k3":
                return d.exp() - d - 1
            raise ValueError(kl_penalty)
        """,
        {"kl_penalty": "kl_estimator"},
        intent={"kl_estimator": "k3"},
    ),
]
TABLE = [
    *ADVANTAGES, *LOGPROBS, *LOSSES, *KLS, *MASKS, *TEXTS, *MORE_ADVANTAGES, *MORE_LOGPROBS, *MORE_LOSSES, *MORE_TEXTS,
    *LATER,
]  # fmt: skip


@pytest.mark.parametrize("w", TABLE, ids=lambda w: f"{w.role}: {w.id}")
def test_a_function_is_bound_as_its_author_meant_it(tmp_path: Path, w: Written) -> None:
    got = bound(tmp_path, w)
    shown = {s.path: f"{s.meaning} | {s.form}" for s in got.report.slots}
    for path, want in w.slots.items():
        assert path in shown, shown
        assert shown[path] == want or shown[path].split(" | ")[0] == want, f"{path}: {shown[path]}"
    if w.returns:
        assert got.report.returns == w.returns


def test_the_table_covers_at_least_forty_functions() -> None:
    assert len(TABLE) >= 40


def report_of(tmp_path: Path, w: Written) -> tuple[str, BindingReport]:
    with pytest.raises(BindingFailed) as caught:
        bound(tmp_path, w)
    return caught.value.reason, caught.value.report


def test_an_open_parameter_is_named_with_the_lines_that_bind_it(tmp_path: Path) -> None:
    w = Written("mine", "policy_loss", "def f(logprobs, zork, mask):\n    return (logprobs * zork * mask).sum()\n", {})
    reason, report = report_of(tmp_path, w)
    assert "zork" in reason
    assert report.open == ("zork",)
    assert report.example == '[targets.mine]\nbind = { zork = "advantages" }'


def test_a_result_that_broadcast_into_another_shape_is_refused(tmp_path: Path) -> None:
    code = "def f(logits, index):\n    lp = logits.log_softmax(-1).gather(2, index[..., None])\n    return lp - lp.transpose(1, 2)\n"
    reason, _ = report_of(tmp_path, Written("w", "logprobs", code, {}))
    assert "is expected" in reason


def test_an_exception_of_the_user_is_reported_at_its_line(tmp_path: Path) -> None:
    code = "def f(logprobs, advantages, mask):\n    raise ValueError('no good')\n"
    with pytest.raises(CallFailed) as caught:
        bound(tmp_path, Written("w", "policy_loss", code, {}))
    assert caught.value.error == "ValueError: no good"
    assert caught.value.where == "user.py:8 in f"


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_code_that_leaves_the_process_is_an_exception_too(tmp_path: Path, statement: str) -> None:
    with pytest.raises(CallFailed):
        bound(tmp_path, Written("w", "policy_loss", f"def f(logprobs, advantages, mask):\n    {statement}\n", {}))


def test_an_attribute_that_nobody_knows_ends_the_run_with_its_name(tmp_path: Path) -> None:
    code = """
        class T:
            def __init__(self, engine, loader):
                self.zork = engine.zork
            def f(self, logprobs, advantages, mask):
                return (logprobs * advantages[:, None] * mask).sum() * self.zork
        """
    with pytest.raises(NotReached, match=r"self\.zork"):
        bound(tmp_path, Written("w", "policy_loss", code, {}, ref="T.f"))


def test_known_values_are_reported_with_their_origin(tmp_path: Path) -> None:
    code = "def f(logprobs, old_logprobs, advantages, mask, clip_eps=0.2, beta=0.1):\n    return ((logprobs - old_logprobs) * advantages[:, None] * mask).sum() * beta\n"
    got = bound(
        tmp_path,
        Written("w", "policy_loss", code, {}, intent={"clip_low": 0.3, "clip_high": 0.3}, settings={"beta": 0.5}),
    )
    assert got.settings["clip"] == 0.3
    assert got.settings["beta"] == 0.5
    assert {s.path: s.how for s in got.report.slots if s.path in ("clip_eps", "beta")} == {
        "clip_eps": "intent",
        "beta": "settings",
    }


def test_gradients_reach_the_canonical_inputs_through_their_forms(tmp_path: Path) -> None:
    role = registry.role("policy_loss")
    padded = next(w for w in LOSSES if w.id == "new, old, advantages, mask")
    ragged = next(w for w in LOSSES if w.id == "jagged lists")
    case = role.example({})
    for w in (padded, ragged):
        seen = bound(tmp_path, w).call(case.inputs, ("logprobs",))
        assert seen.grads["logprobs"].shape == case.inputs["logprobs"].shape
        assert seen.grads["logprobs"].abs().sum() > 0


def test_inputs_that_the_function_changes_are_noted_and_not_changed_for_the_caller(tmp_path: Path) -> None:
    code = "def f(logits, labels):\n    logits.div_(2.0)\n    return logits.log_softmax(-1).gather(2, labels[..., None]).squeeze(2)\n"
    got = bound(tmp_path, Written("w", "logprobs", code, {}))
    inputs = registry.role("logprobs").example({}).inputs
    before = inputs["logits"].clone()
    seen = got.call(inputs, ("logits",))
    assert seen.mutated == ("logits",)
    assert bool((inputs["logits"] == before).all())


def test_groups_handed_over_as_lists_come_back_in_the_order_of_the_samples(tmp_path: Path) -> None:
    import torch

    w = next(w for w in ADVANTAGES if w.id == "one list per prompt")
    rewards = torch.tensor([1.0, 5.0, 3.0, 9.0])
    ids = torch.tensor([0, 1, 0, 1])
    seen = bound(tmp_path, w).call({"rewards": rewards, "group_ids": ids})
    assert seen.value.tolist() == [-1.0, -2.0, 1.0, 2.0]


def test_lengths_in_place_of_a_mask_give_the_function_the_trained_tokens_and_no_others(tmp_path: Path) -> None:
    import torch

    packed = bound(tmp_path, next(w for w in MORE_LOSSES if w.id == "packed tokens, one advantage a sequence"))
    padded = bound(tmp_path, next(w for w in LOSSES if w.id == "new, old, advantages, mask"))
    inputs = registry.role("policy_loss").example({}).inputs
    assert bool((inputs["completion_mask"].diff(dim=1) > 0).any()), "a hole in a row, behind which training goes on"
    a = packed.call({k: v for k, v in inputs.items() if k in packed.names}, ("logprobs",))
    b = padded.call(inputs, ("logprobs",))
    torch.testing.assert_close(a.value, b.value)
    torch.testing.assert_close(a.grads["logprobs"], b.grads["logprobs"])


def test_a_result_of_rows_without_holes_goes_back_to_where_the_tokens_were(tmp_path: Path) -> None:
    import torch

    code = '''
        def f(logprobs, ref_logprobs, seq_lens):
            """Packed, responses one after another."""
            return logprobs - ref_logprobs
        '''
    got = bound(tmp_path, Written("w", "kl", code, {}))
    mask = torch.tensor([[1.0, 0, 1, 1], [1, 1, 0, 0]])
    logp, ref = torch.randn(2, 4), torch.randn(2, 4)
    seen = got.call({"logprobs": logp, "ref_logprobs": ref, "completion_mask": mask, "lengths": torch.tensor([3, 2])})
    torch.testing.assert_close(seen.value[mask > 0], (logp - ref)[mask > 0].double())


def test_a_function_that_leaves_torch_is_called_without_gradients(tmp_path: Path) -> None:
    got = bound(tmp_path, next(w for w in MORE_LOGPROBS if w.id == "tensors that end in numpy"))
    inputs = registry.role("logprobs").example({}).inputs
    seen = got.call(inputs, ("logits",))
    assert seen.grads == {}
    assert seen.value.shape == inputs["token_ids"].shape


def test_a_loss_in_numpy_cannot_be_examined_and_says_so(tmp_path: Path) -> None:
    code = """
        def f(logprobs: np.ndarray, advantages: np.ndarray, mask: np.ndarray):
            return float(-(np.exp(logprobs) * advantages[:, None] * mask).sum() / mask.sum())
        """
    with pytest.raises(NotReached, match="no gradient flows"):
        bound(tmp_path, Written("w", "policy_loss", code, {}))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("def f(rewards, group_size, normalize_rewards=False):\n    return rewards - rewards.mean()\n", False),
        ("def f(rewards, group_size, cfg):\n    return rewards / (rewards.std() if cfg.get('scale_rewards', False) else 1)\n", False),
        ("def f(rewards, group_size, cfg):\n    return rewards / (rewards.std() if getattr(cfg, 'scale_rewards', True) else 1)\n", True),
        ("def f(rewards, group_size, cfg={'norm_by_std': False}):\n    return rewards / (rewards.std() if 'norm_by_std' in cfg else 1)\n", False),
    ],
)  # fmt: skip
def test_the_value_of_a_switch_is_known_however_it_is_read(tmp_path: Path, code: str, value: bool) -> None:
    assert bound(tmp_path, Written("w", "advantages", code, {})).settings["scale_rewards"] is value


def test_a_factory_is_called_once_and_its_settings_are_known(tmp_path: Path) -> None:
    code = """
        CALLS = []
        def make(clip_eps=0.3):
            CALLS.append(1)
            def loss(logprobs, old_logprobs, advantages, mask):
                r = (logprobs - old_logprobs).exp() * advantages[:, None]
                return -(r * mask).sum() / mask.sum() * len(CALLS)
            return loss
        """
    got = bound(tmp_path, Written("w", "policy_loss", code, {}, ref="make"))
    inputs = registry.role("policy_loss").example({}).inputs
    assert got.settings["clip"] == 0.3
    assert float(got.call(inputs).value) == float(got.call(inputs).value)


def test_open_settings_of_a_factory_are_shown_as_literals(tmp_path: Path) -> None:
    code = "def make(zork):\n    def score(completions, **kw):\n        return [zork for c in completions]\n    return score\n"
    reason, report = report_of(tmp_path, Written("mine", "reward", code, {}, ref="make"))
    assert "settings zork" in reason
    assert report.example == '[targets.mine]\nbind = { zork = "=<Python literal>" }'


def test_no_absurd_word_is_suggested_for_what_is_open(tmp_path: Path) -> None:
    code = "def f(text, info_start_id, zork: str):\n    return text[info_start_id:] + zork\n"
    _, report = report_of(tmp_path, Written("mine", "decode", code, {}))
    assert 'info_start_id = "=0"' in report.example
    assert 'zork = "<word>"' in report.example
    assert "# <word>: one of" in report.example


def test_a_word_that_is_needed_is_suggested_only_where_its_kind_fits(tmp_path: Path) -> None:
    code = "def f(logprobs, zork: str, blah, mask):\n    return (logprobs * blah * mask).sum()\n"
    _, report = report_of(tmp_path, Written("mine", "policy_loss", code, {}))
    assert 'blah = "advantages"' in report.example
    assert 'zork = "<word>"' in report.example
