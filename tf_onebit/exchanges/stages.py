"""Who runs the stages of an exchange."""


class Stages:
    """Runs the stages of exchanges as they are. To take their times, others come in its place."""

    def encode(self, exchange, gradients):
        """`Exchange.encode`."""
        return exchange.encode(gradients)

    def aggregate(self, exchange, message):
        """`Exchange.aggregate`."""
        return exchange.aggregate(message)

    def deliver(self, exchange, message, like, scale):
        """`Exchange.deliver`."""
        return exchange.deliver(message, like, scale)

    def hold(self, message):
        """Is told that a step gives nothing back, and keeps a message: list of tensors."""
