"""The operation as Triton kernels, for CUDA tensors; the kernels are imported only where triton is installed."""
