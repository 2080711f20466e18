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


class Ids(list[int]):
    """Token ids that also answer as the encoding they come in: `ids["input_ids"]`, `ids.input_ids`."""

    def __getitem__(self, key: Any) -> Any:
        if key == "input_ids":
            return list(self)
        if key == "attention_mask":
            return [1] * len(self)
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in ("input_ids", "attention_mask"):
            return self[name]
        raise AttributeError(name)


CHATML, HEADERS = "chatml", "headers"


class ChatTokenizer(StandInTokenizer):
    """A tokenizer with a chat template: one token a character, markers special, ids made as texts come.

    `chatml`: <|im_start|>role, a line break, content<|im_end|>, a line break; no token in front. `headers`: a first
    token, then <|start_header_id|>role<|end_header_id|>, an empty line, content<|eot_id|>; `encode` adds the first
    token as well.
    Conversations keep every turn whole, reasoning included.
    """

    def __init__(self, style: str = CHATML, *, pad_is_eos: bool = False, markers: Sequence[str] = ()) -> None:
        self.style = style
        first = style == HEADERS
        names = (
            ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")
            if first
            else ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
        )
        self.name_or_path, self.model_max_length = "stand-in", 10_000
        self._pieces = ["<unk>", *dict.fromkeys((*names, "<|pad|>", *markers))]
        self._ids = {p: i for i, p in enumerate(self._pieces)}
        self._special = set(self._pieces)
        self._longest = sorted(self._special, key=len, reverse=True)
        self._tokens: dict[str, str | None] = {
            "eos": names[1], "bos": names[0] if first else None, "unk": "<unk>",
            "pad": names[1] if pad_is_eos else "<|pad|>",
        }  # fmt: skip
        self.adds_first = first
        self.add_bos_token, self.add_eos_token = first, False
        self.padding_side, self.truncation_side = "right", "right"
        self.additional_special_tokens = [p for p in self._pieces if p not in ("<unk>", "<|pad|>")]
        self.chat_template = (
            "{{ bos_token }}{% for m in messages %}...{% endfor %}"
            if first
            else "{% for m in messages %}...{% endfor %}"
        )
        self.is_fast = True

    # Ids

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def pieces(self, text: str) -> list[str]:
        """The text in tokens."""
        out: list[str] = []
        at = 0
        while at < len(text):
            piece = next((p for p in self._longest if text.startswith(p, at)), text[at])
            out.append(piece)
            at += len(piece)
        return out

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]  the order that transformers has
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        truncation: Any = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        **_: Any,
    ) -> Any:
        ids = [self._id(p) for p in self.pieces(str(text) + str(text_pair or ""))]
        if add_special_tokens and self.adds_first:
            ids = [self._id(str(self._tokens["bos"])), *ids]
        if truncation and max_length is not None:
            ids = ids[-max_length:] if self.truncation_side == "left" else ids[:max_length]
        if return_tensors == "pt":
            import torch

            return torch.tensor([ids])
        return ids

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._ids.get(tokens, 0) if len(tokens) != 1 else self._id(tokens)
        return [self.convert_tokens_to_ids(t) for t in tokens]

    def tokenize(self, text: str, **_: Any) -> list[str]:
        return self.pieces(text)

    def add_special_tokens(self, tokens: Any, **_: Any) -> int:
        added = [t for v in tokens.values() for t in (v if isinstance(v, (list, tuple)) else [v])]
        for key in ("eos", "bos", "pad"):
            if f"{key}_token" in tokens:
                self._tokens[key] = str(tokens[f"{key}_token"])
        return self.add_tokens(added)

    def add_tokens(self, tokens: Any, special_tokens: bool = False, **_: Any) -> int:
        new = [str(t) for t in ([tokens] if isinstance(tokens, str) else tokens) if str(t) not in self._ids]
        for token in new:
            self._id(token)
            self._special.add(token)
        self._longest = sorted(self._special, key=len, reverse=True)
        return len(new)

    # Texts to encodings

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        padding: Any = False,
        truncation: Any = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        **_: Any,
    ) -> Encoding:
        many = [text] if isinstance(text, str) else list(text)
        rows = [self.encode(t, None, add_special_tokens, truncation, max_length) for t in many]
        offsets = [self._offsets(t, len(r), add_special_tokens) for t, r in zip(many, rows, strict=True)]
        lengths = [len(r) for r in rows]
        masks = [[1] * n for n in lengths]
        if padding:
            width = max_length if padding == "max_length" and max_length else max(lengths, default=0)
            rows = self._padded(rows, int(self.pad_token_id or 0), width)
            masks = self._padded(masks, 0, width)
            offsets = [o + [(0, 0)] * (width - len(o)) for o in offsets]
        out = Encoding(input_ids=rows, attention_mask=masks)
        if return_offsets_mapping:
            out["offset_mapping"] = offsets
        if return_length:
            out["length"] = lengths
        if isinstance(text, str) and not return_tensors:
            return Encoding({k: v[0] for k, v in out.items()})
        return self._as_tensors(out, return_tensors)

    def _offsets(self, text: str, length: int, special: bool) -> list[tuple[int, int]]:
        at, out = 0, [(0, 0)] if special and self.adds_first else []
        for piece in self.pieces(text):
            out.append((at, at + len(piece)))
            at += len(piece)
        return out[:length] if self.truncation_side == "right" else out[-length:]

    @staticmethod
    def _as_tensors(out: Encoding, kind: str | None) -> Encoding:
        if kind != "pt":
            return out
        import torch

        return Encoding({k: torch.tensor(v) for k, v in out.items()})

    def pad(
        self,
        encoded_inputs: Any,
        padding: Any = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_tensors: str | None = None,
        **_: Any,
    ) -> Encoding:
        given = encoded_inputs
        if isinstance(given, (list, tuple)):
            given = {k: [f[k] for f in given] for k in given[0]}
        rows = [list(r) for r in given["input_ids"]]
        width = max_length if padding == "max_length" and max_length else max(map(len, rows))
        if pad_to_multiple_of:
            width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
        masks = [list(m) for m in given.get("attention_mask", [[1] * len(r) for r in rows])]
        out = Encoding({k: v for k, v in given.items() if k not in ("input_ids", "attention_mask")})
        out["input_ids"] = self._padded(rows, int(self.pad_token_id or 0), width)
        out["attention_mask"] = self._padded(masks, 0, width)
        return self._as_tensors(out, return_tensors)

    # Conversations

    def turns(self, messages: Any, tools: Any = None, add_generation_prompt: bool = False) -> list[tuple[str, bool]]:
        """Pieces of a rendered conversation, and whether the assistant writes them."""
        out: list[tuple[str, bool]] = [(str(self._tokens["bos"]), False)] if self.adds_first else []
        opens, closes, ends = (
            ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")
            if self.style == HEADERS
            else ("<|im_start|>", "\n", "<|im_end|>")
        )
        behind = "" if self.style == HEADERS else "\n"
        shown = list(messages)
        if tools:
            named = ", ".join(str(_tool_name(t)) for t in tools)
            out.append((f"{opens}system{closes}Tools: {named}{ends}{behind}", False))
        for m in shown:
            out.append((f"{opens}{m['role']}{closes}", False))
            written = m["role"] == "assistant"
            out.append((f"{_content(m)}{ends}", written))
            out.append((behind, False))
        if add_generation_prompt:
            out.append((f"{opens}assistant{closes}", False))
        return [(text, by) for text, by in out if text]

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        chat_template: Any = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: Any = False,
        truncation: Any = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = False,
        return_assistant_tokens_mask: bool = False,
        **_: Any,
    ) -> Any:
        many = bool(conversation) and isinstance(conversation[0], (list, tuple))
        chats = list(conversation) if many else [conversation]
        rendered = [self.turns(c, tools, add_generation_prompt) for c in chats]
        if continue_final_message:
            rendered = [_unclosed(r) for r in rendered]
        if not tokenize:
            texts = ["".join(t for t, _ in r) for r in rendered]
            return texts if many else texts[0]
        rows: list[list[int]] = []
        masks: list[list[int]] = []
        for turns in rendered:
            pairs = [(self._id(p), int(by)) for text, by in turns for p in self.pieces(text)]
            if truncation and max_length is not None:
                pairs = pairs[-max_length:] if self.truncation_side == "left" else pairs[:max_length]
            rows.append([i for i, _ in pairs])
            masks.append([by for _, by in pairs])
        attention = [[1] * len(r) for r in rows]
        if padding or (return_tensors and many):
            width = max(map(len, rows))
            rows, masks = self._padded(rows, int(self.pad_token_id or 0), width), self._padded(masks, 0, width)
            attention = self._padded(attention, 0, width)
        if not return_dict and return_tensors == "pt":
            import torch

            return torch.tensor(rows)
        if not return_dict:
            return [Ids(r) for r in rows] if many else Ids(rows[0])
        out = Encoding(input_ids=rows, attention_mask=attention)
        if return_assistant_tokens_mask:
            out["assistant_masks"] = masks
        if not many and return_tensors is None:
            return Encoding({k: v[0] for k, v in out.items()})
        return self._as_tensors(out, return_tensors)


def _content(message: Any) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(p.get("text", "")) if isinstance(p, dict) else str(p) for p in content)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    calls = message.get("tool_calls") or ()
    return str(content or "") + "".join(f"<tool_call>{c}</tool_call>" for c in calls)


def _tool_name(tool: Any) -> Any:
    inner = tool.get("function", tool) if isinstance(tool, dict) else tool  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return inner.get("name") if isinstance(inner, dict) else inner  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _unclosed(turns: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """A rendered conversation whose last message is left open."""
    out = [t for t in turns if t[0] != "\n"] if turns and turns[-1][0] == "\n" else list(turns)
    if not out or not out[-1][1]:
        return turns
    text = out[-1][0]
    for end in ("<|im_end|>", "<|eot_id|>"):
        text = text.removesuffix(end)
    kept = turns[:-1] if turns[-1][0] == "\n" else turns
    return [*kept[:-1], (text, True)]


def _token_property(kind: str) -> tuple[property, property]:
    def get_token(self: ChatTokenizer) -> str | None:
        return self._tokens[kind]  # pyright: ignore[reportPrivateUsage]

    def set_token(self: ChatTokenizer, token: Any) -> None:
        tokens = self.__dict__.get("_tokens")
        if tokens is not None:
            tokens[kind] = None if token is None else str(token)

    def get_id(self: ChatTokenizer) -> int | None:
        token = self._tokens[kind]  # pyright: ignore[reportPrivateUsage]
        return None if token is None else self._id(token)  # pyright: ignore[reportPrivateUsage]

    def set_id(self: ChatTokenizer, token_id: Any) -> None:
        tokens = self.__dict__.get("_tokens")
        if tokens is not None:
            tokens[kind] = None if token_id is None else self._piece(int(token_id))  # pyright: ignore[reportPrivateUsage]

    return property(get_token, set_token), property(get_id, set_id)


for _kind in ("eos", "bos", "pad", "unk"):
    _by_text, _by_id = _token_property(_kind)
    setattr(ChatTokenizer, f"{_kind}_token", _by_text)
    setattr(ChatTokenizer, f"{_kind}_token_id", _by_id)


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
