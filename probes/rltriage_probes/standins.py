"""A tokenizer and models that stand in for the user's: small, deterministic, with nothing to install.

Importing this module needs no torch; the models import it when they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltriage_probes.invoke import NotReached

if TYPE_CHECKING:
    from torch import Tensor


class Encoding(dict[str, Any]):
    """What a tokenizer call gives: readable as a dict and by attribute, movable to a device."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def to(self, *args: Any, **kwargs: Any) -> Encoding:
        return self


class StandInTokenizer:
    """One token a character; pad, eos, bos and unknown are special, the think markers special or plain text."""

    def __init__(self, markers: Sequence[str] = ("<think>", "</think>"), markers_special: bool = False) -> None:
        self.pad_token, self.eos_token, self.bos_token, self.unk_token = "<pad>", "<eos>", "<bos>", "<unk>"
        special = [self.pad_token, self.eos_token, self.bos_token, self.unk_token]
        self._pieces = [*special, *markers, *(chr(c) for c in range(32, 127)), "\n", "\t"]
        self._ids = {p: i for i, p in enumerate(self._pieces)}
        self._special = set(special) | (set(markers) if markers_special else set())
        self.pad_token_id, self.eos_token_id, self.bos_token_id, self.unk_token_id = range(4)
        self.additional_special_tokens = list(markers) if markers_special else []
        self.padding_side = "right"
        self.name_or_path = "stand-in"
        self.model_max_length = 10_000
        self.chat_template = None

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def all_special_tokens(self) -> list[str]:
        return [p for p in self._pieces if p in self._special]

    @property
    def all_special_ids(self) -> list[int]:
        return [self._ids[p] for p in self.all_special_tokens]

    @property
    def special_tokens_map(self) -> dict[str, str]:
        names = ("pad_token", "eos_token", "bos_token", "unk_token")
        return {n: getattr(self, n) for n in names}

    def __len__(self) -> int:
        return len(self._pieces)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
        ids: list[int] = [self.bos_token_id] if add_special_tokens else []
        long = sorted((p for p in self._pieces if len(p) > 1), key=len, reverse=True)
        at = 0
        while at < len(text):
            piece = next((p for p in long if text.startswith(p, at)), text[at])
            ids.append(self._ids.get(piece, self.unk_token_id))
            at += len(piece)
        return ids

    def tokenize(self, text: str, **_: Any) -> list[str]:
        return [self._piece(i) for i in self.encode(text)]

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        plain = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        flat = [plain] if isinstance(plain, int) else [int(i) for i in plain]
        pieces = [self._piece(i) for i in flat]
        return "".join(p for p in pieces if not (skip_special_tokens and p in self._special))

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **_: Any) -> list[str]:
        return [self.decode(s, skip_special_tokens) for s in sequences]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id)
        return [self._ids.get(t, self.unk_token_id) for t in tokens]

    def convert_ids_to_tokens(self, ids: Any, **_: Any) -> Any:
        plain = ids.tolist() if hasattr(ids, "tolist") else ids
        return self._piece(plain) if isinstance(plain, int) else [self._piece(int(i)) for i in plain]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)

    def __call__(
        self,
        text: Any,
        padding: Any = False,
        return_tensors: str | None = None,
        add_special_tokens: bool = False,
        **_: Any,
    ) -> Encoding:
        many = [text] if isinstance(text, str) else list(text)
        rows = [self.encode(t, add_special_tokens) for t in many]
        masks = [[1] * len(r) for r in rows]
        if padding or return_tensors:
            width = max(map(len, rows), default=0)
            rows, masks = self._padded(rows, self.pad_token_id, width), self._padded(masks, 0, width)
        if return_tensors == "pt":
            import torch

            return Encoding(input_ids=torch.tensor(rows), attention_mask=torch.tensor(masks))
        if isinstance(text, str):
            return Encoding(input_ids=rows[0], attention_mask=masks[0])
        return Encoding(input_ids=rows, attention_mask=masks)

    def _padded(self, rows: list[list[int]], filler: int, width: int) -> list[list[int]]:
        left = self.padding_side == "left"
        return [[filler] * (width - len(r)) + r if left else r + [filler] * (width - len(r)) for r in rows]

    def _piece(self, i: int) -> str:
        return self._pieces[i] if 0 <= i < len(self._pieces) else self.unk_token


@dataclass
class ModelOutput:
    """What a causal model returns."""

    logits: Any
    loss: Any = None
    past_key_values: Any = None
    hidden_states: Any = None

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else (self.logits,)[key]

    @property
    def log_probs(self) -> Any:
        """A model patched to score its own tokens is what would have to be examined, and no stand-in."""
        raise NotReached(
            "the function takes log-probs, not logits, from the model itself",
            "Name the function that computes them from logits, or the model's patched forward.",
        )

    entropy = entropies = log_probs


class _Model:
    """What functions ask of a model besides its logits."""

    training = True
    device = "cpu"

    class config:  # noqa: N801  as transformers spells it
        model_type = "stand-in"
        is_encoder_decoder = False
        vocab_size = 0

    def __call__(self, *args: Any, **kwargs: Any) -> ModelOutput:
        return self.forward(*args, **kwargs)

    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> ModelOutput:
        raise NotImplementedError

    def train(self, mode: bool = True) -> _Model:
        self.training = mode
        return self

    def eval(self) -> _Model:
        return self.train(False)

    def to(self, *args: Any, **kwargs: Any) -> _Model:
        return self

    def parameters(self) -> list[Any]:
        return []

    def modules(self) -> list[Any]:
        return [self]


class IdentityHead:
    """A head whose output is its input, so that hidden states are the case's logits."""

    def __init__(self, logits: Tensor) -> None:
        import torch

        size = logits.shape[-1]
        self.weight = torch.eye(size, dtype=logits.dtype)
        self.bias = torch.zeros(size, dtype=logits.dtype)
        self.in_features = self.out_features = size

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weight.to(hidden.dtype).T

    forward = __call__


def _kept(logits: Tensor, keep: Any) -> Tensor:
    n = int(keep) if isinstance(keep, int) else 0
    return logits[:, -n:] if n else logits


class EchoModel(_Model):
    """Gives the logits of a case for the ids of that case, row by row, so that a function which runs the model itself
    is checked like one that takes logits.
    """

    def __init__(self, logits: Tensor, token_ids: Tensor) -> None:
        self._logits = logits
        self._ids = token_ids

    def forward(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> ModelOutput:
        rows = [self._row(row) for row in input_ids]
        import torch

        logits = self._logits[torch.tensor(rows)]
        return ModelOutput(logits=_kept(logits, kwargs.get("logits_to_keep") or kwargs.get("num_logits_to_keep")))

    def _row(self, row: Tensor) -> int:
        if len(row) == self._ids.shape[1]:
            for i, ids in enumerate(self._ids):
                if bool((ids == row).all()):
                    return i
        raise NotReached(
            "the function runs the model on other ids than those it was given",
            "Name the function behind the model's forward pass instead, which takes logits.",
        )


class TinyCausalModel(_Model):
    """A causal model of a few hundred weights that honours attention mask and position ids.

    Float64 inside, so that a row's logits don't depend on padding. Left padding with a mask and position
    ids gives the logits of the unpadded row.
    """

    def __init__(self, vocab_size: int = 16, width: int = 8, seed: int = 0, *, relative: bool = False) -> None:
        """`relative`: the model sees distances between tokens (as with rotary embeddings), not their places."""
        import torch

        g = torch.Generator().manual_seed(seed)

        def weights(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=g, dtype=torch.float64) / width**0.5).requires_grad_(True)

        self.embed, self.place = weights(vocab_size, width), weights(512, width)
        self.query, self.key, self.value = weights(width, width), weights(width, width), weights(width, width)
        self.head = weights(width, vocab_size)
        self._relative = relative

    def parameters(self) -> list[Any]:
        return [self.embed, self.place, self.query, self.key, self.value, self.head]

    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> ModelOutput:
        import torch

        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length).expand(input_ids.shape)
        places = position_ids.clamp(min=0, max=511)
        x = self.embed[input_ids] * 2
        if not self._relative:
            x = x + self.place[places]
        scores = (x @ self.query) @ (x @ self.key).transpose(1, 2)
        if self._relative:
            scores = scores + self.place[(places[:, :, None] - places[:, None]).clamp(min=0), 0]
        allowed = torch.ones(length, length, dtype=torch.bool).tril()[None]
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, :]
        scores = scores.masked_fill(~allowed, -1e9)
        mixed = x + torch.softmax(scores, dim=-1) @ (x @ self.value)
        logits = (torch.tanh(mixed) @ self.head * 3).float()
        return ModelOutput(logits=_kept(logits, kwargs.get("logits_to_keep") or kwargs.get("num_logits_to_keep")))
