"""A training step that times its exchanges during a `fit`."""

from tf_onebit._training import fit
from tf_onebit._training.recorder import Recorder


class TimedStep:
    """A model's training step that times its exchanges from `begin` to `end`.

    Attributes:
        recorder: `Recorder` of these times.
    """

    def __init__(self):
        self.recorder = Recorder()
        self._model, self._exchanges = None, []
        self._functions = None, None  # without times, and with them

    def begin(self, model, exchanges):
        """Begins to time the `GradientExchange`s of a list, if they run within the step."""
        self.end()  # an interrupted `fit` did not call it
        self._exchanges = [exchange for exchange in exchanges if exchange.changes_gradients]
        if not self._exchanges:
            return
        self._model = model
        for exchange in self._exchanges:
            exchange.record_times(self.recorder)
        function = model.train_function
        if function is not None and function is self._functions[0]:
            model.train_function = self._functions[1]  # the last `fit` has traced it
        else:
            fit.trace_anew(model)
            self._functions = function, model.train_function

    def end(self):
        """Ends timing, and gives the model its old training step back."""
        model, self._model = self._model, None
        if model is None:
            return
        for exchange in self._exchanges:
            exchange.record_times(None)
        if model.train_function is self._functions[1]:
            model.train_function = self._functions[0]
        else:  # other code has made it trace again meanwhile
            fit.trace_anew(model)
