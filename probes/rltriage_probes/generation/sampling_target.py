"""From a user's generating function to one that can be called with a scene: model, prompts and settings.

Parameters, entries of containers and attributes of `self` are known by name. What a name can mean in more than one
form (texts or ids, a tensor or lists, one prompt or many) is settled by calling.
"""

from __future__ import annotations

import ast
import heapq
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import filling, invoke, selfs, source
from rltriage_probes.aliases import CONFIG_NAMES, CONTAINER_NAMES, is_flag, snake
from rltriage_probes.contract import BindingReport, Slot
from rltriage_probes.generation import rollouts
from rltriage_probes.generation.rollouts import Rollout, Unreadable
from rltriage_probes.generation.tiny_lm import PromptTokenizer, Settings, TableModel
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded
from rltriage_probes.model import CallFailed, Observation, Role
from rltriage_probes.reports import BindingFailed
from rltriage_probes.selfs import NOTHING

MAX_TRIALS = 80
SPELLINGS: dict[str, str] = {
    "model": (
        "model policy policy_model actor lm net llm unwrapped_model policy_net base_model actor_model gen_model "
        "generator_model causal_lm transformer unwrapped engine sampler_model"
    ),
    "tokenizer": "tokenizer processing_class tok processor hf_tokenizer",
    "prompts": (
        "prompts conversations message_lists chats queries questions "
        "prompt_texts texts batch_prompts problems inputs_text instructions prompt_list"
    ),
    "prompt": "prompt messages conversation chat query question prompt_text text problem instruction",
    "prompt_ids": (
        "prompt_ids input_ids prompt_input_ids prompt_tokens query_ids query_tensors query_tokens context_ids ids "
        "tokens "
        "token_ids idx context prefix x prompt_token_ids prompts_ids inputs_ids sequence sequences start_ids "
        "prompt_tensor"
    ),
    "attention_mask": "attention_mask attn_mask prompt_mask prompt_attention_mask input_mask mask query_mask",
    "logits": "logits next_token_logits last_logits scores next_logits",
    "n": (
        "n num_generations num_return_sequences n_samples num_samples group_size samples_per_prompt "
        "rollouts_per_prompt k "
        "num_completions n_samples_per_prompt num_samples_per_prompt num_answer_per_question completions_per_prompt "
        "num_answers_per_question g n_rollouts num_rollouts rollout_n best_of generations_per_prompt"
    ),
    "max_new_tokens": (
        "max_new_tokens max_tokens max_completion_length max_response_length max_gen_len max_gen_length steps "
        "num_tokens "
        "max_generated_tokens max_length_new gen_length gen_len max_steps response_length completion_length max_new "
        "n_tokens num_new_tokens max_gen max_response_len max_completion_len length max_completion_tokens new_tokens"
    ),
    "max_length": "max_length max_len max_total_length max_seq_len total_length max_sequence_length",
    "temperature": "temperature temp tau sampling_temperature t rollout_temperature",
    "top_p": "top_p nucleus_p p nucleus topp",
    "top_k": "top_k topk k_top",
    "min_p": "min_p",
    "do_sample": "do_sample sample sampling",
    "eos_token_id": "eos_token_id eos_id eos stop_token_id end_token_id eos_token stop_token stop_id end_id eot_id",
    "stop_ids": "stop_tokens stop_token_ids stop_ids eos_token_ids eos_ids terminators",
    "pad_token_id": "pad_token_id pad_id pad pad_token padding_id fill_value pad_value",
    "seed": "seed base_seed random_seed rollout_seed sampling_seed seed_base",
    "generator": "generator rng gen torch_generator g_rng random_generator",
    "workers": "num_workers workers n_workers world_size num_shards n_shards num_engines shards num_replicas",
    "chunk": "batch_size micro_batch_size chunk_size mini_batch_size bs chunk gen_batch_size batch minibatch_size",
    "device": "device",
    "generation_config": "generation_config gen_config",
}
MEANINGS = {name: word for word, names in reversed(SPELLINGS.items()) for name in names.split()}
VOCABULARY = {
    "group_size": "n", "max_completion_length": "max_new_tokens", "token_ids": "prompt_ids", "text": "prompt",
    "texts": "prompts", "completion_length": "max_new_tokens", "chunk_size": "chunk",
}  # fmt: skip
"""Words of the vocabulary as this role calls them."""
SETTINGS = ("n", "max_new_tokens", "max_length", "temperature", "top_p", "top_k", "min_p", "do_sample", "eos_token_id",
            "stop_ids", "pad_token_id", "seed", "generator", "workers", "chunk")  # fmt: skip
_HOLDERS = re.compile(
    r"(sampling|gen|generate|generation|decoding|rollout)_?(params|kwargs|args|config|cfg|settings|options)$"
)


@dataclass(frozen=True)
class Scene:
    """What one call is about."""

    prompts: tuple[str, ...]
    n: int = 1
    max_new_tokens: int = 6
    temperature: float | None = 1.0
    top_p: float | None = None
    """None: the neutral value."""
    top_k: int | None = None
    seed: int = 0
    workers: int = 1
    sharp: bool = True
    training: bool = False
    sample: bool = True
    logits: Tensor | None = None
    """[B, V], for functions that choose one token."""


class Stage:
    """The objects of one scene."""

    def __init__(self, scene: Scene, style: str) -> None:
        self.scene = scene
        self.tokenizer = PromptTokenizer()
        self.model = TableModel(self.tokenizer, sharp=scene.sharp, style=style)
        self.model.train(scene.training)
        self.ids = [self.tokenizer.encode(p) for p in scene.prompts]
        self.width = max(map(len, self.ids), default=0)
        self.padded = [[self.tokenizer.pad_token_id] * (self.width - len(r)) + r for r in self.ids]

    @property
    def size(self) -> int:
        """Entries of the vocabulary."""
        return len(self.tokenizer) if self.scene.logits is None else int(self.scene.logits.shape[-1])

    def setting(self, word: str, name: str = "", default: Any = NOTHING) -> Any:  # noqa: C901, PLR0912  a flat table
        """The value of a setting; `NOTHING` where the scene has none."""
        scene = self.scene
        if word == "n":
            return scene.n
        if word == "max_new_tokens":
            return scene.max_new_tokens
        if word == "max_length":
            return self.width + scene.max_new_tokens
        if word == "temperature":
            return scene.temperature if scene.temperature is not None else NOTHING
        if word == "top_p":
            return scene.top_p if scene.top_p is not None else (None if default is None else 1.0)
        if word == "top_k":
            return (
                scene.top_k
                if scene.top_k is not None
                else (self.size // 2 if default not in (NOTHING, None, 0, -1) else default)
            )
        if word == "min_p":
            return NOTHING if default is not NOTHING else None
        if word == "do_sample":
            return scene.sample
        if word == "eos_token_id":
            return (
                self.tokenizer.eos_token
                if name.endswith("_token") and not name.endswith("stop_token")
                else self.tokenizer.eos_token_id
            )
        if word == "stop_ids":
            return [self.tokenizer.eos_token_id]
        if word == "pad_token_id":
            return self.tokenizer.pad_token if name == "pad_token" else self.tokenizer.pad_token_id
        if word == "seed":
            return scene.seed
        if word == "generator":
            return torch.Generator().manual_seed(scene.seed)
        if word == "workers":
            return scene.workers
        if word == "chunk":
            return 2 if scene.sharp else 64
        return NOTHING


Give = Callable[[Stage, int], Any]
"""Value of a place; the number is that of the prompt, for functions that take one."""


@dataclass(frozen=True)
class Form:
    """One way to hand something over."""

    says: str
    give: Give
    single: bool = False
    """One prompt a call."""
    ragged: bool = True
    """Whether prompts of unequal length can be told apart from padding."""


@dataclass
class Place:
    """A parameter with what it means and the forms that it may take."""

    name: str
    word: str
    forms: list[Form]
    positional: bool = False


@dataclass
class GeneratingTarget:
    """A user's function, called with scenes. Implements `model.BoundFunction`."""

    loaded: Loaded
    places: list[Place]
    picks: dict[str, Form]
    make_self: Callable[[Stage], Any] | None
    style: str
    text: str
    words: frozenset[str]
    report: BindingReport = field(default_factory=BindingReport)
    names: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    last: Stage | None = None

    @property
    def single(self) -> bool:
        return any(f.single for f in self.picks.values())

    @property
    def ragged(self) -> bool:
        """Whether prompts of unequal length can be given."""
        words = {n: self._word(n) for n in self.picks}
        told = any(f.ragged for n, f in self.picks.items() if words[n] in ("prompts", "prompt", "batch", "prompt_ids"))
        return self.single or told or "attention_mask" in self.words

    def _word(self, name: str) -> str:
        return next((p.word for p in self.places if p.name == name), "")

    def rollout(self, scene: Scene) -> Rollout:
        """The completions of a scene. Raises `CallFailed`, `Unreadable` or `NotReached`."""
        stage = Stage(scene, self.style)
        self.last = stage
        if not self.single:
            return rollouts.read(self.raw(stage, 0), stage.tokenizer, stage.ids)
        parts: list[Rollout] = []
        for i in range(len(scene.prompts)):
            parts.append(rollouts.read(self.raw(stage, i), stage.tokenizer, stage.ids[i : i + 1]))
        return rollouts.joined(parts)

    def raw(self, stage: Stage, i: int) -> Any:
        """One call; what it returned."""
        given = {p.name: self.picks[p.name].give(stage, i) for p in self.places if p.name in self.picks}
        positional = [given.pop(p.name) for p in self.places if p.positional and p.name in given]
        given = {k: v for k, v in given.items() if v is not NOTHING}
        function = self.loaded.function
        root, file = self.loaded.root, self.loaded.path
        if self.make_self is not None:
            maker = self.make_self
            positional.insert(0, invoke.guarded(lambda: maker(stage), root, file))
        result = invoke.guarded(lambda: function(*positional, **given), root, file)
        if inspect.iscoroutine(result):
            result = invoke.awaited(result, root, file)
        if inspect.isgenerator(result):
            result = invoke.guarded(lambda: list(result), root, file)
        if self.loaded.stand_ins is not None:
            self.loaded.stand_ins.check()
        return result

    def call(self, inputs: Mapping[str, Any], wrt: Sequence[str] = (), dtype: str = "float32") -> Observation:
        raise NotReached("a generating function is no function of tensors")

    def call_raw(self, inputs: Mapping[str, Any]) -> Any:
        raise NotReached("a generating function is called with scenes")


# Binding


def bind(
    loaded: Loaded,
    role: Role,
    explicit: Mapping[str, str],
    settings: Mapping[str, Any],
    intent: Mapping[str, Any],
    name: str = "",
) -> GeneratingTarget:
    """The function as one of scenes. Raises `BindingFailed`, `CallFailed` or `NotReached`."""
    return _Binder(loaded, explicit, settings, intent).run()


class _Binder:
    def __init__(
        self, loaded: Loaded, explicit: Mapping[str, str], settings: Mapping[str, Any], intent: Mapping[str, Any]
    ) -> None:
        self.loaded = loaded
        self.explicit = explicit
        self.settings = settings
        self.intent = intent
        self.text = _text(loaded)
        self.opened: list[str] = []
        self.words: set[str] = set()
        self.hows: dict[str, str] = {}

    def run(self) -> GeneratingTarget:
        parameters = list(self.loaded.signature().parameters.values())
        if self.loaded.kind == "method" and parameters:
            parameters = parameters[1:]
        places = [p for p in map(self._place, parameters) if p is not None]
        if self.opened:
            lines = ", ".join(f'{n} = "=<Python literal>"' for n in self.opened)
            report = BindingReport(open=tuple(self.opened), tried=("names",), example=f"bind = {{ {lines} }}")
            raise BindingFailed(f"nothing is known of {', '.join(self.opened)} of {self.loaded.qualname}", report)
        if self.loaded.kind == "method":
            self.words |= {MEANINGS[n] for n in _attributes(self.text) if n in MEANINGS}
        if not self.words & {"prompts", "prompt", "prompt_ids", "batch", "logits"}:
            raise BindingFailed(
                f"nothing of {self.loaded.qualname} was recognised as prompts, their token ids or logits",
                BindingReport(example='bind = { "<parameter>" = "prompts" }', open=("prompts",)),
            )
        return self._settled(places)

    # What a parameter means

    def _place(self, p: inspect.Parameter) -> Place | None:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return None
        default = NOTHING if p.default is p.empty else p.default
        forms, word = self._forms(p.name, _annotation(p), default)
        if forms:
            self.words.add(word)
            return Place(p.name, word, forms, p.kind is p.POSITIONAL_ONLY)
        if default is NOTHING:
            self.opened.append(p.name)
        return None

    def _forms(self, name: str, hint: str, default: Any) -> tuple[list[Form], str]:
        said = self.explicit.get(name, "")
        if said.startswith("="):
            value = filling.evaluate(said[1:], self.loaded.namespace)
            return [Form("bound", lambda s, i: value)], "constant"
        if name in self.settings:
            value = self.settings[name]
            return [Form("setting", lambda s, i: value)], "constant"
        plain = snake(name)
        word = VOCABULARY.get(said, said) or self._meaning(plain, name)
        if word in SETTINGS:
            return self._scalar(word, plain, default), word
        if word == "attention_mask" and "logits" in self.words:
            return [], ""
        maker = {
            "model": self._model, "tokenizer": self._tokenizer, "prompts": self._prompts, "prompt": self._prompt,
            "prompt_ids": self._ids, "attention_mask": self._mask, "logits": self._logits, "device": self._device,
            "generation_config": self._generation_config,
        }.get(word)  # fmt: skip
        if maker is not None and (default is NOTHING or word in ("model", "tokenizer", "attention_mask")):
            return maker(name, hint), word
        if default is not NOTHING:
            return [], ""
        if plain in CONFIG_NAMES or _HOLDERS.search(plain):
            return self._config(name), "config"
        if plain in CONTAINER_NAMES or self._keys(name):
            return self._batch(name), "batch"
        if is_flag(name):
            return [Form("off", lambda s, i: False)], "flag"
        value = selfs.surroundings(plain)
        return ([Form("surroundings", lambda s, i: value)], "constant") if value is not NOTHING else ([], "")

    def _meaning(self, plain: str, name: str) -> str:
        word = MEANINGS.get(plain, "")
        used = set(re.findall(rf"\b{re.escape(name)}\.(\w+)", self.text))
        if word in ("prompt_ids", "prompts", "prompt") and "generate" in used:
            return "model"
        if word == "prompts" and used & {"shape", "size", "to", "repeat_interleave", "clone", "dim"}:
            return "prompt_ids"
        if word == "prompt" and used & {
            "shape",
            "size",
            "to",
            "repeat",
            "unsqueeze",
            "dim",
            "expand",
            "repeat_interleave",
        }:
            return "prompt_ids"
        if word == "" and plain in ("inputs", "batch", "encoded", "encodings"):
            keyed = bool(self._keys(name)) or re.search(rf"\*\*{name}\b", self.text)
            return "" if keyed else "prompt_ids" if used & {"shape", "size"} else "prompts"
        if word == "chunk" and self._keys(name):
            return ""
        if plain == "k" and "top_k" not in self.text and "logits" in self.text and "model" not in self.text:
            return "top_k"
        return word

    def _keys(self, name: str) -> list[str]:
        """Entries and attributes that are read of a parameter, or of the items of a list of them."""
        items = re.findall(rf"for (\w+) in (?:enumerate\()?{re.escape(name)}\b", self.text)
        return list(dict.fromkeys(k for n in (name, *items) for k in self._keys_of(n)))

    def _keys_of(self, name: str) -> list[str]:
        pattern = rf"\b{re.escape(name)}(?:\[|\.get\(|\.pop\()['\"](\w+)['\"]"
        attributes = rf"\b{re.escape(name)}\.(\w+)\b(?!\()"
        return list(dict.fromkeys(re.findall(pattern, self.text) + re.findall(attributes, self.text)))

    # Forms

    def _scalar(self, word: str, name: str, default: Any) -> list[Form]:
        def give(stage: Stage, i: int) -> Any:
            value = stage.setting(word, name, default)
            return value if value is not NOTHING or default is not NOTHING else None

        return [Form("number", give)]

    def _model(self, name: str, hint: str) -> list[Form]:
        return [Form("a known model", lambda s, i: s.model)]

    def _tokenizer(self, name: str, hint: str) -> list[Form]:
        return [Form("one token a character", lambda s, i: s.tokenizer)]

    def _device(self, name: str, hint: str) -> list[Form]:
        return [Form("cpu", lambda s, i: torch.device("cpu"))]

    def _generation_config(self, name: str, hint: str) -> list[Form]:
        def give(stage: Stage, i: int) -> Any:
            scene = stage.scene
            return Settings(
                do_sample=scene.sample, temperature=scene.temperature or 1.0, top_p=scene.top_p or 1.0,
                top_k=scene.top_k or 0, max_new_tokens=scene.max_new_tokens,
                eos_token_id=stage.tokenizer.eos_token_id, pad_token_id=stage.tokenizer.pad_token_id,
            )  # fmt: skip

        self.words |= {"temperature", "top_p", "top_k", "max_new_tokens"}
        return [Form("a generation config", give)]

    def _prompts(self, name: str, hint: str) -> list[Form]:
        texts = Form("list of texts", lambda s, i: list(s.scene.prompts))
        chats = Form("list of chats", lambda s, i: [[{"role": "user", "content": p}] for p in s.scene.prompts])
        lists = Form("list of lists of ids", lambda s, i: [list(r) for r in s.ids])
        tensors = Form("list of tensors of ids", lambda s, i: [torch.tensor(r) for r in s.ids])
        if re.search(r"list\[int\]\]|ids", hint.lower()) or (
            "tokenizer" not in self.text and "processing_class" not in self.text
        ):
            return [lists, tensors, *self._ids(name, hint), texts, chats]
        return [chats, texts, lists] if "apply_chat_template" in self.text else [texts, chats, lists]

    def _prompt(self, name: str, hint: str) -> list[Form]:
        text = Form("text", lambda s, i: s.scene.prompts[i], single=True)
        chat = Form("chat", lambda s, i: [{"role": "user", "content": s.scene.prompts[i]}], single=True)
        ids = Form("list of ids", lambda s, i: list(s.ids[i]), single=True)
        if "apply_chat_template" in self.text:
            return [chat, text]
        return [text, chat, ids] if "tokenizer" in self.text else [ids, *self._ids(name, hint), text]

    def _ids(self, name: str, hint: str) -> list[Form]:
        whole = Form("[B, P] long, padded in front", lambda s, i: torch.tensor(s.padded), ragged=self._told_padded())
        lists = Form("list of lists", lambda s, i: [list(r) for r in s.ids])
        tensors = Form("list of tensors", lambda s, i: [torch.tensor(r) for r in s.ids])
        row = Form("[P] long", lambda s, i: torch.tensor(s.ids[i]), single=True)
        one = Form("[1, P] long", lambda s, i: torch.tensor([s.ids[i]]), single=True)
        flat = Form("list of int", lambda s, i: list(s.ids[i]), single=True)
        low = hint.lower()
        if "list[list" in low or "sequence[sequence" in low:
            return [lists, tensors, whole]
        if "list[int" in low:
            return [flat, lists, row]
        if "list[torch" in low or "list[tensor" in low:
            return [tensors, lists, whole]
        iterated = re.search(rf"for [\w, ]+ in (enumerate\()?{re.escape(name)}\b|len\({re.escape(name)}\)", self.text)
        if re.search(
            rf"\b{re.escape(name)}\.(shape|size|to|repeat|clone|expand|repeat_interleave|device|dim)\b", self.text
        ):
            return [whole, one, row, lists]
        return [lists, whole, tensors, flat, row] if iterated else [whole, one, row, lists, flat]

    def _told_padded(self) -> bool:
        """Whether prompts of unequal length may stand in one tensor without a mask of their own."""
        said = r"left[- ]?pad|padded (prompts|in front|on the left)|prompts[^.\n]{0,20} padded|(\.ne\(|!=\s*)[\w.]*pad"
        return re.search(said, self.text, re.I) is not None

    def _mask(self, name: str, hint: str) -> list[Form]:
        def give(stage: Stage, i: int) -> Any:
            return torch.tensor([[0] * (stage.width - len(r)) + [1] * len(r) for r in stage.ids])

        return [Form("[B, P] long", give)]

    def _logits(self, name: str, hint: str) -> list[Form]:
        def whole(stage: Stage, i: int) -> Any:
            assert stage.scene.logits is not None
            return stage.scene.logits.clone()

        return [Form("[B, V]", whole), Form("[V]", lambda s, i: whole(s, i)[i], single=True)]

    def _config(self, name: str) -> list[Form]:
        def values(stage: Stage) -> dict[str, Any]:
            out: dict[str, Any] = {}
            for key in self._keys(name):
                word = MEANINGS.get(snake(key), "")
                value = stage.setting(word, key) if word in SETTINGS else NOTHING
                if value is NOTHING:
                    value = False if is_flag(key) else selfs.surroundings(snake(key))
                out[key] = None if value is NOTHING else value
            return out

        self.words |= {MEANINGS[snake(k)] for k in self._keys(name) if snake(k) in MEANINGS}

        def starred(stage: Stage) -> dict[str, Any]:
            """Keywords for `generate(**config)`."""
            scene = stage.scene
            return {
                "do_sample": scene.sample, "temperature": scene.temperature or 1.0,
                "max_new_tokens": scene.max_new_tokens, "top_p": scene.top_p or 1.0, "top_k": scene.top_k or 0,
            }  # fmt: skip

        spread = re.search(rf"\*\*\s*{re.escape(name)}\b", self.text) is not None
        if spread:
            self.words |= {"temperature", "top_p", "top_k", "max_new_tokens"}
            return [Form("keywords of generate", lambda s, i: {**starred(s), **values(s)})]
        box = Form("config object", lambda s, i: SimpleNamespace(**values(s)))
        table = Form("config dict", lambda s, i: values(s))
        subscripted = re.search(rf"\b{re.escape(name)}(\[['\"]|\.get\()", self.text) is not None
        return [table, box] if subscripted else [box, table]

    def _batch(self, name: str) -> list[Form]:
        keys = self._keys(name)
        spread = re.search(rf"\*\*\s*{re.escape(name)}\b", self.text) is not None
        if spread:
            keys = list(dict.fromkeys([*keys, "input_ids", "attention_mask"]))
        self.words |= {MEANINGS[snake(k)] for k in keys if snake(k) in MEANINGS}

        def values(stage: Stage, i: int) -> dict[str, Any]:
            out: dict[str, Any] = {}
            for key in keys:
                forms, _ = self._forms(key, "", NOTHING) if key != name else ([], "")
                if forms:
                    out[key] = forms[0].give(stage, i)
            return out

        def record(stage: Stage, i: int) -> list[dict[str, Any]]:
            return [
                {k: p if MEANINGS.get(snake(k)) in ("prompt", "prompts") else None for k in keys}
                for p in stage.scene.prompts
            ]

        from rltriage_probes.standins import Encoding

        table = Form("dict", lambda s, i: Encoding(values(s, i)))
        listed = Form("list of dicts", record)
        return [listed, table] if re.search(rf"for \w+ in {re.escape(name)}\b", self.text) else [table, listed]

    # Settling

    def _settled(self, places: list[Place]) -> GeneratingTarget:
        failure: Exception | None = None
        scene = Scene(("say abc", "tell me"), n=2, max_new_tokens=4, logits=torch.randn(2, 64))
        for make_self in self._selves():
            for style in _styles(self.text):
                for picks in _combinations(places):
                    made = GeneratingTarget(
                        self.loaded,
                        places,
                        picks,
                        make_self,
                        style,
                        self.text,
                        frozenset(self.words),
                        settings=dict(self.settings),
                    )
                    try:
                        with torch.random.fork_rng([]):
                            got = made.rollout(scene)
                    except (CallFailed, NotReached, Unreadable) as e:
                        failure = failure or e
                        continue
                    chosen = len(got.rows[0]) if "logits" in self.words and len(got.rows) == 1 else 0
                    if max(len(got.rows), chosen) < len(scene.prompts):
                        continue
                    made.report = self._report(places, picks, got)
                    return made
        if isinstance(failure, Unreadable) or failure is None:
            raise BindingFailed(
                f"{self.loaded.qualname}: {failure or 'no form of the prompts gives a row for each'}", BindingReport()
            )
        raise failure

    def _selves(self) -> list[Callable[[Stage], Any] | None]:
        owner = self.loaded.owner
        if self.loaded.kind != "method" or owner is None:
            return [None]
        found: list[Callable[[Stage], Any] | None] = []
        constructed = self._constructed(owner)
        if constructed is not None:
            found.append(constructed)
        found.append(lambda stage: self._stand_in(owner, stage))
        return found

    def _constructed(self, owner: type) -> Callable[[Stage], Any] | None:
        try:
            parameters = list(inspect.signature(owner).parameters.values())
        except (TypeError, ValueError):
            return None
        kept, self.opened = self.opened, []
        places = [p for p in map(self._place, parameters) if p is not None]
        failed, self.opened = bool(self.opened), kept
        if failed:
            return None

        def build(stage: Stage) -> Any:
            given = {p.name: p.forms[0].give(stage, 0) for p in places}
            return owner(**{k: v for k, v in given.items() if v is not NOTHING})

        return build

    def _stand_in(self, owner: type, stage: Stage) -> Any:
        def lookup(name: str, shown: str, generous: bool = True) -> Any:
            forms, word = self._forms(name, "", NOTHING)
            if word == "config":
                return forms[0].give(stage, 0)
            if forms:
                return forms[0].give(stage, 0)
            return selfs.Unknown(shown)

        return selfs.stand_in(owner, lookup)

    def _report(self, places: Sequence[Place], picks: Mapping[str, Form], got: Rollout) -> BindingReport:
        slots = tuple(
            Slot(
                path=p.name, meaning=p.word, how="bind" if p.name in self.explicit else "name", form=picks[p.name].says
            )
            for p in places
        )
        kind = "texts" if got.texts else "token ids"
        beside = ", with log-probs" if got.logprobs is not None else ""
        return BindingReport(slots=slots, returns=f"{kind} in {got.where}{beside}")


def _combinations(places: Sequence[Place]) -> Iterator[dict[str, Form]]:
    heap: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * len(places))]
    seen: set[tuple[int, ...]] = set()
    while heap and len(seen) < MAX_TRIALS:
        cost, at = heapq.heappop(heap)
        if at in seen:
            continue
        seen.add(at)
        yield {p.name: p.forms[k] for p, k in zip(places, at, strict=True)}
        for i, k in enumerate(at):
            if k + 1 < len(places[i].forms):
                heapq.heappush(heap, (cost + 1, (*at[:i], k + 1, *at[i + 1 :])))


def _styles(text: str) -> tuple[str, ...]:
    """What a call of the model is to return, judged by what is done with it."""
    if re.search(r"\.logits\b|\[['\"]logits['\"]\]|\.generate\(", text):
        return ("output",)
    if re.search(r"\w+\s*,\s*\w+\s*=\s*(self\.)?\w*(model|policy|net|lm)\w*\(", text):
        return ("pair", "tensor", "output")
    if re.search(r"(model|policy|net|lm)\w*\([^\n]*\)\[0\]", text):
        return ("pair", "output", "tensor")
    return ("tensor", "output", "pair")


def _text(loaded: Loaded) -> str:
    """Source of the function and of the helpers that it calls in its file."""
    parts = [loaded.source]
    seen = {loaded.node.name}
    queue = [loaded.node]
    while queue and len(parts) < 20:
        for call in (n for n in ast.walk(queue.pop(0)) if isinstance(n, ast.Call)):
            name = ast.unparse(call.func)
            helper = loaded.helpers.get(name)
            if helper is not None and name not in seen:
                seen.add(name)
                queue.append(helper)
                parts.append(ast.unparse(helper))
    owner = loaded.qualname.rpartition(".")[0]
    init = source.find_definition(loaded.tree, f"{owner}.__init__") if owner else None
    if init is not None:
        parts.append(ast.unparse(init))
    return "\n".join(parts)


def _attributes(text: str) -> list[str]:
    return [snake(n) for n in re.findall(r"self\.(?:\w+\.)?(\w+)", text)]


def _annotation(p: inspect.Parameter) -> str:
    if p.annotation is p.empty:
        return ""
    if isinstance(p.annotation, str):
        return p.annotation
    return (
        getattr(p.annotation, "__name__", str(p.annotation))
        if not hasattr(p.annotation, "__args__")
        else str(p.annotation)
    )


def with_scene(scene: Scene, **changes: Any) -> Scene:
    """A scene with other settings."""
    return replace(scene, **changes)
