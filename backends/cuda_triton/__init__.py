"""The CUDA backend: Triton kernels behind the op contract, one arithmetic for every row count."""
