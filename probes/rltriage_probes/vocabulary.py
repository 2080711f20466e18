"""The words in which users' functions are described: what each means and how a case stores it.

A case gives each input in *canonical form* (`shape`); the binder turns it into the form that the
user's function takes. Shapes: B sequences (N samples where they are rewarded), T tokens, V vocabulary
entries, P prompts, G samples of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Word:
    """One meaning that a parameter, key or attribute can have."""

    name: str
    kind: Literal["tensor", "scalar", "text", "object"]
    shape: str
    says: str


def _tensor(name: str, shape: str, says: str) -> Word:
    return Word(name=name, kind="tensor", shape=shape, says=says)


def _scalar(name: str, says: str) -> Word:
    return Word(name=name, kind="scalar", shape="", says=says)


def _text(name: str, shape: str, says: str) -> Word:
    return Word(name=name, kind="text", shape=shape, says=says)


def _object(name: str, says: str) -> Word:
    return Word(name=name, kind="object", shape="", says=says)


WORDS: dict[str, Word] = {
    w.name: w
    for w in (
        _tensor("logits", "[B, T, V] float", "raw output of the model"),
        _tensor("hidden_states", "[B, T, H] float", "last hidden states, which the head turns into the logits"),
        _tensor("lm_head_weight", "[V, H] float", "weight of the head"),
        _tensor("lm_head_bias", "[V] float", "bias of the head"),
        _tensor("token_ids", "[B, T] long", "ids whose log-probs are taken, or the sequence that a mask is built for"),
        _tensor("prompt_ids", "[B, P] long", "token ids of the prompts alone, padded in front"),
        _tensor("labels", "[B, T] long", "token ids, -100 where not scored"),
        _tensor("attention_mask", "[B, T] long", "1 on real tokens"),
        _tensor("completion_mask", "[B, T] float", "1 on trained tokens"),
        _scalar("prompt_length", "number of prompt columns in front of the completion"),
        _scalar("completion_length", "number of completion columns, e.g. logits_to_keep"),
        _tensor("lengths", "[B] long", "real tokens of each row"),
        _tensor("cu_seqlens", "[B + 1] int32", "offsets of packed sequences"),
        _tensor("logprobs", "[B, T] float", "of the policy that is being trained"),
        _tensor("old_logprobs", "[B, T] float", "of the policy that the ratio refers to"),
        _tensor("ref_logprobs", "[B, T] float", "of the frozen reference"),
        _tensor("rollout_logprobs", "[B, T] float", "as the sampler reported them"),
        _tensor("ratio", "[B, T] float", "importance ratio, already exponentiated"),
        _tensor("log_ratio", "[B, T] float", "new minus old"),
        _tensor("negative_log_ratio", "[B, T] float", "old minus new"),
        _tensor("entropies", "[B, T] float", "entropy of the policy at each position"),
        _tensor("advantages", "[B] float", "one a sequence; handed over as [B, T] where the function wants that"),
        _tensor("rewards", "[N] float", "one a sample, samples of a prompt adjacent"),
        _tensor("token_rewards", "[N, T] float", "rewards by token"),
        _tensor("group_ids", "[N] long", "which prompt a sample belongs to"),
        _tensor("is_last_step", "[N] bool", "last turn of its trajectory"),
        _tensor("trajectory_ids", "[N] long", "which trajectory a turn belongs to"),
        _tensor("values", "[B, T] float", "critic"),
        _tensor("old_values", "[B, T] float", "critic at rollout time"),
        _tensor("returns", "[B, T] float", "regression targets of the critic"),
        _scalar("group_size", "samples a prompt"),
        _scalar("gamma", "discount"),
        _scalar("lam", "GAE lambda"),
        _scalar("clip_low", "lower clip distance, 0.2 means 1 - 0.2"),
        _scalar("clip_high", "upper clip distance"),
        _scalar("clip", "one clip distance for both sides"),
        _scalar("dual_clip", "upper bound of the ratio for negative advantages, or on the unclipped ratio"),
        _scalar("clip_value", "clip distance of the critic"),
        _scalar("beta", "weight of the KL term"),
        _scalar("entropy_coef", "weight of the entropy bonus"),
        _scalar("temperature", "sampling temperature"),
        _scalar("eps", "constant that keeps a division finite"),
        _scalar("scale_rewards", "whether advantages are divided by the std (bool or word)"),
        _scalar("aggregation", "how token losses are averaged (word)"),
        _scalar("loss_type", "which surrogate (word)"),
        _scalar("ratio_level", "token or sequence (word)"),
        _scalar("kl_estimator", "k1, k2, k3, ... (word)"),
        _scalar("max_completion_length", "constant denominator of Dr. GRPO"),
        _scalar("token_count", "global number of trained tokens"),
        _scalar("row_count", "global number of sequences"),
        _scalar("eos_token_id", "id that ends a completion"),
        _scalar("pad_token_id", "id behind it"),
        _scalar("chunk_size", "rows handled at once; any value gives the same result"),
        _text("text", "str", "one raw completion"),
        _text("texts", "list of str", "raw completions"),
        _text("prompts", "list of N str", "one a sample"),
        _text("completions", "list of N str", "one a sample, or list of message lists"),
        _text("answers", "list of N str", "gold answers, one a sample"),
        _text("operand_lists", "N lists of int", "numbers to combine into an expression worth the gold answer"),
        _text("operands", "list of int", "the same of one sample"),
        _text("prompt", "str", "one prompt"),
        _text("completion", "str", "one completion"),
        _text("answer", "str", "one gold answer"),
        _object("tokenizer", "stand-in tokenizer with decode, batch_decode, encode, eos and pad ids"),
        _object("model", "tiny causal model: model(input_ids, attention_mask=, position_ids=).logits"),
    )
}
