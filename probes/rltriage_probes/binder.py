"""What is known of one function's places while it is being bound: the meaning of a name and the value of a setting."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from rltriage_probes import aliases, containers, pairs, reports, source
from rltriage_probes.filling import SCALARS, FixedSource, MadeSource, Plan, Source, WordSource, evaluate
from rltriage_probes.forms import Call, Hints, Missing, common_shape, forms_for
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded
from rltriage_probes.model import Role
from rltriage_probes.reports import BindingFailed
from rltriage_probes.selfs import LEARNING_ROLES, NOTHING, Seam, Unknown, is_config, surroundings
from rltriage_probes.source import Facts, Path
from rltriage_probes.vocabulary import WORDS

SETTING_WORDS = frozenset(
    "clip clip_low clip_high dual_clip clip_value beta entropy_coef temperature eps scale_rewards "
    "aggregation loss_type "
    "ratio_level kl_estimator gamma lam group_size max_completion_length eos_token_id pad_token_id "
    "chunk_size token_count "
    "row_count prompt_length completion_length".split()
)
"""Scalars that any function may take, whatever its role lists."""
ADAPTER = "RLTRIAGE_ADAPTER"
"""Name in a module whose functions take words of the vocabulary under their own names (`rltriage adapter`)."""
HEAD_WORDS = frozenset(("hidden_states", "lm_head_weight", "lm_head_bias"))
"""What a fused head takes in place of logits."""
DOCUMENTED: dict[str, Any] = {
    "clip": 0.2, "clip_low": 0.2, "clip_high": 0.2, "clip_value": 0.2, "beta": 0.04, "temperature": 1.0,
    "group_size": 4,
    "gamma": 1.0, "lam": 0.95, "entropy_coef": 0.0, "eps": 1e-6, "dual_clip": None, "scale_rewards": True,
    "chunk_size": 2, "target_margin": 1.0, "margin_ratio": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.0,
    "nll_weight": 1.0, "penalty_weight": 1.0, "center_coef": 0.01,
    "eos_token_id": 2, "pad_token_id": 0, "dim": None,
}  # fmt: skip
"""Values that papers and frameworks document, for what the function demands and nobody says."""
_CLIP = {
    "clip": ("clip", "clip_low", "clip_high"),
    "clip_low": ("clip_low", "clip"),
    "clip_high": ("clip_high", "clip", "clip_low"),
}


_COMPARES_ROWS = source.re.compile(
    r"\.all\(|\.any\(|torch\.equal|array_equal|dim=0|axis=0|tuple\(|unique_consecutive|decode\("
)
"""How code tells prompts apart that it has as rows of tokens."""


_OF_EPISODES = source.re.compile(r"\b(episodes?|terminal|terminated|dones?)\b", source.re.I)
"""What documentation says of a mask that marks where episodes end, not which tokens are there."""
_HEAD = source.re.compile(r"(lm_|output_|vocab_|out_)?(head|proj|projection|linear|layer|unembed\w*)|embed_out")


_READS_WORDS = source.re.compile(r"\.(split|lower|strip|casefold|splitlines)\(|\bfindall\(|\btokenize\(")
"""Signs that completions come as text."""
_RECORDS = frozenset("features examples instances batch items samples data_list item_list".split())
"""Names of lists of samples."""


def _vocabulary(call: Call) -> int:
    return int(call.get("logits").shape[-1])


def _no_penalty(call: Call) -> Any:
    """Log-probs [N, T] that are all 0: whatever penalty a function takes from their difference, it is 0."""
    import torch

    mask = call.inputs.get("completion_mask")
    shape = (call.samples(), 5) if mask is None else tuple(mask.shape)
    return torch.zeros(shape)


class _NoEntry(NotReached, KeyError):
    """Also a `KeyError`, since the user's code may be ready for one."""


class Binder:
    """The state that the parts of the binding share: the plan, what is known, and how a name is read."""

    def __init__(
        self, loaded: Loaded, role: Role, explicit: Mapping[str, str], settings: Mapping[str, Any],
        intent: Mapping[str, Any],
        name: str, lists: bool | None, generous: bool,
    ) -> None:  # fmt: skip
        self.loaded = loaded
        self.role = role
        self.settings = dict(settings)
        self.intent = dict(intent)
        self.target = name
        self.lists = lists
        self.example = role.example(intent)
        self.takes = frozenset(role.takes) | SETTING_WORDS | {"lengths", "cu_seqlens"}
        if role.name in ("logprobs", "entropy"):
            self.takes |= HEAD_WORDS
        self.current: Call | None = None
        self.known: dict[str, Any] = {}
        self.hows: dict[str, str] = {}
        self.plan = Plan()
        self.tried: list[str] = []
        self.seams: dict[str, Seam] = {}
        self.generous = generous
        self.dynamic: set[str] = set()
        """Words that a container gave for keys which the source does not show."""
        self.known_from_self = False
        """Whether the settings were read from an object that the class's own constructor made."""
        self.attributes: dict[str, tuple[str, Any]] = {}
        """Attributes that the function reads and whose value is known: path -> word, value."""
        self.facts: Facts = source.analyse(loaded.node, loaded.helpers, loaded.source)
        self.signature = loaded.signature()
        self.docs = self._docs()
        self.common = common_shape(loaded.doc)
        self.explicit = self._explicit(explicit)

    def _docs(self) -> dict[str, str]:
        names = {n for n in self.signature.parameters}
        for root, reads in self.facts.reads.items():
            names.add(root)
            names |= {step[1] for path in reads for step in path if step[1]}
        doc = self.loaded.doc
        owner = self.loaded.owner
        if owner is not None and isinstance(owner.__doc__, str):
            doc = f"{doc}\n\n{inspect.cleandoc(owner.__doc__)}" if owner.__doc__ not in doc else doc
        return source.describe(doc, names)

    def _explicit(self, explicit: Mapping[str, str]) -> dict[str, str]:
        """The user's bind table with paths in one spelling."""
        out: dict[str, str] = {}
        for key, value in explicit.items():
            try:
                root, path = source.parse_path(key)
            except ValueError as e:
                raise BindingFailed(str(e), reports.report_open(self, [key])) from None
            if self.role.name in pairs.PAIR_ROLES:
                value = pairs.of_pairs(self, value)
            if value not in self.role.takes:
                # said in the words of another role: the clip distance of a weight is its cap
                meant = aliases.ROLE_NAMES.get(self.role.name, {}).get(value, "")
                if not meant and value not in WORDS:  # or in a spelling: `input_ids` are a decoder's token ids
                    match = aliases.resolve(value, self.role.name, self.role.takes)
                    meant = match.word if match is not None and match.how in ("name", "normalised name") else ""
                value = meant if meant in self.role.takes else value
            if not value.startswith("=") and value not in WORDS:
                near = ", ".join(self.role.takes[:10])
                raise BindingFailed(
                    f"bind: {key} = {value!r} is no word of the vocabulary; {self.role.name} functions take {near}",
                    reports.report_open(self, [key]),
                )
            out[source.render(root, path)] = value
        return out

    def place(self, root: str, name: str, path: Path, annotation: str, default: Any) -> Source | None:
        """The source of one place, None where it stays at its default or open."""
        shown = source.render(root, path)
        if shown in self.explicit:
            return self.said(shown, name, annotation, default)
        for key in (shown, name):
            if key in self.settings and key not in WORDS:
                return FixedSource(path=shown, value=self.settings[key], meaning="constant", how="settings")
        if self.role.name in LEARNING_ROLES:
            from rltriage_probes import learning

            taken = learning.place(self, root, name, path, annotation, default, shown)
            if taken is not None:
                return taken
        switched = pairs.flag(self, shown, name, default) if self.role.name in pairs.PAIR_ROLES else None
        if switched is not None:
            return switched
        container = containers.is_container(self, root, path)
        word, how, inverted = self.meaning(root, name, path, annotation, default)
        if (
            container
            and word not in ("tokenizer", "model")
            and not (word and how == "name" and not containers.record_keys(self, root, path))
        ):
            made = containers.container(self, root, name, path, annotation, default)
            if made is not None:
                return made
        if word:
            return self.word_source(shown, name, word, how, inverted, annotation, default)
        if is_config(name, annotation) and default is NOTHING:
            return containers.config(self, shown, name, annotation, root, path)
        return self.constant(shown, name, default)

    def said(self, shown: str, name: str, annotation: str, default: Any) -> Source:
        value = self.explicit[shown]
        if value.startswith("="):
            return FixedSource(
                path=shown, value=evaluate(value[1:], self.loaded.namespace), meaning="constant", how="bind"
            )
        inverted = aliases.resolve(name, "", ("completion_mask", "attention_mask"), self.docs.get(name, ""))
        flip = bool(inverted and inverted.inverted and value.endswith("_mask"))
        return self.word_source(shown, name, value, "bind", flip, annotation, default)

    def meaning(self, root: str, name: str, path: Path, annotation: str, default: Any) -> tuple[str, str, bool]:  # noqa: C901  a flat list of rules
        if not path and name in self.role.takes and ADAPTER in self.loaded.namespace:
            return name, "name", False
        if self.role.name in LEARNING_ROLES:
            from rltriage_probes import learning

            return learning.meaning(self, name, annotation, default)
        if self.role.name in pairs.PAIR_ROLES:
            return pairs.meaning(self, root, name, path, annotation, default)
        compared = self.facts.compared(root, path)
        choice = aliases.choice_word(compared, self.role.name) if compared else ""
        if choice:
            return choice, "source", False
        if self.role.name in ("policy_loss", "kl") and "prompt" in aliases.tokens(name):
            return "", "", False
        special = self._by_surroundings(name)
        if special is None and self.role.name in ("value_loss", "gae"):
            special = self._of_a_critic(name, path)
        if special is not None:
            return *special, False
        match = aliases.resolve(name, self.role.name, self.takes, self.docs.get(name, ""), annotation)
        if match is None or not self._possible(match.word, root, path, default):
            return "", "", False
        word = match.word
        if word == "logprobs" and self.role.name in ("policy_loss", "kl"):
            word = self._whose(root, name, path)
            if not word:
                return "", "", False
        if self.lists is not None:
            word = aliases.as_list(word) if self.lists else aliases.as_single(word)
        if word in ("clip", "eps") and isinstance(default, float) and default <= 1e-5:
            word = "eps"
        return word, match.how, match.inverted

    def _by_surroundings(self, name: str) -> tuple[str, str] | None:
        """Word and rule of a name whose meaning hangs on the rest of the function; None where the table decides."""
        role = self.role.name
        if role == "aggregate" and self._is_switch(name):
            return "", ""
        if name == "batch_size" and "batch_size[" in self.loaded.source:
            return "", ""  # the shape of a TensorDict, no number
        if role == "gae" and aliases.snake(name) in ("mask", "masks") and _OF_EPISODES.search(self.docs.get(name, "")):
            return "alive", "docstring"
        if role == "gae" and name in ("dones", "done") and self._names() & {"episode_starts", "episode_start"}:
            return "last_done", "name"
        if role == "value_loss" and self._are_old_values(name):
            return "old_values", "name"
        if role == "aggregate" and self._is_second_mask(name):
            return "second_mask", "name"
        if name.strip("_") in aliases.CONFIG_NAMES or (role == "advantages" and aliases.logprob_word(name)):
            return "", ""
        if role in ("logprobs", "completion_mask") and name in ("prompts", "queries") and self._split():
            return "token_ids", "name"
        if role in ("sft_labels", "sft_loss"):
            return self._of_sft(name)
        if role in ("reward", "extract_answer", "reward_shaping"):
            return self._of_a_grader(name) if role != "reward_shaping" else self._of_a_text_term(name)
        if role == "logprobs" and aliases.snake(name) in ("labels", "label_ids") and self._skips_labels():
            return "labels", "source"
        return None

    def _of_a_text_term(self, name: str) -> tuple[str, str] | None:
        """The same for a term of the reward that reads words."""
        plain = aliases.snake(name)
        if not _READS_WORDS.search(self.facts.text):
            return None
        if aliases.ROLE_NAMES["decode"].get(plain, plain) in ("text", "texts"):
            return "texts", "name"
        # whether the largest penalty is an amount or a negative number shows in its default
        stays = "penalty" in name and source.re.search(rf"\b{name}\s*(:[^,=)]+)?=", self.facts.text)
        return ("", "") if stays else None

    def _of_sft(self, name: str) -> tuple[str, str] | None:
        """The same for supervised fine-tuning: texts or ids, labels or ids, a head's weight or that of tokens."""
        plain = aliases.snake(name)
        if self.role.name == "sft_labels":
            by_text = source.re.search(r"tokeni[sz]e|processing_class|\.encode\(", self.facts.text)
            word = aliases.ROLE_NAMES["sft_labels"].get(plain, "")
            if plain.endswith("pairs") and word == "prompts":
                return word, "name"  # of each prompt with its answer, however many the other names speak of
            ids = {"prompt": "prompt_id_lists", "completion": "completion_id_lists"}.get(word.removesuffix("s"))
            return None if by_text or ids is None else (ids, "name")
        if name.startswith("shift_") and "labels" in self._names():
            return "", ""
        if plain in ("weight", "w"):
            return ("lm_head_weight" if self._has_hidden() else "token_weights"), "name"
        return ("token_ids", "source") if self._labels_are_ids(name) else None

    def _is_switch(self, name: str) -> bool:
        """Whether a parameter is a switch by its annotation or default: `mask_truncated_completions: bool`."""
        p = self.signature.parameters.get(name)
        return p is not None and (p.annotation in (bool, "bool") or isinstance(p.default, bool))

    def _are_old_values(self, name: str) -> bool:
        """Whether plain `values` are those of the rollout: another input holds the trained ones (verl: vpreds)."""
        if aliases.snake(name) not in ("values", "value", "vals", "v"):
            return False
        found: set[str] = set()
        for other in self._names() - {name}:
            plain = aliases.snake(other)
            if plain.startswith(("old_", "rollout_", "prev_")) or plain.endswith(("_old", "_prev")):
                return False
            known = plain in aliases.ALIASES["values"] and aliases.resolve(other, "value_loss", ("values", "returns"))
            if known and known.word == "values":
                found.add(other)
        return bool(found)

    def _of_a_critic(self, name: str, path: Path) -> tuple[str, str] | None:
        """What a critic's words mean by where they stand and by the shape that is said of them."""
        if self.role.name == "gae":
            known = aliases.resolve(name, "gae", ("dones",))
            rewards = Hints(name="rewards", doc=self.loaded.doc).shape() or ()
            own = Hints(name=name, doc=self.docs.get(name, "")).shape() or ()
            # one flag a row beside [B, T]: whether anything follows the whole segment
            once = known is not None and len(own) == 1 and len(rewards) == 2 and own[0] == rewards[0]
            return ("last_done", "docstring") if once else None
        known = aliases.resolve(name, "value_loss", ("values", "old_values"))
        if not path or known is None or known.word != "values":
            return None
        trained = [n for n in self.signature.parameters if aliases.snake(n) in aliases.ALIASES["values"]]
        old = any(
            (m := aliases.resolve(n, "value_loss", ("values", "old_values"))) and m.word == "old_values"
            for n in self._names()
        )
        # the trained values come as an argument of their own, so those of the batch are the rollout's
        return ("old_values", "name") if trained and not old else None

    def _is_second_mask(self, name: str) -> bool:
        """Whether a mask comes beside another one that is the completion's by name."""
        first = ("completion_mask", "response_mask", "loss_mask", "mask", "action_mask", "attention_mask", "masks")
        snake = aliases.snake(name)
        if snake in first or "mask" not in aliases.tokens(name):
            return False
        match = aliases.resolve(name, "aggregate", self.takes)
        beside = any(aliases.snake(n) in first for n in self._names() - {name})
        return beside and match is not None and match.word in ("completion_mask", "second_mask")

    def _labels_are_ids(self, name: str) -> bool:
        """Whether labels come beside a mask that says which of them count, in code that knows no ignore index."""
        known = aliases.resolve(name, "sft_loss", ("labels", "completion_mask"))
        masked = (aliases.resolve(n, "sft_loss", ("completion_mask",)) for n in self._names() - {name})
        if known is None or known.word != "labels" or not any(m is not None for m in masked):
            return False
        skips = source.re.search(r"cross_entropy|CrossEntropy|nll_loss", self.facts.text)
        return not self._skips_labels() and not skips

    def _of_a_grader(self, name: str) -> tuple[str, str] | None:
        """The same for the functions of the stage reward: transcripts, ids in place of texts, an unknown first name."""
        if self.role.name == "extract_answer":
            if name != self._first() or aliases.resolve(name, "extract_answer", self.takes) is not None:
                return None
            annotation = str(self.signature.parameters[name].annotation).lower()
            many = annotation.startswith(("list", "sequence", "typing.list"))
            return ("completions" if many else "completion"), "name"
        if name in ("queries", "query") and {"prompts", "prompt"} & self._names():
            return ("completions" if name == "queries" else "completion"), "name"  # prompt and response in one
        if not self._has_tokenizer():
            return None
        ids = ("responses", "response", "completions", "sequences", "input_ids")
        if name in ids and source.re.search(r"\bdecode\(", self.facts.text):
            return "token_ids", "source"
        return ("prompt_ids", "source") if name == "prompts" and "attention_mask" in self._names() else None

    def _first(self) -> str:
        """The first parameter behind `self`."""
        names = [n for n in self.signature.parameters if n not in ("self", "cls")]
        return names[0] if names else ""

    def _possible(self, word: str, root: str, path: Path, default: Any) -> bool:
        """Whether a place can have this meaning: a head's weight needs hidden states, and no tensor is called."""
        if word in ("lm_head_weight", "lm_head_bias") and not self._has_hidden():
            return False
        if not path and "called" in self.facts.signs.get(root, ()) and word not in ("model", "tokenizer"):
            return False
        return _kind_fits(word, default)

    def _whose(self, root: str, name: str, path: Path) -> str:
        """Whose log-probs a plain name holds: not the policy's where another place clearly holds those.

        Behind a proximal policy they are the sampler's, else the ones that the ratio refers to; empty where
        those have a place of their own as well.
        """
        if aliases.is_current(name) or not self._current_elsewhere(root, path, name):
            return "logprobs"
        others = self._names() - {name}
        if any("prox" in aliases.snake(n) for n in others):
            return "rollout_logprobs" if "rollout_logprobs" in self.takes else ""
        known = (aliases.resolve(n, self.role.name, self.takes) for n in others)
        return "" if any(m is not None and m.word == "old_logprobs" for m in known) else "old_logprobs"

    def _current_elsewhere(self, root: str, path: Path, name: str) -> bool:
        shown = source.render(root, path)
        if any(word == "logprobs" and place != shown for place, word in self.explicit.items()):
            return True
        if any(n and aliases.is_current(n) and self._names_logprobs(n) for n in self._names() - {name}):
            return True
        return (
            bool(path)
            and root != "self"
            and any(
                n != root and p.default is p.empty and p.kind is not p.VAR_KEYWORD and self._names_logprobs(n)
                for n, p in self.signature.parameters.items()
            )
        )

    def _names_logprobs(self, name: str) -> bool:
        match = aliases.resolve(name, self.role.name, self.takes)
        return match is not None and match.word == "logprobs" and match.how in ("name", "normalised name")

    def word_source(
        self, shown: str, name: str, word: str, how: str, inverted: bool, annotation: str, default: Any
    ) -> Source:
        root, path = source.parse_path(shown)
        if word in aliases.CHOICES:
            return self.choice(shown, word, how, default, self.facts.compared(root, path))
        hints = self._hints(shown, name, inverted, annotation)
        if word in SCALARS:
            value, known_by = self.scalar(word, default)
            if value is not NOTHING:
                self.know(word, value, known_by)
            return WordSource(path=shown, word=word, how=how, hints=hints, fallback=value)
        return WordSource(path=shown, word=word, how=how, hints=hints, fallback=default)

    def _hints(self, shown: str, name: str, inverted: bool, annotation: str) -> Hints:
        hints = Hints(
            annotation=annotation, doc=self.docs.get(name, ""), inverted=inverted, name=name, split=self._split(),
            role=self.role.name,
            signs=set(self.facts.signs.get(shown, set())),
            reads_ids=self.role.name == "decode" and self._has_tokenizer(),
        )  # fmt: skip
        if _COMPARES_ROWS.search(self.facts.text):
            hints.signs.add("compares rows")
        if self.common and hints.shape() is None:
            hints.doc = f"{hints.doc} {self.common}".strip()
        return hints

    def _names(self) -> set[str]:
        """Every name through which an input may come: parameters and entries of containers."""
        out = set(self.signature.parameters)
        for reads in self.facts.reads.values():
            out |= {path[-1][1] for path in reads if path}
        return out

    def _split(self) -> bool:
        names = self._names()
        if self.role.name in ("logprobs", "completion_mask") and names & {"prompts", "queries"}:
            return bool(names & {"responses", "response_ids", "completions", "completion_ids"})
        return self.role.name not in ("policy_loss", "kl") and any(
            source.re.fullmatch(r"(prompt|query|context)s?_(input_)?(ids|tokens|mask|attention_mask)", n)
            for n in self._names()
        )

    def _has_tokenizer(self) -> bool:
        return any(m is not None for m in (aliases.resolve(n, "decode", ("tokenizer",)) for n in self._names()))

    def scalar(self, word: str, default: Any, generous: bool = True) -> tuple[Any, str]:
        """The value of a scalar: settings, then intent, then the user's default, then what is documented."""
        if word in self.settings:
            return self.settings[word], "settings"
        if word not in ("scale_rewards", "eps", "chunk_size"):
            for key in _CLIP.get(word, (word,)):
                if key in self.settings:
                    return self.settings[key], "settings"
            for key in _CLIP.get(word, (word,)):
                value = self.intent.get(key)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value, "intent"
        if default is not NOTHING and not (default is None and self.generous and DOCUMENTED.get(word) is not None):
            return default, "default"
        if generous and word in DOCUMENTED:
            return DOCUMENTED[word], "documented default"
        if generous and self.role.name in LEARNING_ROLES:
            from rltriage_probes import learning

            return learning.FALLBACKS.get(word, NOTHING), "documented default"
        return NOTHING, ""

    def choice(self, shown: str, word: str, how: str, default: Any, compared: set[str]) -> Source:
        if word in self.settings:
            value, by = aliases.spelled(word, self.settings[word], compared), "settings"
        elif default is not NOTHING:
            value, by = self._declared(word, default, compared)
        else:
            value, by = self._chosen(word, compared), "intent"
        self.know(word, aliases.canonical_choice(word, value), by)
        return FixedSource(path=shown, value=value, meaning=word, how=how if by != "default" else "default", word="")

    def _declared(self, word: str, default: Any, compared: set[str]) -> tuple[Any, str]:
        """The declared choice where the code itself spells it, else the function's own default."""
        wanted = self.intent.get(word)
        if wanted is None and word == "preference_type":
            wanted = self.intent.get("algorithm")
        spelled = aliases.spelled(word, wanted, compared) if isinstance(wanted, str) else None
        if spelled in compared and aliases.canonical_choice(word, default) != aliases.canonical_choice(word, spelled):
            return spelled, "intent"
        return default, "default"

    def _chosen(self, word: str, compared: set[str]) -> Any:
        """A value for a choice that the function demands: the declared one, else one that the source knows."""
        wanted = [self.intent.get(word), self.intent.get("algorithm")]
        for value in wanted:
            if value is not None:
                spelled = aliases.spelled(word, value, compared)
                if spelled in compared:
                    return spelled
        order = [n for names in aliases.CHOICES[word].values() for n in names]
        known = sorted(compared, key=lambda x: order.index(x) if x in order else len(order))
        if known:
            return known[0]
        value = self.intent.get(word)
        return value if value is not None else order[0]

    def know(self, word: str, value: Any, how: str) -> None:
        if value is not None and word not in self.known and word in SCALARS and not isinstance(value, Unknown):
            self.known[word] = value
            self.hows[word] = how

    def constant(self, shown: str, name: str, default: Any) -> Source | None:
        if default is not NOTHING:
            return None
        plain = aliases.snake(name)
        if self.role.name in ("reward", "extract_answer"):
            aside = self._aside(shown, plain)
            if aside is not None:
                return aside
        made = self._made(shown, name)
        if made is not None:
            return made
        if self.role.name == "advantages" and aliases.logprob_word(name):
            return MadeSource(path=shown, build=_no_penalty, how="name", meaning="zeros, so that no KL penalty acts")
        bound = aliases.neutral_bound(name) if self.role.name == "policy_loss" else None
        if bound is not None:
            return FixedSource(path=shown, value=bound, meaning="constant", how="name")
        value = surroundings(plain)
        if value is not NOTHING:
            return FixedSource(path=shown, value=value, meaning="constant", how="name")
        if plain in ("reward_weights", "weights") and self.role.name == "advantages":
            import torch

            return FixedSource(path=shown, value=torch.ones(1), meaning="constant", how="name")
        if aliases.is_flag(name):
            return FixedSource(path=shown, value=False, meaning="constant", how="name")
        match = aliases.resolve(name, self.role.name, ("model", "tokenizer"))
        if match is not None and match.word == "model" and self.role.name in ("policy_loss", "kl", "advantages"):
            return FixedSource(path=shown, value=Unknown(shown), meaning="constant", how="name")
        return None

    def _made(self, shown: str, name: str) -> Source | None:
        """What is built from the case for each call: a head, the size of the vocabulary, training samples."""
        plain = aliases.snake(name)
        if self.role.name == "sft_labels" and self.is_records(name):
            return self.records(shown)
        if self.role.name == "sft_loss" and plain in ("vocab_size", "vocabulary_size", "num_classes"):
            return MadeSource(path=shown, build=_vocabulary, how="name", meaning="constant")
        if self.is_head(plain):
            return MadeSource(path=shown, build=self.head, how="name", meaning="identity head")
        return None

    def is_records(self, name: str) -> bool:
        """Whether a name says that it holds training samples."""
        return aliases.snake(name) in _RECORDS

    def records(self, shown: str) -> Source:
        """Samples for code that does not spell their keys: ids, labels and attention, as collators get them."""
        words = {"input_ids": "sample_ids", "labels": "label_lists", "attention_mask": "attention_lists"}
        inner = {
            key: WordSource(path=f'{shown}[*]["{key}"]', word=word, how="name", hints=Hints(name=key), per_row=True)
            for key, word in words.items()
        }

        def build(call: Call) -> list[dict[str, Any]]:
            columns = {key: s.give(call) for key, s in inner.items()}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]

        return MadeSource(path=shown, build=build, inner=list(inner.values()), how="name")

    def is_head(self, plain: str) -> bool:
        return self.role.name in ("logprobs", "entropy", "sft_loss") and _HEAD.fullmatch(plain) is not None

    def head(self, call: Call) -> Any:
        from rltriage_probes.standins import IdentityHead

        return IdentityHead(call.get("logits"))

    def _skips_labels(self) -> bool:
        """Whether the code knows labels that are not scored, and so wants them marked."""
        return source.re.search(r"[=!]=\s*(-100\b|\w*ignore\w*|label_pad\w*)|ignore_index", self.facts.text) is not None

    def _has_hidden(self) -> bool:
        found = (aliases.resolve(n, self.role.name, ("hidden_states",)) for n in self._names())
        return any(m is not None for m in found)

    def _aside(self, shown: str, plain: str) -> Source | None:
        """What a reward gets besides texts: one value, or one for each sample under a plural name."""
        if self.role.name == "extract_answer" and plain in aliases.OPTION_LETTERS:
            return FixedSource(path=shown, value=list("ABCD"), meaning="constant", how="name")
        many = plain not in aliases.ASIDE and plain.endswith("s")
        key = plain[:-1] if many else plain
        root, path = source.parse_path(shown)
        if any(step[1] in aliases.ASIDE for step in path[:-1]):
            return FixedSource(path=shown, value=None, meaning="constant", how="name")
        if key not in aliases.ASIDE:
            return None
        compared = sorted(self.facts.compared(root, path), key=self.facts.text.find)
        value = compared[0] if compared and isinstance(aliases.ASIDE[key], str) else aliases.ASIDE[key]

        def build(call: Call) -> Any:
            return [copy.copy(value) for _ in range(call.samples())] if many else copy.copy(value)

        return MadeSource(path=shown, build=build, how="name", meaning="constant")

    def look_up_setting(self, name: str, shown: str, generous: bool = True) -> Any:
        """As `look_up`, for objects that hold settings: no tensor comes out of a config."""
        root, path = source.parse_path(shown) if source.re.match(r"\w", shown) else (shown, ())
        word, _, _ = self.meaning(root, name, path, "", NOTHING)
        if word and word not in SCALARS and shown not in self.explicit and name not in self.settings:
            return NOTHING
        return self.look_up(name, shown, generous)

    def look_up(self, name: str, shown: str, generous: bool = True) -> Any:
        """What a lazy container or `self` gives for a name that the source did not show.

        Not `generous`: only what is declared or in the case, since the reader has a default of its own.
        """
        if shown in self.explicit:
            value = self.explicit[shown]
            if value.startswith("="):
                return evaluate(value[1:], self.loaded.namespace)
            got: Any = WordSource(path=shown, word=value, how="bind", hints=Hints(name=name))
        else:
            if name in self.settings and name not in WORDS:
                return self.settings[name]
            root, path = source.parse_path(shown) if source.re.match(r"\w", shown) else (shown, ())
            word, how, inverted = self.meaning(root, name, path, "", NOTHING) if "[*]" not in shown else ("", "", False)
            if not word:
                shape = self._shape_of_batch(name)
                return self._refuse_unseen(root, path, shown) if shape is NOTHING else shape
            if word in aliases.CHOICES:
                if not generous and word not in self.settings:
                    return NOTHING
                fixed = self.choice(shown, word, how, NOTHING, self.facts.compared(root, path))
                return fixed.give(self.current or Call({}))
            if word in SCALARS:
                value, _ = self.scalar(word, NOTHING, generous)
                got = WordSource(path=shown, word=word, how=how, hints=Hints(name=name), fallback=value)
            else:
                got = WordSource(path=shown, word=word, how=how, hints=Hints(name=name, inverted=inverted))
        if self.current is None:
            return got.fallback
        if got.form is None:
            options = forms_for(got.word, got.hints, self.current.layout)
            got.form = options[0] if options else None
        try:
            value = got.give(self.current)
        except Missing:
            return NOTHING
        own = generous and self.role.name in ("gae", "reward_shaping", "value_loss")
        if got.word not in SCALARS or own or self.role.name in LEARNING_ROLES:
            self.dynamic.add(got.word)
        return value

    def _shape_of_batch(self, name: str) -> Any:
        """What a TensorDict says of its batch, where the function reads that."""
        known = name == "batch_size" and "batch_size[" in self.loaded.source and self.current is not None
        return (self.current.samples(),) if known and self.current is not None else NOTHING

    def _refuse_unseen(self, root: str, path: Path, shown: str) -> Any:
        """`NOTHING`; raises for an entry without a meaning whose key is made while the function runs."""
        entry = bool(path) and path[-1][0] == "key" and root != "self" and root in self.signature.parameters
        if entry and path not in self.facts.reads.get(root, {}):
            raise _NoEntry(
                f"{shown} is read by a key that is chosen while it runs, and what it holds is not known",
                f"Say what it is in the target's bind table: '{shown}' = \"<word>\".",
            )
        return NOTHING

    def inherit(self, outer: Binder) -> None:
        """Takes over the settings with which a factory made this function."""
        self.known.update(outer.known)
        self.hows.update(outer.hows)
        self.plan.left += outer.plan.left

    def seam_words(self) -> set[str]:
        return {w for seam in self.seams.values() for w in seam.words}

    def reachable(self) -> set[str]:
        words = {w.word for w in self.plan.words()} | {w.word for w in self.plan.fixed() if w.word} | self.seam_words()
        return words | {"logits"} if "hidden_states" in words else words


_SWITCHES = frozenset(("scale_rewards", "generation_prompt", *aliases.CHOICES))
"""Settings that are no numbers."""


def _kind_fits(word: str, default: Any) -> bool:
    """Whether a parameter with this default can have this meaning: no number is a text, no switch a number."""
    if default is NOTHING or default is None or word in _SWITCHES:
        return True
    if isinstance(default, (bool, str)):
        return WORDS[word].kind == "text" and isinstance(default, str)
    if isinstance(default, (int, float)):
        return WORDS[word].kind == "scalar"
    return True
