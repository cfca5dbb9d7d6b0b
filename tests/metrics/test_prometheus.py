"""What a scrape shows. The names are a contract with dashboards: a rename blanks them."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvist.core.request import FinishReason
from kvist.core.request_events import EventBatch, Finished, Queued, Scheduled, StepSummary, TokensSampled
from kvist.metrics.prometheus import EngineFacts, render
from kvist.metrics.recorder import MetricsRecorder

GOLDEN = Path(__file__).parent / "golden_metric_names.txt"
FACTS = EngineFacts(
    model_name='odd "name"\n',
    num_waiting=2,
    num_running=3,
    num_total_blocks=100,
    num_free_blocks=60,
    num_evictable_blocks=30,
    startup_phases_s={"load": 1.5},
    cache_config={"block_size": "16"},
)


def busy_recorder() -> MetricsRecorder:
    recorder = MetricsRecorder()
    step = StepSummary(1, 2.0, 0.25, 40, 30, 8, 2, 3, 1, 5, 6, 20)
    events = [
        Queued("a", 1.0, 10),
        Scheduled("a", 1.5, 4),
        TokensSampled("a", 2.0, [7]),
        TokensSampled("a", 2.5, [7]),
        Finished("a", 3.0, FinishReason.LENGTH, 10, 2, 4, 0),
    ]
    recorder.record(EventBatch(3.0, events, step))
    recorder.record_rejected("queue_full")
    recorder.record_http_response("/v1/completions", 200)
    return recorder


def scrape(*, vllm_names: bool = True) -> dict[str, object]:
    text = render(busy_recorder(), FACTS, vllm_names=vllm_names).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: dict[str, object], name: str, **labels: str) -> float:
    found = [s.value for s in samples.values() if s.name == name and labels.items() <= s.labels.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_names_and_labels_are_the_golden_ones() -> None:
    lines = sorted({f"{s.name} {' '.join(sorted(s.labels))}".rstrip() for s in scrape().values()})
    assert "\n".join(lines) + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_vllm_names_can_be_switched_off() -> None:
    assert any(sample.name.startswith("vllm:") for sample in scrape().values())
    assert not any(sample.name.startswith("vllm:") for sample in scrape(vllm_names=False).values())


def test_both_name_sets_tell_the_same() -> None:
    samples = scrape()
    for kvist_name, vllm_name, expected in (
        ("kvist:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum", 1.0),
        ("kvist:e2e_request_latency_seconds_count", "vllm:e2e_request_latency_seconds_count", 1.0),
        ("kvist:kv_usage_fraction", "vllm:kv_cache_usage_perc", 0.1),
        ("kvist:generation_tokens_total", "vllm:generation_tokens_total", 2.0),
        ("kvist:requests_waiting", "vllm:num_requests_waiting", 2.0),
    ):
        assert round(value(samples, kvist_name), 9) == round(value(samples, vllm_name), 9) == expected
    assert value(samples, "vllm:request_success_total", finished_reason="length") == 1
    assert value(samples, "vllm:prefix_cache_queries_total") == 10
    assert value(samples, "vllm:prefix_cache_hits_total") == 4


def test_labels_carry_the_model_and_survive_odd_names() -> None:
    sample = next(s for s in scrape().values() if s.name == "vllm:num_requests_running")
    assert sample.labels == {"model_name": 'odd "name"\n', "engine": "0"}


def test_an_idle_server_has_all_families_already() -> None:
    idle = render(MetricsRecorder(), FACTS, vllm_names=True).decode()
    names = {family.name for family in text_string_to_metric_families(idle)}
    busy = {
        family.name
        for family in text_string_to_metric_families(render(busy_recorder(), FACTS, vllm_names=True).decode())
    }
    assert names == busy
