"""A training step that takes times of its exchanges, for the time of a `fit`."""

from tf_onebit.training import fit
from tf_onebit.training.recorder import Recorder


class TimedStep:
    """Has a model's training step traced with times of its exchanges, and without them again.

    Attributes:
        recorder: `Recorder` of these times.
    """

    def __init__(self):
        self.recorder = Recorder()
        self._model, self._exchanges = None, []
        self._functions = None, None  # without times, and with them

    def begin(self, model, exchanges):
        """Begins to take times of a list of `GradientExchange`, where there are any to take."""
        self.end()  # of a `fit` that was interrupted
        self._exchanges = [
            exchange
            for exchange in exchanges
            if exchange.changes_gradients and not exchange.is_asynchronous
        ]
        if not self._exchanges:
            return
        self._model = model
        for exchange in self._exchanges:
            exchange.record_times(self.recorder)
        function = model.train_function
        if function is not None and function is self._functions[0]:
            model.train_function = self._functions[1]  # as the last `fit` has traced it
        else:
            fit.trace_anew(model)
            self._functions = function, model.train_function

    def end(self):
        """Ends it: the model has the step that it had."""
        model, self._model = self._model, None
        if model is None:
            return
        for exchange in self._exchanges:
            exchange.record_times(None)
        if model.train_function is self._functions[1]:
            model.train_function = self._functions[0]
        else:  # somebody has had it traced anew meanwhile
            fit.trace_anew(model)
