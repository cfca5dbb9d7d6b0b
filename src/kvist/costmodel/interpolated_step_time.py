"""Answers most questions about step time from a table of a model's own answers, for millions of steps."""

from __future__ import annotations

from kvist.costmodel.step_time_model import StepTimeModel
from kvist.costmodel.step_work import StepWork

KNOT_BITS = 4  # knots lie 2 ** -KNOT_BITS of an octave apart at most


class InterpolatedStepTime:
    """A step of decodes alone is read off between two knots: numbers of keys at which the model was asked.

    Between knots a straight line stands for the model, which is nearly one there: knots are at most 1/16 of the value
    apart. All other steps go to the model. Good while the model does not learn.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self._lines: dict[tuple[int, int, int], tuple[int, float, float]] = {}

    def predict_s(self, work: StepWork) -> float:
        num_keys = work.decode_context_tokens
        if work.prefill_pairs or work.num_tokens != work.num_sequences:
            return self._model.predict_s(work)
        shift = max(num_keys.bit_length() - 1 - KNOT_BITS, 0)
        key = (work.num_tokens, work.num_sampled, (num_keys >> shift) + (shift << 32))
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self._line(work, num_keys >> shift << shift, 1 << shift)
        first, at_first_s, slope_s = line
        return at_first_s + slope_s * (num_keys - first)

    def margin_s(self, work: StepWork) -> float:
        return self._model.margin_s(work)

    def _line(self, work: StepWork, first: int, width: int) -> tuple[int, float, float]:
        start_s, end_s = (self._model.predict_s(_with_keys(work, keys)) for keys in (first, first + width))
        return first, start_s, (end_s - start_s) / width


def _with_keys(work: StepWork, num_keys: int) -> StepWork:
    return StepWork(
        num_tokens=work.num_tokens,
        num_sequences=work.num_sequences,
        num_sampled=work.num_sampled,
        decode_context_tokens=num_keys,
    )
