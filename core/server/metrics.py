"""Figures for prometheus, under the names that dashboards know; they add up.

started = finished + failed + aborted + running + waiting, and the count of times to first token is
the number of ended replies with at least one token. What cannot be counted is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tensorfold.core.engine_api import Memory
from tensorfold.core.lane_host.stream import (
    CANCELLED,
    CLOSING,
    END_TOKEN,
    LENGTH,
    STOP,
    End,
    HostStats,
)

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
TOKENS = tuple(2**power for power in range(0, 21, 2))
# How an end is counted, under vLLM's names; any other is an error.
REASONS = {
    END_TOKEN: "stop",
    STOP: "stop",
    LENGTH: "length",
    CANCELLED: "abort",
    CLOSING: "abort",
}


class HostCollector(Collector):
    """The lane host's own counters, read at the moment they are asked for."""

    def __init__(self, stats: Callable[[], HostStats], memory: Callable[[], Memory]) -> None:
        self.stats = stats
        self.memory = memory

    def collect(self) -> Iterable[Metric]:
        stats, memory = self.stats(), self.memory()
        gauges: dict[str, tuple[str, float]] = {
            "num_requests_running": ("Replies being made", stats.filling + stats.live),
            "num_requests_waiting": ("Replies in the queue", stats.waiting),
            "waiting_prompt_tokens": ("Prompt tokens in the queue", stats.waiting_rows),
            "engine_alive": ("1 while the engine works", int(stats.alive)),
            "state_bytes_used": ("Bytes of stream state in use", memory.used),
            "state_bytes_free": ("Bytes of stream state free", memory.free),
            "state_bytes_peak": ("Most bytes of stream state ever in use", memory.peak),
        }
        if memory.used + memory.free > 0:
            share = memory.used / (memory.used + memory.free)
            gauges["kv_cache_usage_perc"] = ("Share of stream state in use, 0 to 1", share)
        counters = {
            "requests_started": ("Replies taken on", stats.started),
            "requests_finished": ("Replies that the model ended", stats.finished),
            "requests_failed": ("Replies that a fault ended", stats.failed),
            "requests_aborted": ("Replies that were cancelled or cut off", stats.aborted),
            "turns": ("Turns of the engine thread that ran a forward", stats.turns),
            "rounds": ("Rounds", stats.rounds),
            "round_rows": ("Rows of all rounds", stats.round_rows),
            "filled_rows": ("Prompt rows run", stats.filled_rows),
            "committed_tokens": ("Tokens committed", stats.tokens),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"tensorfold:{name}", text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"tensorfold:{name}", text, value=value)
        fills = CounterMetricFamily("tensorfold:fills", "Prompt forwards by kind", labels=["kind"])
        for kind, count in sorted(stats.fills.items()):
            fills.add_metric([kind], count)
        yield fills
        yield from drafts(stats)


def drafts(stats: HostStats) -> Iterator[Metric]:
    """Guesses by their source, of ended and of live replies; a round's rows."""
    texts = {
        "draft_rows": ("Guesses that had a row in a round", stats.drafted),
        "draft_rows_accepted": ("Guesses that came true", stats.accepted),
        "drafter_faults": ("Streams for which a drafter was given up", stats.drafter_faults),
    }
    for name, (text, counts) in texts.items():
        family = CounterMetricFamily(f"tensorfold:{name}", text, labels=["source"])
        for source, count in counts.items():
            family.add_metric([source], count)
        yield family
    yield CounterMetricFamily("tensorfold:forced_tokens", "Tokens forced", value=stats.forced)
    buckets, count = [], 0
    for rows in sorted(stats.rounds_by_rows):
        count += stats.rounds_by_rows[rows]
        buckets.append((str(float(rows)), float(count)))
    yield HistogramMetricFamily(
        "tensorfold:rows_per_round",
        "Rows of a round",
        buckets=[*buckets, ("+Inf", float(count))],
        sum_value=stats.round_rows,
    )


class Registry(CollectorRegistry):
    """Without the library's `_created` samples, which are no figures of ours."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric


class Metrics:
    """One server's registry. Ends are counted as they are delivered, on the loop's thread."""

    def __init__(self) -> None:
        self.registry = registry = Registry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tensorfold:{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tensorfold:{name}", text, buckets=buckets, registry=registry)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended replies")
        self.generation_tokens = counter("generation_tokens", "Tokens of ended replies")
        self.cached_tokens = counter("prompt_tokens_cached", "Prompt tokens that were not run")
        self.drafted = counter("spec_decode_num_draft_tokens", "Drafts in windows")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Drafts accepted")
        self.success = counter("request_success", "Ended replies by reason", "finished_reason")
        self.answers = counter("http_responses", "HTTP answers", "route", "status")
        self.first = histogram("time_to_first_token_seconds", "Submission to first token", SECONDS)
        self.each = histogram("time_per_output_token_seconds", "Seconds a later token", SECONDS)
        self.whole = histogram("e2e_request_latency_seconds", "Submission to last token", SECONDS)
        self.queued = histogram("request_queue_time_seconds", "Submission to admission", SECONDS)
        self.filled = histogram("request_prefill_time_seconds", "Admission to first", SECONDS)
        self.decoded = histogram("request_decode_time_seconds", "First to last token", SECONDS)
        self.prompts = histogram("request_prompt_tokens", "Prompt tokens a reply", TOKENS)
        self.replies = histogram("request_generation_tokens", "Tokens a reply", TOKENS)

    def watch(self, stats: Callable[[], HostStats], memory: Callable[[], Memory]) -> None:
        self.registry.register(HostCollector(stats, memory))

    def ended(self, end: End) -> None:
        """Count one reply's end."""
        counts = end.counts
        self.success.labels(finished_reason=REASONS.get(end.reason, "error")).inc()
        self.prompt_tokens.inc(counts.prompt)
        self.generation_tokens.inc(counts.tokens)
        self.cached_tokens.inc(counts.cached)
        self.drafted.inc(counts.drafted)
        self.accepted.inc(counts.accepted)
        self.prompts.observe(counts.prompt)
        self.replies.observe(counts.tokens)
        if counts.tokens:
            first = counts.queue_seconds + counts.prefill_seconds
            self.first.observe(first)
            self.whole.observe(first + counts.decode_seconds)
            self.queued.observe(counts.queue_seconds)
            self.filled.observe(counts.prefill_seconds)
            self.decoded.observe(counts.decode_seconds)
        if counts.tokens > 1:
            self.each.observe(counts.decode_seconds / (counts.tokens - 1))

    def text(self) -> bytes:
        return generate_latest(self.registry)
