"""CPU kernels in C++, compiled where they run."""
