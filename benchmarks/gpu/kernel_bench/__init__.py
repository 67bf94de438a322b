"""What benchmarks/gpu/kernels.py is made of: sizes and cases, checks, races, times, dense products, rivals."""
