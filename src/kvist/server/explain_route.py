"""GET /v1/requests/{id}/explain: where the time of a request went, and how much of its prompt came from the cache."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvist.metrics.timelines import Timeline
from kvist.server.backend import ServerState
from kvist.server.error_responses import http_error_response


async def explain(request: Request) -> Response:
    """Takes the id of an answer (`chatcmpl-...`, `cmpl-...`) or the x-request-id of a call."""
    state: ServerState = request.app.state.server
    asked: str = request.path_params["call_id"]
    call_id = asked.removeprefix("chatcmpl-").removeprefix("cmpl-")
    timelines = []
    if state.owners.is_only(call_id, request.scope["state"]["key_domain"]):
        timelines = [one for one in state.timelines.all() if _call_id(one) == call_id]
    if not timelines:
        return http_error_response(404, f"nothing is known (any more) of a request {asked[:200]!r} of yours")
    answer = {"id": asked, "requests": [_explained(timeline) for timeline in timelines]}
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _call_id(timeline: Timeline) -> str:
    """The engine knows samples as CALL-SERIAL and CALL-SERIAL.SAMPLE."""
    return timeline.request_id.rpartition("-")[0]


def _explained(timeline: Timeline) -> dict[str, object]:
    return {
        "id": timeline.request_id,
        "summary": summary(timeline),
        "prompt_tokens": timeline.num_prompt_tokens,
        "cached_tokens": timeline.num_cached_tokens,
        "output_tokens": timeline.num_output_tokens,
        "draft_tokens": timeline.num_draft_tokens,
        "accepted_draft_tokens": timeline.num_accepted_tokens,
        "cut_chunks": timeline.num_cut_chunks,
        "preemptions": timeline.num_preemptions,
        "queue_time_s": timeline.first_scheduled_at_s,
        "ttft_s": timeline.first_token_at_s,
        "last_token_s": timeline.last_token_at_s,
        "e2e_s": timeline.finished_at_s,
        "finish_reason": None if timeline.finish_reason is None else timeline.finish_reason.value,
        "error": timeline.error,
        "events": timeline.moments,
    }


def summary(timeline: Timeline) -> str:
    """The same in one sentence for people."""
    if timeline.first_scheduled_at_s is None:
        parts = ["has not left the queue" if timeline.finished_at_s is None else "never left the queue"]
    else:
        parts = [f"waited {timeline.first_scheduled_at_s:.3f} s in the queue"]
        parts.append(f"read {timeline.num_cached_tokens} of {timeline.num_prompt_tokens} prompt tokens from the cache")
    if timeline.first_scheduled_at_s is not None and timeline.first_token_at_s is not None:
        parts.append(f"computed the rest in {timeline.first_token_at_s - timeline.first_scheduled_at_s:.3f} s")
    if timeline.first_token_at_s is not None and timeline.last_token_at_s is not None:
        decode_s = timeline.last_token_at_s - timeline.first_token_at_s
        parts.append(f"then gave {timeline.num_output_tokens} tokens in {decode_s:.3f} s")
    if timeline.last_cut is not None:
        cut = timeline.last_cut
        parts.append(
            f"had {timeline.num_cut_chunks} chunks of its prompt cut (the last to {cut.num_tokens} of "
            f"{cut.num_wanted_tokens} tokens, to end the step within {cut.step_limit_s:.3f} s for a stream that is to "
            f"have a token every {cut.tpot_s:.3f} s)"
        )
    if timeline.num_draft_tokens:
        parts.append(f"of which {timeline.num_accepted_tokens} were drafted ({timeline.num_draft_tokens} tries)")
    if timeline.num_preemptions:
        parts.append(f"was preempted {timeline.num_preemptions} times and computed again")
    if timeline.finish_reason is not None:
        parts.append(f"ended by {timeline.finish_reason.value}" + (f": {timeline.error}" if timeline.error else ""))
    return ", ".join(parts)
