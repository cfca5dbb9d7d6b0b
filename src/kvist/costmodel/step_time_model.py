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


class LearningStepTimeModel(StepTimeModel, Protocol):
    """A model that is told of each step that was run."""

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that a step of `work` took `seconds`. Costs about the same however much has been learnt."""
        ...


class KnownStepTimes:
    """A model that has nothing to learn, in the place of one that does."""

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model

    def predict_s(self, work: StepWork) -> float:
        return self._model.predict_s(work)

    def margin_s(self, work: StepWork) -> float:
        return self._model.margin_s(work)

    def observe(self, work: StepWork, seconds: float) -> None:
        """No effect."""
