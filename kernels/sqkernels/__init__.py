"""sqkernels: Triton kernels for in-place eviction. Empty until the kernels land."""
