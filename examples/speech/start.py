"""The initial model of a training: random, pre-trained, of low rank, or loaded."""

import keras
from batches import FrameBatches
from model import acoustic_model, hidden_layers, low_rank_model

import tf_onebit
import tf_onebit.horovod as hvd


def initial_model(options, split, target_count, rank, workers):
    """Returns the `keras.Model` that the command line asks for.

    Args:
        options: what `parse_arguments` returned.
        split: `dataset.Split` to pre-train on.
        target_count: int.
        rank, workers: int.
    """

    def batches(depth):
        parts = round(1 / options.pretrain)
        return FrameBatches(
            split, options.batch_size, rank, workers, parts, options.seed, first_block=depth - 1
        )

    input_shape = FrameBatches(split, 1, 0, 1)[0][0].shape[1:]
    model = acoustic_model(
        input_shape, target_count, options.depth, options.width, options.activation
    )
    if options.pretrain:
        losses = pretrain(model, batches, options.learning_rate, options.momentum)
        if rank == 0:
            print("pre-training, cross entropies:", *(f"{loss:.3f}" for loss in losses), flush=True)
    if options.svd_rank:
        model = low_rank_model(model, options.svd_rank)
    if options.load_weights:
        model.load_weights(options.load_weights)
    return model


def pretrain(model, batches, learning_rate, momentum):
    """Pre-trains all hidden layers except the last, beginning with a network of one layer.

    The method is from Seide, Li and Yu (2011). It trains a network with one hidden layer for a
    short time, and drops its output layer. Then it adds the next hidden layer and a new output
    layer, trains all of it, and so on. The last hidden layer and the outputs of `model` stay
    unchanged, because training them means to train the model.

    The workers of a job share minibatches, and exchange gradients in full precision.

    Args:
        model: what `acoustic_model` returned. Its hidden layers are trained.
        batches: function of the number of hidden layers so far that returns this worker's
            minibatches for `fit`.
        learning_rate: float, constant.
        momentum: float.

    Returns:
        List of the cross entropy on the training data, for each number of hidden layers.
    """
    hidden = hidden_layers(model)
    cross_entropies = []
    for depth in range(1, len(hidden)):
        shallow = keras.Sequential(
            [
                keras.Input(model.input_shape[1:]),
                keras.layers.Flatten(),
                *hidden[:depth],
                keras.layers.Dense(model.output_shape[-1]),
            ]
        )
        optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum)
        shallow.compile(
            optimizer=hvd.DistributedOptimizer(optimizer, tf_onebit.FullPrecision()),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        callbacks = [hvd.BroadcastGlobalVariablesCallback(0), hvd.MetricAverageCallback()]
        history = shallow.fit(batches(depth), shuffle=False, verbose=0, callbacks=callbacks).history
        cross_entropies.append(history["loss"][-1])
    return cross_entropies
