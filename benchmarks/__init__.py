"""What VirtualFlow costs and what it gives, measured: ``python -m benchmarks``."""
