"""A language model that is known by heart: its next-token distribution is a table, so that what a function sampled
can be compared with what it should have sampled.

The row of the table is chosen by every token that is attended to, in its place. A token too many (padding that is
not masked, a prompt cut at the wrong column, a cache that is fed twice) so leads to other tokens, not to slightly
other probabilities. Padding that *is* masked changes nothing, on whichever side it stands.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rltriage_probes.standins import Encoding, StandInTokenizer

ACTIVE = "abcdefgh"
"""Characters that the model emits, beside the end token."""
ROWS = 997
_NO_TEXT = 17
"""By how many rows of the table a masked position is off."""
FAR_BELOW = -60.0
"""Logit of a token that is never sampled."""
SHARP = 400.0
"""By how much the most likely token leads where chance is to have no say, at any usual temperature."""


class PromptTokenizer(StandInTokenizer):
    """One token a character; pads on the left unless told otherwise, as prompts are padded for generation."""

    def __init__(self) -> None:
        super().__init__()
        self.padding_side = "left"

    def __call__(self, text: Any, padding: Any = False, return_tensors: str | None = None, **more: Any) -> Encoding:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept = self.padding_side
        self.padding_side = more.get("padding_side") or kept
        try:
            many = [self._flat(t) for t in ([text] if self._single(text) else list(text))]
            given = many[0] if self._single(text) else many
            out = super().__call__(given, padding, return_tensors, bool(more.get("add_special_tokens", False)))
        finally:
            self.padding_side = kept
        return out

    @staticmethod
    def _single(text: Any) -> bool:
        return isinstance(text, str) or (isinstance(text, list) and bool(text) and isinstance(text[0], dict))

    @staticmethod
    def _flat(text: Any) -> str:
        return text if isinstance(text, str) else "".join(str(m["content"]) for m in text)

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **more: Any) -> Any:
        """The contents of the messages behind one another: no header, so that prompts are what they were."""
        single = self._single(messages)
        texts = [self._flat(m) for m in ([messages] if single else messages)]
        if not tokenize:
            return texts[0] if single else texts
        if more.get("return_dict"):
            return self(texts[0] if single else texts, **more)
        ids = self(texts, padding=more.get("padding", False), return_tensors=more.get("return_tensors"))["input_ids"]
        return ids[0] if single and not more.get("return_tensors") else ids

    def pad(self, encoded: Any, padding: Any = True, return_tensors: str | None = None, **more: Any) -> Encoding:
        """Encodings, or lists of ids under `input_ids`, brought to one length."""
        rows = [e["input_ids"] for e in encoded] if isinstance(encoded, list) else list(encoded["input_ids"])
        rows = [r.tolist() if hasattr(r, "tolist") else list(r) for r in rows]
        left = (more.get("padding_side") or self.padding_side) == "left"
        width = max(map(len, rows), default=0)
        ids, masks = [], []
        for row in rows:
            fill = [self.pad_token_id] * (width - len(row))
            ids.append(fill + row if left else row + fill)
            masks.append([0] * len(fill) + [1] * len(row) if left else [1] * len(row) + [0] * len(fill))
        if return_tensors == "pt":
            return Encoding(input_ids=torch.tensor(ids), attention_mask=torch.tensor(masks))
        return Encoding(input_ids=ids, attention_mask=masks)


class Settings:
    """What transformers calls a generation config."""

    def __init__(self, **given: Any) -> None:
        defaults: dict[str, Any] = {
            "max_new_tokens": None, "max_length": 20, "min_new_tokens": None, "do_sample": False, "temperature": 1.0,
            "top_k": 50, "top_p": 1.0, "min_p": None, "num_return_sequences": 1, "num_beams": 1, "eos_token_id": None,
            "pad_token_id": None, "bos_token_id": None, "repetition_penalty": 1.0, "return_dict_in_generate": False,
            "output_scores": False, "output_logits": False, "use_cache": True, "stop_strings": None,
        }  # fmt: skip
        self.__dict__.update({**defaults, **given})

    def update(self, **given: Any) -> dict[str, Any]:
        self.__dict__.update(given)
        return {}

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Cache:
    """What is remembered of earlier tokens: their sum and their number, row by row."""

    def __init__(self, total: Tensor, count: Tensor, length: int) -> None:
        self.total, self.count, self.length = total, count, length

    def get_seq_length(self, *_: Any) -> int:
        return self.length

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: int) -> Any:
        return ((self.total.new_zeros(len(self.total), 1, self.length, 1),) * 2)[key % 2 : key % 2 + 1]


class Output(dict[str, Any]):
    """What a causal model returns, readable by attribute, by key and by position."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            return [v for v in self.values() if v is not None][key]
        return dict.__getitem__(self, key)


class TableModel(nn.Module):
    """A causal model with a table of next-token logits; `generate` follows transformers."""

    def __init__(
        self, tokenizer: StandInTokenizer, *, sharp: bool = False, style: str = "output", seed: int = 0
    ) -> None:
        """`style`: what a call returns: an `output`, the `tensor` of logits, or a `pair` of logits and None."""
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        size = len(tokenizer)
        table = torch.full((ROWS, size), FAR_BELOW)
        active = [*tokenizer.encode(ACTIVE), tokenizer.eos_token_id]
        noise = torch.randn(ROWS, len(active), generator=g)
        noise[:, -1] -= 0.3
        table[:, active] = noise * 1.1
        if sharp:
            table[torch.arange(ROWS), table.argmax(-1)] += SHARP
        self.table = nn.Parameter(table)
        places = torch.randint(1, ROWS, (4096,), generator=g)
        self.register_buffer("places", places)
        self.known_places: list[int] = places.tolist()
        self.tokenizer = tokenizer
        self.sharp = sharp
        self.style = style
        self.config = Settings(
            vocab_size=size, model_type="stand-in", is_encoder_decoder=False, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id, max_position_embeddings=4096, n_positions=4096, block_size=4096,
        )  # fmt: skip
        self.generation_config = Settings(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
        self.max_seq_len = self.block_size = 4096
        self.calls: list[dict[str, Any]] = []
        self.graded = False
        """Whether the forward pass ever ran with gradients switched on."""
        self.trained = False
        """Whether it ever ran in training mode."""
        self.eval()

    is_gradient_checkpointing = False
    base_model_prefix = "model"

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        pass

    gradient_checkpointing_disable = enable_input_require_grads = gradient_checkpointing_enable

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, past_key_values: Any = None, **more: Any
    ) -> Any:
        input_ids = more.get("input_ids", input_ids) if input_ids is None else input_ids
        self.graded |= torch.is_grad_enabled()
        self.trained |= self.training
        logits, cache = self.scored(input_ids.long(), attention_mask, past_key_values)
        keep = more.get("logits_to_keep") or more.get("num_logits_to_keep")
        logits = logits[:, -int(keep) :] if keep else logits
        if self.style == "tensor":
            return logits
        if self.style == "pair":
            return logits, None
        return Output(logits=logits, past_key_values=cache, loss=None)

    def scored(self, ids: Tensor, mask: Any, past: Any) -> tuple[Tensor, Cache]:
        """Logits [B, T, V] and the memory behind the last token."""
        length = ids.shape[1]
        seen = torch.ones_like(ids) if mask is None else mask[:, -length:].long().ne(0).long()
        if seen.shape != ids.shape:
            seen = seen.expand_as(ids) if seen.numel() == 1 else torch.ones_like(ids)
        total = ids.new_zeros(len(ids)) if past is None else past.total
        count = ids.new_zeros(len(ids)) if past is None else past.count
        rank = seen.cumsum(1) - 1 + count[:, None]
        value = (ids + 1) * self.places[rank.clamp(0, 4095)] * seen  # pyright: ignore[reportIndexIssue]
        running = value.cumsum(1) + total[:, None]
        # what stands at a masked position is no continuation of the text
        rows = (running + _NO_TEXT * (1 - seen)) % ROWS
        logits = self.table[rows]
        if self.training:
            logits = logits + torch.randn_like(logits) * (SHARP if self.sharp else 1.0)
        before = 0 if past is None else past.length
        return logits, Cache(running[:, -1], count + seen.sum(1), before + length)

    # generate, as transformers has it

    @torch.no_grad()
    def generate(self, inputs: Any = None, generation_config: Any = None, **given: Any) -> Any:
        config = self._settled(generation_config, given)
        ids = given.get("input_ids") if inputs is None else inputs
        assert ids is not None, "generate needs input_ids"
        self.calls.append({**config.to_dict(), "attention_mask": given.get("attention_mask"), "width": ids.shape[1]})
        self.trained |= self.training
        copies = int(config.num_return_sequences or 1)
        mask = self._mask(ids, given.get("attention_mask"), config)
        ids, mask = ids.repeat_interleave(copies, 0), mask.repeat_interleave(copies, 0)
        return self._loop(ids, mask, config, given)

    def _settled(self, own: Any, given: dict[str, Any]) -> Settings:
        config = Settings(**self.generation_config.to_dict())
        if own is not None:
            # what a config of the user's leaves at None is the model's (transformers: use_model_defaults)
            held = own if isinstance(own, dict) else vars(own)
            config.update(**{k: v for k, v in held.items() if v is not None})
        config.update(**{k: v for k, v in given.items() if k in vars(config)})
        for key in ("eos_token_id", "pad_token_id"):
            if key in given and given[key] is None:
                config.update(**{key: getattr(self.generation_config, key)})
        return config

    def _mask(self, ids: Tensor, mask: Any, config: Settings) -> Tensor:
        if mask is not None:
            return mask.long()
        pad: Any = config.pad_token_id
        ends = config.eos_token_id if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]
        if pad is None or pad in ends or not bool((ids == pad).any()):
            return torch.ones_like(ids)
        return ids.ne(int(pad)).long()

    def _loop(self, ids: Tensor, mask: Tensor, config: Settings, given: dict[str, Any]) -> Any:
        ends = config.eos_token_id
        ends = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [int(ends)]
        pad = config.pad_token_id if config.pad_token_id is not None else (ends[0] if ends else None)
        width = ids.shape[1]
        limit = width + int(config.max_new_tokens) if config.max_new_tokens is not None else int(config.max_length)
        running = torch.ones(len(ids), dtype=torch.bool)
        scores, raw = [], []
        past: Any = None
        fed, seen = ids, mask
        while ids.shape[1] < limit and bool(running.any()):
            logits, past = self.scored(fed, seen, past)
            raw.append(logits[:, -1])
            warped = warp(logits[:, -1], config) if config.do_sample else logits[:, -1]
            for processor in given.get("logits_processor") or []:
                warped = processor(ids, warped)
            scores.append(warped)
            chosen = torch.multinomial(warped.softmax(-1), 1)[:, 0] if config.do_sample else warped.argmax(-1)
            if ends:
                chosen = torch.where(running, chosen, torch.full_like(chosen, int(pad or 0)))
            ids = torch.cat([ids, chosen[:, None]], 1)
            fed, seen = chosen[:, None], torch.ones_like(chosen[:, None])
            running = running & ~torch.isin(chosen, torch.tensor(ends or [-1]))
            for criterion in given.get("stopping_criteria") or []:
                running = running & ~torch.as_tensor(criterion(ids, warped)).expand(len(ids))
        if not (config.return_dict_in_generate or given.get("return_dict_in_generate")):
            return ids
        return Output(sequences=ids, scores=tuple(scores), logits=tuple(raw), past_key_values=past)

    def compute_transition_scores(
        self, sequences: Tensor, scores: Any, normalize_logits: bool = False, **_: Any
    ) -> Tensor:
        """Score of each sampled token, [B, new tokens]."""
        stacked = torch.stack(list(scores), 1)
        stacked = stacked.log_softmax(-1) if normalize_logits else stacked
        return stacked.gather(2, sequences[:, -stacked.shape[1] :, None])[..., 0]

    # The truth

    def distribution(self, ids: Sequence[int], *, from_padding: bool = False) -> Tensor:
        """Logits [V] behind these tokens, float64, without padding or noise; at masked padding behind them if said."""
        total = sum((t + 1) * place for t, place in zip(ids, self.known_places, strict=False))
        return self.table[(total + (_NO_TEXT if from_padding else 0)) % ROWS].detach().double()

    def greedy(
        self, ids: Sequence[int], steps: int, ends: Sequence[int] = (), *, from_padding: bool = False
    ) -> list[int]:
        """The most likely continuation, up to an end token (included) or `steps` tokens."""
        out: list[int] = []
        while len(out) < steps:
            out.append(int(self.distribution([*ids, *out], from_padding=from_padding and not out).argmax()))
            if out[-1] in ends:
                break
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> TableModel:
        made = TableModel(self.tokenizer, sharp=self.sharp, style=self.style)
        made.load_state_dict(self.state_dict())
        made.generation_config = copy.deepcopy(self.generation_config)
        return made


def warp(logits: Tensor, config: Settings) -> Tensor:
    """Temperature, then top-k, then top-p, in the order of transformers."""
    out = logits / float(config.temperature or 1.0)
    if config.top_k:
        k = min(int(config.top_k), out.shape[-1])
        out = out.masked_fill(out < out.topk(k, -1).values[..., -1:], -math.inf)
    if config.top_p is not None and float(config.top_p) < 1.0:
        out = out.masked_fill(~nucleus(out, float(config.top_p)), -math.inf)
    if config.min_p:
        p = out.softmax(-1)
        out = out.masked_fill(p < float(config.min_p) * p.amax(-1, keepdim=True), -math.inf)
    return out


def nucleus(logits: Tensor, p: float, *, crossing: bool = True) -> Tensor:
    """The smallest set of most likely tokens whose probability reaches p (Holtzman et al., 1904.09751, eq. 2).

    `crossing` False: without the token that reaches it, as a common mistake has it; one token always stays.
    """
    ordered, order = logits.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = before < p if crossing else ordered.cumsum(-1) <= p
    kept[..., 0] = True
    return torch.zeros_like(kept).scatter(-1, order, kept)
