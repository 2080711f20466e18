"""What the documentation of label builders and chat renderers promises, as regular expressions."""

from __future__ import annotations

Patterns = tuple[str, ...]

TRAINS_ALL: Patterns = (
    r"train_on_(inputs?|prompts?)[^.;]{0,20}true",
    r"(whole|full|entire) (text|sequence|conversation)[^.;]{0,30}(train|label|loss)",
    r"(train|label|loss|learn)[^.;]{0,40}\b(every|all) (the )?tokens?\b(?! of the (answer|complet|respon|assistant))",
    r"prompts? (tokens? )?(is|are) (also )?(trained|learnt|learned)( too| as well)?(?! not)",
    r"language[- ]model\w* (loss|objective|pre-?train)",
    r"pre-?training",
)
LAST_TURN: Patterns = (
    r"\b(only|just)\b[^.;]{0,40}\b(last|final)\b",
    r"\b(last|final)\b[^.;]{0,30}\b(only|alone|assistant|turn|message|reply|answer|response)\b",
)
EVERY_TURN: Patterns = (
    r"\b(every|each|all)( of the| the)? ?(assistant|model|turn|response|reply|answer|gpt)",
    r"assistant (turns|messages|tokens|replies|responses|spans|parts)",
    r"multi-?turn",
    r"(what|tokens) the (assistant|model) (says|said|writes|wrote)",
)
SHIFTED: Patterns = (
    r"already shift|pre-?shift",
    r"next[- ]token (targets?|labels?)",
    r"shifted (left|by one)",
    r"targets? (are )?(the )?(inputs?|ids|tokens)[^.;]{0,20}shift",
    r"\[1:\]",
    r"shift(s|ed|ing)?\b(?![^.;]{0,40}(inside|loss|model|happens))",
)
SHIFTED_LATER: Patterns = (
    r"(model|loss|trainer)\w* (itself |then |will |also |does the )?shift",
    r"shift\w*[^.;]{0,30}(in|inside|by) (the )?(model|loss)",
    r"\b(not|un)[- ]?shifted",
)
INCLUSIVE: Patterns = (r"inclusive|both ends|last (position|token|index)|\(first, last\)|included",)
EXCLUSIVE: Patterns = (r"exclusive|half-?open|\[start, (end|stop)\)",)
END_LEFT_OUT: Patterns = (r"(eos|end token|end[- ]of[- ]turn)[^.;]{0,40}\b(not|never|left out|excluded|masked)\b",)
END_PROMISED: Patterns = (r"\b(eos|end token|end[- ]of[- ](sequence|text|turn)|terminat|<\|im_end\|>|</s>)",)
ONE_ID: Patterns = (r"\beos\b|end token|end[- ]of[- ]\w+", r"same (id )?as")

# Chat

SAMPLED: Patterns = (
    r"for (the )?(generation|sampling|sampler|inference|rollout|vllm|decoding)",
    r"ready (for|to)",
    r"next assistant turn",
    r"to (generate|sample|continue)",
    r"generation prompts?",
    r"prompt (ids|tokens)|(ids|tokens) of (the|a) prompt",
    (
        r"(reply|answer|response|(next|assistant|assistant's) turn|completion|generation|sampling|model) "
        r"(then |will |can |to )?"
        r"(starts?|begins?|follows|continues?|goes on|comes next|takes over)"
    ),
    (
        r"(model|policy|engine|sampler) (then |will |can |to )?(sees?|answers?|repl(y|ies)|responds?|writes?|speaks?)"
        r" (next|from|behind|there)"
    ),
)
TRAINED: Patterns = (
    # a prompt may be said to be as the model was trained
    (
        r"(?<!was )(?<!were )(?<!been )(?<!as in )(?<!during )(?<!pre-)(?<!post-)\btrain(s|ed|ing|er)?\b"
        r"(?! (that|this|the same) way)"
    ),
    r"\bscor(e|es|ed|ing)\b",
    r"forward pass",
    r"log-?prob",
    r"\bloss\b",
    r"\bsft\b",
    r"finished|complete conversation|whole (conversation|rollout|episode|trajectory)",
)
DROPS_REASONING: Patterns = (
    r"(drop|strip|remov|discard|without|hide)\w*[^.;]{0,40}(reason|think|thought)",
    r"(reason|think|thought)\w*[^.;]{0,60}(drop|strip|remov|discard|left out)",
    (
        r"(earlier|old|older|previous|past|prior|history)[^.;]{0,60}\b(only|just|nothing but)\b[^.;]{0,40}"
        r"(answer|follow|after|behind|visible|final|reply|replies)"
    ),
    r"\b(only|just|nothing but)\b[^.;]{0,30}(follow\w*|after|behind)[^.;]{0,20}(think|reason|</)",
    r"\b(no|never|not)\b( \w+){0,3} (reasoning|thoughts?|thinking)",
)
KEEPS_HISTORY: Patterns = (
    r"\bprefix\b",
    r"(whole|full|entire|complete) (history|conversation|context)",
    r"(ids|tokens) (that )?(the )?(engine|sampler|policy|model|rollout) (saw|had|used)",
    r"\b(keep|kept|includ)\w*(?! (only|just|no))[^.;]{0,40}(reason|think|history|earlier)",
    r"(reason|think|history|earlier)[^.;]{0,40}\b(keep(?!\w)|keeps|kept|includ\w*)(?! (only|just|no)\b)",
    r"as (it|they) (was|were) sampled",
    r"token[- ]in",
    r"exactly what was sampled",
)
DROPS_OLDEST: Patterns = (
    r"(oldest|older|earliest|first|left|leading|front)[^.;]{0,40}(drop|remov|cut|truncat|discard)",
    r"(drop|remov|cut|truncat|discard)\w*[^.;]{0,40}(oldest|earliest|from the left|left|front|beginning)",
    r"keeps? (the )?(last|end|most recent)",
)
DROPS_NEWEST: Patterns = (
    r"(last|newest|right|trailing)[^.;]{0,30}(drop|remov|cut|truncat)",
    r"(drop|remov|cut|truncat)\w*[^.;]{0,30}(from the right|on the right|the end|tail)",
    r"keeps? (the )?(first|start|beginning)",
)
SAFE: Patterns = (
    r"inject",
    r"(user|untrusted|message)[^.;]{0,60}(special token|marker|control)",
    r"(special tokens?|markers?)[^.;]{0,60}(plain|ordinary|escaped|neutrali[sz]ed|split)",
    r"(special tokens?|markers?)[^.;]{0,60}in (the )?(user|message|content)",
    r"escap",
)
VERBATIM: Patterns = (r"verbatim|unchanged|as (it|they) (is|are|was|were)|exact|byte|whitespace|kept",)
