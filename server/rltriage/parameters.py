"""Parameters of the tools: what each means, its bounds, its default, as clients show them to their models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema
from rltriage_probes.contract import Stage

from rltriage.manifest import FILE_NAME
from rltriage.toolmodels import Detail

DEFAULT_TIMEOUT_S = 45.0
"""Budget of one call: some clients give up after 60 s."""

Value = str | int | float | bool | list[str | int | float | bool] | None

OPEN_OBJECT = WithJsonSchema({"type": "object", "additionalProperties": True})
"""Values are checked all the same; their union, spelt out in every tool, would cost each client its tokens."""


def said(text: str) -> str:
    """`text` as one paragraph."""
    return " ".join(text.split())


ProjectRoot = Annotated[
    str,
    Field(
        max_length=4096,
        description=said("""
            Folder of the project, on its import path while it is examined. Default: CLAUDE_PROJECT_DIR, else the
            folder that the server was started in."""),
    ),
]
Target = Annotated[
    str,
    Field(
        min_length=1,
        max_length=500,
        description=said("""
            The function: `file.py:function`, `file.py:Class.method` or `package.module:name`. Files are relative to
            project_root and must lie in it."""),
        examples=["src/algos.py:compute_advantages"],
    ),
]
Bind = Annotated[
    dict[str, str],
    Field(
        default_factory=dict,
        description=said("""
            Only for parameters whose meaning was not found: parameter (or `batch["key"]`, `self.attr`) -> word, e.g.
            {"x": "rewards"}. Words: rewards, group_ids, advantages, logits, token_ids, logprobs, old_logprobs,
            ref_logprobs, completion_mask, attention_mask, beta, clip_low, ... A failed binding lists what is open."""),
    ),
]
Settings = Annotated[
    dict[str, Value],
    OPEN_OBJECT,
    Field(
        default_factory=dict,
        description=said("""
            Values that this function takes in the real run, by word or parameter, e.g. {"beta": 0.1}."""),
    ),
]
Intent = Annotated[
    dict[str, Value],
    OPEN_OBJECT,
    Field(
        default_factory=dict,
        description=said("""
            What the pipeline is meant to be; undeclared is recognised instead. Keys: algorithm (grpo, dr_grpo, dapo,
            gspo, cispo, rloo, reinforce, reinforce_pp, ppo, dpo, ...), group_size, beta, kl_estimator (k1, k2, k3),
            clip_low, clip_high, aggregation (token-mean, sequence-mean, sequence-sum, constant), temperature,
            scale_rewards, gamma, lam."""),
        examples=[{"algorithm": "grpo", "group_size": 8, "beta": 0.04}],
    ),
]
Python = Annotated[
    str,
    Field(
        max_length=4096,
        description=said("""
            Python interpreter that has the project's torch. Default: the project's own environment where it is found,
            else the server's; `notes` says which was used."""),
    ),
]
TimeoutS = Annotated[
    float,
    Field(ge=1, le=600, description="Seconds for the whole call. Some clients give up by themselves after 60 s."),
]
DetailLevel = Annotated[
    Detail,
    Field(
        description=said("""
            Length of the answer: at most some 2, 6 or 12 thousand tokens; `truncated` says what was cut."""),
    ),
]
LogprobsRole = Annotated[
    Literal["logprobs", "entropy"],
    Field(
        description=said("""
            logprobs: logits and ids -> log-prob of each token. entropy: logits -> entropy of each position."""),
    ),
]
RewardRole = Annotated[
    Literal["reward", "extract_answer", "reward_shaping", "reward_model_loss"],
    Field(
        description=said("""
            reward: completions -> scores. extract_answer: text -> answer. reward_shaping: rewards -> rewards with a KL
            or length penalty. reward_model_loss: scores of pairs or steps -> loss."""),
    ),
]
AdvantagesRole = Annotated[
    Literal["advantages", "gae"],
    Field(description="advantages: rewards of groups. gae: token rewards and values of a critic."),
]
LossRole = Annotated[
    Literal[
        "policy_loss",
        "kl",
        "completion_mask",
        "value_loss",
        "aggregate",
        "importance_weights",
        "preference_loss",
        "train_step",
    ],
    Field(
        description=said("""
            policy_loss: log-probs, old log-probs, advantages, mask -> scalar. kl: two log-probs -> KL of each token.
            completion_mask: token ids -> mask of trained tokens. value_loss: values, returns -> loss. aggregate: token
            losses, mask -> scalar. importance_weights: trainer's and sampler's log-probs -> weights. preference_loss:
            chosen and rejected log-probs -> loss. train_step: model, batch, optimizer -> one update."""),
    ),
]
GenerationRole = Annotated[
    Literal["decode", "chat_tokens", "generate"],
    Field(
        description=said("""
            decode: ids or raw text -> text. chat_tokens: messages -> ids. generate: model, prompts -> completions."""),
    ),
]
SftRole = Annotated[
    Literal["sft_labels", "sft_loss"],
    Field(description="sft_labels: sample -> input ids and labels. sft_loss: logits, labels -> loss."),
]
ManifestPath = Annotated[
    str,
    Field(
        max_length=4096,
        description=f"A manifest file, relative to project_root. Default: {FILE_NAME} there, if it exists.",
    ),
]
ManifestInline = Annotated[
    dict[str, Any],
    Field(
        default_factory=dict,
        description=said("""
            The manifest inline, instead of a file: {"pipeline": {"algorithm": "grpo", ...}, "env": {...}, "targets":
            {ROLE: {"ref": "file.py:function", "bind": {...}, "settings": {...}}}}. Roles: those of the check tools,
            model_factory and environment; further ones of a role are named ROLE-2, ROLE-3."""),
    ),
]
Stages = Annotated[
    list[Stage],
    Field(default_factory=list, max_length=8, description="Only these stages. Default: all."),
]
PageId = Annotated[
    str,
    Field(
        max_length=200,
        description="Id from a finding, e.g. ADV-EPSILON, or its rltriage://pages/ uri. Empty: the list of all pages.",
        examples=["ADV-EPSILON"],
    ),
]
