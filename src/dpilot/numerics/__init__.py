"""What rounding may hide, and the products that know it: precision, bounds of rounding, lengths, kernels.

Promises: a norm computed here is never below the true one by more than the stated allowance, on every device; a kernel
gives what its plain form gives, sample by sample. May import: torch and numpy, Triton where it is installed; nothing of
ours.
"""
