"""What goes wrong when completions are generated, by id."""

from __future__ import annotations

from rltriage_probes.model import Pitfall

NO_STOP = Pitfall(
    id="GEN-NO-STOP",
    family="pad-eos",
    says="goes on sampling behind the end token, so that every completion is as long as it may be",
)
EOS_EDGE = Pitfall(
    id="GEN-EOS-EDGE", family="pad-eos", says="keeps or drops the end token against what its documentation says"
)
PADDING = Pitfall(
    id="GEN-PADDING-SEEN",
    family="mask-missing",
    says="lets the model read padding as text, so that a completion depends on the other prompts of the batch",
)
EDGE = Pitfall(
    id="GEN-PROMPT-EDGE", family="shift", says="cuts the completion off the sequence at another column than it begins"
)
ECHO = Pitfall(
    id="GEN-PROMPT-ECHO", family="mask-leak", says="returns the prompt as part of what it calls the completion"
)
BUDGET_TOTAL = Pitfall(
    id="GEN-BUDGET-TOTAL",
    family="truncation",
    says="counts the prompt in max_new_tokens, so that long prompts leave no room",
)
BUDGET_SHIFT = Pitfall(id="GEN-BUDGET-SHIFT", family="shift", says="makes one token more or less than max_new_tokens")
TILED = Pitfall(
    id="GEN-TILED",
    family="grouping",
    says="returns the samples of one prompt apart from each other where neighbours are promised",
)
ORDER = Pitfall(id="GEN-ORDER", family="reward-order", says="returns the completions in another order than the prompts")
OTHER = Pitfall(
    id="GEN-OTHER-TOKENS", family="normalisation", says="returns other tokens than the model's distribution gives"
)
TEMPERATURE = Pitfall(
    id="GEN-TEMPERATURE", family="temperature", says="samples at another temperature than it is asked to"
)
TRUNCATION = Pitfall(
    id="GEN-TRUNCATION",
    family="inert-option",
    says="samples from another part of the vocabulary than top-k or top-p leave",
)
REPEATS = Pitfall(
    id="GEN-SEED-REPEATS",
    family="grouping",
    says="gives several samples the same random numbers, so that they are copies",
)
RESTARTS = Pitfall(
    id="GEN-SEED-RESTARTS",
    family="env-nondeterminism",
    says="seeds the generator anew in every call, so that every call samples the same",
)
SEED = Pitfall(
    id="GEN-SEED-IGNORED", family="env-nondeterminism", says="takes a seed that does not decide what is sampled"
)
WORKERS = Pitfall(
    id="GEN-WORKERS-MATTER",
    family="env-nondeterminism",
    says="samples otherwise for another number of workers, against what is promised",
)
LOGP_RAW = Pitfall(
    id="GEN-LOGP-RAW",
    family="temperature",
    says="returns log-probs of another temperature than the tokens were sampled at",
)
LOGP_SHIFT = Pitfall(id="GEN-LOGP-SHIFT", family="shift", says="returns for each token the log-prob of its neighbour")
LOGP_OTHER = Pitfall(
    id="GEN-LOGP-OTHER", family="normalisation", says="returns log-probs that are not those of the sampled tokens"
)
DROPOUT = Pitfall(id="GEN-DROPOUT", family="config", says="samples in training mode, with dropout on")
MODE_LEFT = Pitfall(id="GEN-MODE-LEFT", family="config", says="leaves the model in another mode than it found it in")
GRAPH = Pitfall(
    id="GEN-GRAPH-KEPT", family="gradient-leak", says="builds the autograd graph of every forward pass while it samples"
)
CONFIG_LEFT = Pitfall(
    id="GEN-CONFIG-LEFT", family="aliasing", says="changes the model's generation config for whoever generates next"
)
PITFALLS = (
    NO_STOP, EOS_EDGE, PADDING, EDGE, ECHO, BUDGET_TOTAL, BUDGET_SHIFT, TILED, ORDER, OTHER, TEMPERATURE, TRUNCATION,
    REPEATS, RESTARTS, SEED, WORKERS, LOGP_RAW, LOGP_SHIFT, LOGP_OTHER, DROPOUT, MODE_LEFT, GRAPH, CONFIG_LEFT,
)  # fmt: skip
