"""The Monitor: what exchanges send, hold back and take, in logs, TensorBoard and a timeline."""
