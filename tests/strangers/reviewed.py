"""Mutants that a person looked at and found right: (base, operator, `before -> after`) -> why.

An entry is a claim that the changed function is a legitimate variant under what its base declares. It is not a place
for what rltriage misses.
"""

_HALF = (
    "the factor 1/2 is a convention: it lies in the weight of the critic's loss (CleanRL has it, verl has it, SB3 not)"
)
_LONGER = (
    "with this condition it reads values that are one longer than the rewards: the form that bootstraps from the last"
)

LEGITIMATE: dict[tuple[str, str, str], str] = {
    ("clipped", "constant", "0.5 * (loss * mask).sum() -> 1.0 * (loss * mask).sum()"): _HALF,
    (
        "plain",
        "constant",
        "0.5 * ((values - returns).pow(2) * mask).sum() -> 1.0 * ((values - returns).pow(2) * mask).sum()",
    ): _HALF,
    (
        "sequence_level",
        "unmasked",
        "weights * response_mask -> weights",
    ): "weights of padding are read by nobody, since the loss that they multiply is masked",
    (
        "from_box",
        "left_out",
        "text[begin:i].strip() -> text[begin:i]",
    ): "the docstring promises the content of the box; a caller may strip it",
    ("lists", "comparison", "t + 1 < len(r) -> t + 1 <= len(r)"): _LONGER,
    ("lists", "sign", "t + 1 -> t - 1"): _LONGER,
    ("lists", "shifted", "t + 1 -> t"): _LONGER,
    (
        "grouped_view",
        "constant",
        "groups.std(dim=1, keepdim=True) + 0.0001 -> groups.std(dim=1, keepdim=True) + 0.0002",
    ): "an eps of 2e-4 is as good as one of 1e-4",
    (
        "python_lists",
        "shifted",
        "len(group) - 1 -> len(group)",
    ): "the population std (ddof 0) is a convention of its own",
}
