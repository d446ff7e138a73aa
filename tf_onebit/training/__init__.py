"""What the adapters share: the exchange of a training program's gradients, and where Keras
optimizers call it."""
