"""One PS task's state machine: what is staged, admitted, applied and answered.

Layer: ps.
"""
