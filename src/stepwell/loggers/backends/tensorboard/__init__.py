"""The TensorBoard backend."""
