"""What people get wrong in preference losses: one pitfall a page."""

from __future__ import annotations

from rltriage_probes.model import Pitfall

SWAPPED = Pitfall(
    id="PREF-SWAPPED",
    family="sign",
    says="exchanges the two answers (or puts label smoothing on the wrong side), so the rejected one is preferred",
)
ADDED = Pitfall(
    id="PREF-ADDED",
    family="sign",
    says="adds the two answers' scores instead of comparing them, so both are pushed the same way",
)
PRECISION = Pitfall(
    id="PREF-PRECISION",
    family="precision",
    says="keeps an intermediate result in half precision, in which sums of log-probs lose their small differences",
)
LOSS_SIGN = Pitfall(id="PREF-LOSS-SIGN", family="sign", says="returns minus the loss, so that a step makes it worse")
REF_MISSING = Pitfall(
    id="PREF-REF-MISSING",
    family="reference-drift",
    says="is given the reference's log-probs and leaves them out, or lets them cancel",
)
REF_SIGN = Pitfall(
    id="PREF-REF-SIGN",
    family="sign",
    says="adds the reference's log-ratio instead of subtracting it (or exchanges the reference's two answers)",
)
REF_HALF = Pitfall(
    id="PREF-REF-HALF",
    family="reference-drift",
    says="subtracts the reference from one answer alone, so the loss depends on how likely answers are at all",
)
BETA = Pitfall(id="PREF-BETA", family="config", says="leaves beta out, applies it twice, or divides by it")
NO_LOG = Pitfall(
    id="PREF-NO-LOG",
    family="normalisation",
    says="uses a probability where the log of it belongs, so wrong pairs give no gradient",
)
OVERFLOW = Pitfall(
    id="PREF-OVERFLOW", family="nonfinite", says="takes the log of a sigmoid that rounds to 0, which gives inf and NaN"
)
SMOOTHING = Pitfall(
    id="PREF-SMOOTHING",
    family="normalisation",
    says="weights the two directions of label smoothing so that they do not add up",
)
SMOOTHING_INERT = Pitfall(
    id="PREF-SMOOTHING-INERT", family="inert-option", says="takes a label smoothing that has no effect"
)
SUMMED = Pitfall(
    id="PREF-SUMMED",
    family="denominator",
    says="uses log-probs summed over the answer where the loss is defined on averages per token",
)
AVERAGED = Pitfall(
    id="PREF-AVERAGED",
    family="denominator",
    says="averages log-probs per token where the loss is defined on sums over the answer",
)
LENGTH = Pitfall(
    id="PREF-LENGTH",
    family="denominator",
    says="divides by a length that is not the answer's own (the other's, the padded one, only one side)",
)
MASK = Pitfall(
    id="PREF-MASK", family="mask-missing", says="sums log-probs of prompt or padding tokens into the answer's"
)
MASK_INVERTED = Pitfall(
    id="PREF-MASK-INVERTED", family="mask-inverted", says="sums over the tokens that the mask leaves out"
)
SHIFT = Pitfall(id="PREF-SHIFT", family="shift", says="scores each label with the logits of a neighbouring position")
IPO_TARGET = Pitfall(
    id="PREF-IPO-TARGET",
    family="normalisation",
    says="regresses on another target than 1 / (2 beta), or without the square",
)
HINGE = Pitfall(
    id="PREF-HINGE", family="clip-direction", says="does not stop at a margin of 1, or stops on the wrong side"
)
ODDS = Pitfall(
    id="PREF-ODDS",
    family="normalisation",
    says="does not form the odds p / (1 - p), or puts the weight inside the sigmoid",
)
ODDS_OVERFLOW = Pitfall(
    id="PREF-ODDS-OVERFLOW",
    family="nonfinite",
    says="computes log(1 - p) so that it becomes -inf once the model is confident",
)
MARGIN = Pitfall(
    id="PREF-MARGIN",
    family="normalisation",
    says="adds the target margin, leaves it out, or scales it with a power of beta that it does not have",
)
NLL = Pitfall(
    id="PREF-NLL", family="sign", says="adds the likelihood term with the wrong sign or for the rejected answer"
)
PENALTY = Pitfall(
    id="PREF-DPOP", family="sign", says="penalises the chosen answer for becoming likelier than under the reference"
)
DETACHED = Pitfall(
    id="PREF-DETACHED", family="gradient-cut", says="lets no gradient flow to one of the policy's answers, or to both"
)
REDUCTION = Pitfall(id="PREF-REDUCTION", family="denominator", says="divides by another count than the number of pairs")
ALGORITHM = Pitfall(id="PREF-ALGORITHM", family="config", says="computes another preference loss than the declared one")
REWARDS = Pitfall(
    id="PREF-REWARDS",
    family="inert-metric",
    says="reports implicit rewards that are not beta times the log-ratio of their own answer",
)
KTO_WEIGHTS = Pitfall(
    id="PREF-KTO-WEIGHTS", family="config", says="exchanges or ignores the weights of good and bad answers"
)
KTO_SIDE = Pitfall(
    id="PREF-KTO-SIDE", family="sign", says="rewards bad answers and punishes good ones, or turns the log-ratio round"
)
KTO_KL = Pitfall(
    id="PREF-KTO-KL",
    family="kl-estimator",
    says="uses a KL estimate with the wrong sign, without the clamp at 0, summed, or not at all",
)
KTO_KL_GRADIENT = Pitfall(
    id="PREF-KTO-KL-GRADIENT", family="gradient-leak", says="lets gradient flow through the KL estimate"
)

ALL = (
    SWAPPED, ADDED, PRECISION, LOSS_SIGN, REF_MISSING, REF_SIGN, REF_HALF, BETA, NO_LOG, OVERFLOW, SMOOTHING,
    SMOOTHING_INERT, SUMMED, AVERAGED, LENGTH, MASK, MASK_INVERTED, SHIFT, IPO_TARGET, HINGE, ODDS, ODDS_OVERFLOW,
    MARGIN, NLL, PENALTY, DETACHED, REDUCTION, ALGORITHM, REWARDS, KTO_WEIGHTS, KTO_SIDE, KTO_KL, KTO_KL_GRADIENT,
)  # fmt: skip
