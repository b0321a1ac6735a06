"""The process and its machine: clock, memory, environment, compiled kernels, log lines, metrics."""
