"""All requests of a run in one summary, in memory that does not grow with their number."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .histogram import Histogram
from .outcome import FAILED, FINISHED, UNFINISHED, Outcome, Slo
from .windows import Windows

DEFINITIONS = {
    "sent": "Requests that were due within the run: sent = finished + rejected + failed + unfinished. Shares "
    "are of these, and rates are of these over the time in which they were due.",
    "rejected": "Refused by the server before any token (HTTP 429, or its own code).",
    "unfinished": "Still running when the run's last deadline passed; their tokens until then count.",
    "TTFT": "From when a request was due to its first token, over all that got one.",
    "TBT": "Gap between consecutive tokens of one stream, preemption included; tokens that came together "
    "have a gap of 0. Over all gaps of all streams.",
    "TPOT": "(last - first token) / (tokens - 1) of a request; undefined for one token.",
    "E2E": "From when a request was due to its last token, over the finished.",
    "scheduling delay": "From arrival to the first step that carries any of the request's tokens.",
    "goodput": "Requests a second that finished, whose TTFT met its target and the P99 of whose own gaps met "
    "the TBT target, over all that were sent.",
    "lag": "From when a request was due to when it was sent: how late the client itself was.",
    "quantiles": "Nearest rank, of 1 % buckets; least, worst and mean are exact.",
}


class Tally:
    """Counts outcomes against targets. `windows` holds how the run went on."""

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self.ttft, self.tbt, self.tpot, self.e2e = Histogram(), Histogram(), Histogram(), Histogram()
        self.delay, self.lag, self.worst_gap = Histogram(), Histogram(), Histogram()
        self.windows = Windows(("sent", "good", FINISHED, "rejected", FAILED, UNFINISHED))
        self.results: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    @property
    def sent(self) -> int:
        return self.results.total()

    def add(self, outcome: Outcome, gaps: Sequence[float] = ()) -> None:
        """`gaps`: between its tokens, seconds."""
        slo, counts = self.slo, self._counts
        kind = "rejected" if outcome.rejected else outcome.result
        good = outcome.good(slo)
        self.results[outcome.result] += 1
        counts[kind] += 1
        counts["good"] += good
        counts["met_ttft"] += outcome.met_ttft(slo)
        counts["met_tbt"] += outcome.met_tbt(slo)
        if kind == FINISHED:
            counts["missed_ttft"] += not outcome.met_ttft(slo)
            counts["missed_tbt"] += not outcome.met_tbt(slo)
        for name in ("prompt", "output", "cached"):
            counts[name] += getattr(outcome, name)
        self.windows.add(max(outcome.at, 0.0), sent=1, good=good, **{kind: 1})
        for histogram, seconds in (
            (self.ttft, outcome.ttft),
            (self.tpot, outcome.tpot),
            (self.e2e, outcome.e2e),
            (self.delay, outcome.delay),
            (self.worst_gap, outcome.gap_worst),
            (self.lag, outcome.lag),
        ):
            if seconds is not None:
                histogram.add(seconds)
        self.tbt.extend(gaps)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Of a run whose requests were due within so many seconds; shares are None where none was.

        Latencies are seconds by quantile; None where there is none of them.
        """
        counts, sent = self._counts, self.sent

        def share(count: int) -> float | None:
            return count / sent if sent else None

        return {
            "seconds": seconds,
            "slo": asdict(self.slo),
            "sent": sent,
            "finished": counts[FINISHED],
            "rejected": counts["rejected"],
            "failed": counts[FAILED],
            "unfinished": counts[UNFINISHED],
            "results": dict(sorted(self.results.items())),
            "good": counts["good"],
            "good_share": share(counts["good"]),
            "met_ttft_share": share(counts["met_ttft"]),
            "met_tbt_share": share(counts["met_tbt"]),
            "missed_ttft": counts["missed_ttft"],
            "missed_tbt": counts["missed_tbt"],
            "offered_per_s": sent / seconds,
            "finished_per_s": counts[FINISHED] / seconds,
            "goodput_per_s": counts["good"] / seconds,
            "prompt_tokens": counts["prompt"],
            "cached_tokens": counts["cached"],
            "output_tokens": counts["output"],
            "ttft_s": self.ttft.summary(),
            "tbt_s": self.tbt.summary(),
            "tpot_s": self.tpot.summary(),
            "e2e_s": self.e2e.summary(),
            "delay_s": self.delay.summary(),
            "worst_gap_s": self.worst_gap.summary(),
            "lag_s": self.lag.summary(),
            "coalesced_share": self.tbt.nothing / self.tbt.count if self.tbt.count else None,
        }
