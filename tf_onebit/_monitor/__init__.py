"""The Monitor: bytes, residuals and times of exchanges, in logs, TensorBoard and a timeline."""
