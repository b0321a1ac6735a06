"""`gs.test`: what programs ask of a build of TensorFlow, and the test case that its users derive theirs from."""

from globalstep.lazy import namespace
from globalstep.tf1.absent import ABSENT_IN_TEST

__all__ = namespace(__name__, absent=ABSENT_IN_TEST)
