"""SplitModel: a Keras model whose group holds it in parts."""

from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of, require_no_xla
from tf_onebit._training.optimizer import Distributed
from tf_onebit.model_parallel.same_data import require_same_data
from tf_onebit.model_parallel.split_layer import Split


class SplitModel(Split):
    """Mixin for Keras models that are split.

    Files and weights are those of a plain model.

    Attributes:
        division: `Division`.
    """

    def save(self, *args, **kwargs):
        self._write("save", args, kwargs)

    def save_weights(self, *args, **kwargs):
        self._write("save_weights", args, kwargs)

    def export(self, *args, **kwargs):
        self._write("export", args, kwargs)

    def load_weights(self, *args, **kwargs):
        return self._plain("load_weights", args, kwargs, assigns=True)

    def get_weights(self):
        return self._plain("get_weights")

    def set_weights(self, *args, **kwargs):
        return self._plain("set_weights", args, kwargs, assigns=True)

    def get_state_tree(self, *args, **kwargs):
        return self._plain("get_state_tree", args, kwargs)

    def set_state_tree(self, *args, **kwargs):
        return self._plain("set_state_tree", args, kwargs, assigns=True)

    def _write(self, name, args, kwargs):
        """Writes a file or folder on the first process of the job."""
        self._plain(name, args, kwargs, on_first=True)

    def _plain(self, name, args=(), kwargs=None, assigns=False, on_first=False):
        """Calls a method of the plain model while each member holds all weights."""
        groups = self.division.groups
        with groups.together(f"model.{name}", tells_failure=True):
            if on_first and groups.number > 0:
                return None
            with self.division.joined(assigns):
                if on_first and groups.member > 0:
                    return None
                return getattr(type(self), name)(self, *args, **(kwargs or {}))


class SplitModelOfProcesses(SplitModel):
    """Mixin for Keras models that processes hold together.

    All processes of a job make each call together, the members of a group with the same data.
    """

    def fit(self, *args, **kwargs):
        with self.division.groups.together("model.fit"):
            return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        with self.division.groups.together("model.evaluate"):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        with self.division.groups.together("model.predict"):
            return super().predict(*args, **kwargs)

    def train_step(self, *args):
        self._require_distributed()
        require_no_xla(self)
        require_same_data(args, self.division.groups)
        return super().train_step(*args)

    def test_step(self, *args):
        require_same_data(args, self.division.groups)
        return super().test_step(*args)

    def predict_step(self, *args):
        require_same_data(args, self.division.groups)
        return super().predict_step(*args)

    def _require_distributed(self):
        for optimizer in map(inner_optimizer, optimizers_of(self)):
            if not isinstance(optimizer, Distributed):
                raise ValueError(
                    "The optimizer of a split model joins the gradients of the members. Received: "
                    f"{type(optimizer).__name__}, which does not. Compile the model with "
                    "tf_onebit.horovod.DistributedOptimizer(optimizer)."
                )
