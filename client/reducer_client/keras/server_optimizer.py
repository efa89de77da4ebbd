"""``ServerOptimizer``: an optimizer whose variables and state are in a table on the reducers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from reducer.optimizers import Optimizer
from reducer_client.arrays import Array
from reducer_client.keras.all_reduce import is_wrapping
from reducer_client.keras.calls import as_dense, call_in_order, check_backend
from reducer_client.keras.variables import find_variables, first_values, shapes_of
from reducer_client.tables import Async, Counts, ParameterServer, Receipt, Table
from reducer_client.tables.modes import GivenMode
from reducer_client.tables.training import Training, make_table

_CHANGES = "rate_changes"  # beside the optimizer's variables in a saved state


@keras.saving.register_keras_serializable("reducer_client")  # so that loading calls `from_config`
class ServerOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """A Keras optimizer that pushes gradients to a table, and pulls the variables from it.

    The reducers take the steps. The table has the trained variables in float32 and the state of
    the optimizer; the model has a copy of the variables, which each step replaces. Variables may be
    float32, bfloat16 or float16. Variables that are not trained, such as the means of batch
    normalization, stay with each worker.

    With common steps, a step waits until the step of all workers is over. A worker that came too
    late gets the variables of the newest step, and `receipt` says that its gradient was dropped or
    carried. With SSP, each step ends a clock.

    ``learning_rate`` is the table's. A change of it, by a callback or by a schedule, reaches the
    reducers before the next push. All workers should follow one schedule: the n-th change counts
    once, whichever worker makes it first.

    Compile the model with ``jit_compile=False``, except on JAX. A saved model does not contain the
    table: load the model with ``compile=False``, and make the optimizer again.

    Args:
        model: a built model, whose layers are not frozen or unfrozen afterwards. The constructor
            pulls the variables into it.
        table: a table that has exactly the model's trained variables, by path and shape: `create`
            makes one.
        learning_rate: a number or a ``LearningRateSchedule``. By default the rate of the table.
        clipnorm, clipvalue, global_clipnorm: as for every optimizer of Keras. They act on the
            gradients of this worker, before the push.

    Attributes:
        table: the table.

    Raises:
        TypeError, ValueError: model and table do not fit.
        ReducerError: the variables could not be pulled.

    Warns once if the table is known to diverge with usual learning rates.
    """

    def __init__(
        self,
        model: Any,
        table: Table,
        *,
        learning_rate: Any = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        check_backend()
        variables = find_variables(model)
        training = Training(table, shapes_of(variables), "trainable variables")
        super().__init__(
            learning_rate=training.rate if learning_rate is None else learning_rate,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            name="server_optimizer",
        )
        self.table = table
        self._training = training
        self._paths = tuple(variables)
        self.build(list(variables.values()))
        self.pull()

    @classmethod
    def create(
        cls,
        model: Any,
        ps: ParameterServer,
        *,
        optimizer: Optimizer,
        mode: GivenMode = "async",
        name: str = "model",
        initial: bool | None = None,
        **options: Any,
    ) -> ServerOptimizer:
        """Make a table of the model's trained variables, and an optimizer for it.

        Args:
            optimizer, mode, name: as for `ParameterServer.table`.
            initial: whether this worker brings the first values. By default worker 0 does, and the
                others take over its values.
            options: further options of `ServerOptimizer`.
        """
        check_backend()
        values = first_values(find_variables(model))
        table = make_table(ps, name, values, optimizer=optimizer, mode=mode, initial=initial)
        return cls(model, table, **options)

    @property
    def counts(self) -> Counts:
        """What became of this worker's pushes."""
        return self.table.counts

    @property
    def receipt(self) -> Receipt | None:
        """What became of the last push that has a receipt; None before."""
        return self._training.receipt

    def pull(self) -> None:
        """Put the table's newest variables into the model. Call it outside of ``fit``.

        Raises a ReducerError if a push has failed, or the pull fails.
        """
        values = self.table.pull()
        for path, variable in zip(self._paths, self._trainable_variables, strict=True):
            variable.assign(values[path])
        self._training.take_receipt()

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Push the gradients, and pull the newest variables. Keras calls it in each step.

        Raises:
            ValueError: a variable has no gradient.
            NumericError: a gradient has NaN or Inf. Nothing was sent.
            RoundTimeoutError: the table's workers or reducers were too slow.
            StateLostError: a reducer has lost the table.

        JAX, and TensorFlow in compiled code, raise their own error with the text.
        """
        mine = self._trainable_variables
        given = mine if trainable_variables is None else list(trainable_variables)
        self._check_variables_are_known(given)
        by_place = {
            self._get_variable_index(variable): gradient
            for variable, gradient in zip(given, grads, strict=True)
            if gradient is not None
        }
        self._check_complete(by_place)
        super().apply([as_dense(by_place[place]) for place in range(len(mine))], mine)

    def save_own_variables(self, store: Any) -> None:
        """Save what is local: iterations, the learning rate and the number of its changes."""
        super().save_own_variables(store)
        store[_CHANGES] = np.asarray(self._training.rate_changes)

    def load_own_variables(self, store: Any) -> None:
        """Raises ValueError for a state that is no `ServerOptimizer`'s."""
        saved = {key: store[key] for key in store.keys()}  # noqa: SIM118 - Keras' store has no iter
        if _CHANGES not in saved:
            raise ValueError(
                "the saved state is another optimizer's, and cannot be put into a table: load the "
                "weights before the ServerOptimizer is made, which then brings them as first values"
            )
        changes = int(np.asarray(saved.pop(_CHANGES)))
        super().load_own_variables(saved)
        self._training.go_on(_written(self._rate()), changes)

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        """Raises ValueError: a table cannot be made from a configuration alone."""
        raise ValueError(
            "a ServerOptimizer cannot be loaded without its table: load the model with "
            "keras.saving.load_model(path, compile=False), and make the optimizer again"
        )

    # --- private --------------------------------------------------------------------------------

    def _backend_update_step(
        self, grads: Any, trainable_variables: Any, learning_rate: Any
    ) -> None:
        """Called by `apply` with clipped gradients of all variables."""
        rate = keras.ops.cast(learning_rate, "float32")
        whole = [keras.ops.cast(gradient, "float32") for gradient in grads]
        values = call_in_order(self.table, self._exchange, [rate, *whole], whole)
        for variable, value in zip(trainable_variables, values, strict=True):
            variable.assign(keras.ops.cast(value, variable.dtype))

    def _exchange(self, rate: Array, *gradients: Array) -> list[Array]:
        """The call out of the training step: gradients of all variables for their values."""
        if rate != np.float32(self._training.rate):
            self._training.follow(_written(rate))
        self._training.push(dict(zip(self._paths, gradients, strict=True)))
        self._training.end_clock()
        values = self.table.pull()
        self._training.take_receipt()
        return [values[path] for path in self._paths]

    def _rate(self) -> Array:
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(self.learning_rate, "float32")))

    def _check_complete(self, by_place: dict[int, Any]) -> None:
        missing = [path for place, path in enumerate(self._paths) if place not in by_place]
        if missing:
            more = f", and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ValueError(
                f"table {self.table.name!r}: no gradient of {', '.join(missing[:5])}{more}: all "
                "variables of a table need one in each step; freeze a layer that takes no part "
                "(layer.trainable = False) before the table is made"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if is_wrapping(self, name, value) and not isinstance(self.table.mode, Async):
            raise ValueError(
                f"table {self.table.name!r}, mode {self.table.mode}: a LossScaleOptimizer skips "
                "steps of one worker, for which the others would wait: use the policy "
                "mixed_bfloat16, which needs no scale, or the mode async"
            )
        super().__setattr__(name, value)


def _written(rate: Array) -> float:
    """The shortest decimal of a float32, 0.1 and not 0.10000000149."""
    return float(str(np.float32(rate)))
