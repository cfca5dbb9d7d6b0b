"""The interface that every prediction of step time obeys. Who plans or simulates steps knows only this."""

from __future__ import annotations

from typing import Protocol

from kvist.costmodel.step_work import StepWork


class StepTimeModel(Protocol):
    """Seconds that a step takes. Pure: the same work gives the same answer until the model learns something new.

    Never less for more work: with each count of `work` that grows, the prediction stays or grows.
    """

    def predict_s(self, work: StepWork) -> float:
        """The time that a step of this work is expected to take."""
        ...

    def margin_s(self, work: StepWork) -> float:
        """Half the width of the error bar: a step seldom takes longer than prediction and margin. 0 if not known."""
        ...
