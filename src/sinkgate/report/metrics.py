"""What the numbers of the lab are called and what they say, in words; a number that is not here goes by its own name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METRICS", "Metric", "metric"]


@dataclass(frozen=True)
class Metric:
    """One number of a record.

    Args:
        name: there.
        label: on a page.
        unit: empty for none.
        says: one sentence.
        share: it is from 0 to 1 (or hardly more), so its axis begins at 0.
    """

    name: str
    label: str
    unit: str = ""
    says: str = ""
    share: bool = False

    @property
    def title(self) -> str:
        """The label as a heading; a name that is not known stays as it is."""
        return (
            self.label
            if self.name not in METRICS and self.label == self.name
            else self.label[0].upper() + self.label[1:]
        )

    @property
    def full(self) -> str:
        """The label with its unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label


NATS = "nats per token"
METRICS = {
    name: Metric(name, label, unit, says, share)
    for name, label, unit, says, share in (
        # losses
        ("loss", "loss", NATS, "Mean cross entropy of the next token.", False),
        ("held_out", "held-out loss", NATS, "Mean cross entropy of the next token on data kept from training.", False),
        ("excess_loss", "loss over the optimum", NATS, "Held-out loss over the chain's entropy at bigrams and over 0 behind triggers: 0 is the best there is.", False),
        ("bigram_loss", "bigram loss over the optimum", NATS, "The same at ordinary tokens alone, which need no attention.", False),
        ("backcopy_loss", "loss behind triggers", NATS, "Loss where the token before the trigger must be repeated, which only attention can do: 0 is the best.", False),
        ("grad_norm", "gradient norm", "", "Length of all gradients together, before they are cut.", False),
        ("linf", "largest error", "", "The largest error of any output number.", False),
        ("mse", "squared error", "", "Mean squared error of the output numbers.", False),
        ("solved", "solved", "share of runs", "Whether training met its stopping rule (1) or not (0).", True),
        ("steps", "steps to solve", "updates", "Updates until the stopping rule was met; a run that never met it has none.", False),
        ("taken", "steps made", "updates", "Updates that training made.", False),
        # where attention goes
        ("first_mass", "first-token mass", "weight", "Mean weight of a query on the first key, over heads, layers and the queries that see it.", True),
        ("first_null", "first-token mass, uniform", "weight", "What the first key would get from uniform attention of mass one: the null.", True),
        ("first_share", "first-token share", "share of the row", "The first key's part of what a row spends, whatever its mass.", True),
        ("strongest_head", "strongest head", "weight", "First-token mass of the head where it is largest.", True),
        ("sink_rate", "sink rate", "share of heads", "Heads with more than 0.3 mean weight on the first key (Gu et al., ICLR 2025).", True),
        ("any_sink_rate", "sink rate, any key", "share of heads", "Heads with more than 0.3 mean weight on one key, wherever it is.", True),
        ("strongest_key", "strongest key", "weight", "The largest mean weight that any head puts on one key.", True),
        ("mass", "mass", "Σ of weights", "What a row of attention spends: exactly 1 for softmax, less where there is an outlet.", True),
        ("mass_at", "mass at the trigger", "Σ of weights", "What the trigger's row spends.", True),
        ("entropy", "entropy", "nats", "Of a row's shares: 0 where one key has everything.", False),
        ("dead_heads", "dead heads", "share of heads", "Heads that write less than a hundredth of their layer's mean.", True),
        ("dormant_mass", "dormant mass", "weight", "Weight on the first key at ordinary queries, of the head where it is largest.", True),
        ("active_mass", "active mass", "weight", "The same head's weight on the first key at triggers, where it is of use.", True),
        ("back_mass", "mass one back", "weight", "The same head's weight on the token before, at triggers: what solves the task.", True),
        ("dormant_heads", "dormant heads", "share of heads", "Heads with more than half their weight on the first key at ordinary queries.", True),
        ("bos", "BOS mass", "weight", "Mean weight on the BOS at all rows but its own and the trigger's.", True),
        ("bos_least", "BOS mass, least", "weight", "The least weight on the BOS at any such row.", True),
        ("bos_most", "BOS mass, most", "weight", "Of each example the largest weight on the BOS at any such row; mean over examples.", True),
        ("bos_most_least", "BOS mass, least of the most", "weight", "The least, over examples, of that largest weight.", True),
        ("bos_highest", "BOS mass, highest", "weight", "The most that the BOS is given anywhere off the trigger.", True),
        ("null", "BOS mass, uniform", "weight", "What uniform weights would give the BOS there: the null.", True),
        ("sink_token", "mass of sink tokens", "weight", "Weight on learned sink tokens, off the trigger.", True),
        # what it leaves behind
        ("max_activation", "largest activation", "|h|", "The largest entry of the residual stream, before any layer or after the last.", False),
        ("kurtosis", "kurtosis", "", "Of the residual stream's entries, at the layer where it is largest: 3 for a normal distribution, more with outliers.", False),
        ("gate_mean", "gate, mean", "", "Mean value of the output gate.", True),
        ("gate_closed", "gate, closed", "share of values", "Gate values under 0.1.", True),
        ("first_mass_by_layer", "first-token mass by layer", "weight", "Mean weight of a query on the first key, over a layer's heads.", True),
        ("strongest_head_by_layer", "strongest head by layer", "weight", "First-token mass of the layer's head where it is largest.", True),
        ("max_activation_by_layer", "largest activation by layer", "|h|", "The largest entry of the residual stream there.", False),
        ("kurtosis_by_layer", "kurtosis by layer", "", "Of the residual stream's entries there: 3 for a normal distribution, more with outliers.", False),
        ("gate_mean_by_layer", "gate, mean by layer", "", "Mean value of a layer's output gate.", True),
        # length and recall
        ("loss_by_position", "loss by position", NATS, "Mean cross entropy of the token at that position.", False),
        ("loss_by_length", "loss by length", NATS, "Mean cross entropy in the last quarter of a context of that length.", False),
        ("yarn_loss_by_length", "loss by length, with YaRN", NATS, "Mean cross entropy in the last quarter of a context of that length, positions stretched to it by YaRN.", False),
        ("recall_by_depth", "recall by depth", "share right", "Tokens of a string seen earlier in the text that are given back exactly, by where it stood.", True),
        ("recall", "recall", "share right", "Tokens of a string seen earlier in the text that are given back exactly, over depths.", True),
        ("recall_chance", "recall by chance", "share right", "The same questions in text without the string: the null.", True),
        ("recall_loss", "loss of the string", NATS, "Cross entropy of the string's tokens where it was seen before.", False),
        ("recall_chance_loss", "loss of the string, unseen", NATS, "The same where it was not.", False),
    )
}  # fmt: skip

_PLACES = {"layer": "by layer", "position": "by position", "length": "by length", "depth": "by depth"}


def metric(name: str) -> Metric:
    """What is known of a number; ``loss_by_position`` is the loss, by position."""
    if name in METRICS:
        return METRICS[name]
    what, by, layer = name.partition("_layer_")
    if by and what in METRICS and layer.isdecimal():
        known = METRICS[what]
        return Metric(name, f"{known.label}, layer {layer}", known.unit, known.says, known.share)
    what, by, place = name.rpartition("_by_")
    if by and what in METRICS and place in _PLACES:
        known = METRICS[what]
        return Metric(name, f"{known.label} {_PLACES[place]}", known.unit, known.says, known.share)
    return Metric(name, name)
