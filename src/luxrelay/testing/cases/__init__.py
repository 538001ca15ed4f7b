"""Cases of each kind of vector, and this implementation's answers."""

from luxrelay.testing.cases.case import Case, Json, VectorKind
from luxrelay.testing.cases.kinds import KINDS

__all__ = ["KINDS", "Case", "Json", "VectorKind"]
