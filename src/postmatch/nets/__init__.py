"""Plain networks: tensors in, tensors out, no probability."""
