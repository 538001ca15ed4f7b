"""The cases of each kind of vector, and this implementation's answer to what they give."""

from luxrelay.testing.cases.case import Case, Json, Kind
from luxrelay.testing.cases.kinds import KINDS

__all__ = ["KINDS", "Case", "Json", "Kind"]
