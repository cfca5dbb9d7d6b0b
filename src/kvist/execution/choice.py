"""Which executor computes a model: the native one wherever it can."""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec

ExecutorName = Literal["native", "reference"]

MAX_HEAD_DIM = 256
LANES = 16  # widths are multiples of this in the native kernels

log = logging.getLogger(__name__)


def choose_executor(name: str, spec: ModelSpec) -> ExecutorName:
    """The executor that the option `name` means for this model. "auto" takes the reference only with a reason.

    Raises ConfigError if "native" was asked for and cannot be had.
    """
    if name == "reference":
        return "reference"
    reason = why_not_native(spec)
    if reason is None:
        return "native"
    if name == "native":
        raise ConfigError(f"the native executor cannot be used: {reason}; --executor reference computes it slowly")
    log.warning("the reference executor computes this model, slowly: %s", reason)
    return "reference"


def why_not_native(spec: ModelSpec) -> str | None:
    """What keeps the native executor from this model, in a few words; None if nothing does."""
    reason = _why_no_kernels()
    if reason is not None:
        return reason
    if spec.head_dim > MAX_HEAD_DIM:
        return f"its heads have {spec.head_dim} numbers, the native kernels take at most {MAX_HEAD_DIM}"
    widths = (spec.head_dim, spec.hidden_size, spec.intermediate_size)
    if any(width % LANES for width in widths):
        return f"one of its widths {', '.join(map(str, widths))} is no multiple of {LANES}"
    if spec.logit_softcap is not None:
        return "it caps its logits softly"
    return None


@cache
def _why_no_kernels() -> str | None:
    """Whether the compiled module is there and was compiled from these sources' interface."""
    builds = "scripts/serve builds them, as does pip install"
    if find_spec("kvist.execution.native._native") is None:
        return f"the native kernels are not built in this environment; {builds}"
    try:
        # Here, because an environment without the compiled kernels must still be able to import this module.
        from kvist.execution.native import _native
    except ImportError as error:
        return f"the native kernels cannot be loaded ({error}); {builds}"
    interface = Path(__file__).with_name("native") / "_native.pyi"
    try:
        expected = hashlib.sha256(interface.read_bytes()).hexdigest()
    except OSError:  # an installation without stubs has one module only
        return None
    if getattr(_native, "interface", None) != expected:
        return f"the native kernels were compiled from other sources than those beside them; {builds}"
    return None
