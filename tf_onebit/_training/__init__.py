"""Exchange of a training program's gradients, as the adapters share it.

Keras optimizers call it in their updates.
"""
