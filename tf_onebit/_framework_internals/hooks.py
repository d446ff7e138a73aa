"""The private methods and attributes that classes of other rooms override, or call on themselves.

A subclass must define or call them itself, so no function here can wrap them. The lists below give
them by the class of Keras or TensorFlow that defines them, each with the place that calls or
defines it. Tests compare the lists with the installed versions and with this package's classes.

Paths refer to Keras 3.15.1 and TensorFlow 2.21.0.
"""

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from tf_onebit._framework_internals.tf_datasets import DistributedIterator, DistributedIteratorSpec
from tf_onebit._framework_internals.tf_strategies import (
    CollectiveAllReduceExtended,
    MirroredExtended,
)

# Parameters of each method, by class and method.
METHODS = {
    # `apply` calls the first two. The second calls the next three for an update, and afterwards the
    # two that average weights (keras/src/optimizers/base_optimizer.py:466, 551).
    keras.optimizers.Optimizer: {
        "_filter_empty_gradients": "self, grads, vars",  # optimizers/base_optimizer.py:843
        "_backend_apply_gradients": "self, grads, trainable_variables",  # base_optimizer.py:535
        "_clip_gradients": "self, grads",  # base_optimizer.py:870
        "_apply_weight_decay": "self, variables",  # backend/tensorflow/optimizer.py:89
        # backend/tensorflow/optimizer.py:113
        "_backend_update_step": "self, grads, trainable_variables, learning_rate",
        # backend/tensorflow/optimizer.py:127
        "_distributed_tf_update_step": "self, distribution, grads_and_vars, learning_rate",
        "_all_reduce_sum_gradients": "self, grads_and_vars",  # backend/tensorflow/optimizer.py:141
        "_get_current_learning_rate": "self",  # base_optimizer.py:777, in `learning_rate`
        # backend/tensorflow/optimizer.py:203
        "_backend_increment_gradient_accumulators": "self, grads, acc_grads",
        "_backend_reset_gradient_accumulators": "self",  # base_optimizer.py:623
        "_update_model_variables_moving_average": "self, trainable_variables",  # :970
        # backend/tensorflow/optimizer.py:181
        "_overwrite_model_variables_with_average_value": "self, trainable_variables",
        "_get_variable_index": "self, variable",  # base_optimizer.py:238
        "_track_variable": "self, variable",  # base_optimizer.py:204
    },
    keras.layers.BatchNormalization: {
        "_moments": "self, inputs, mask",  # layers/normalization/batch_normalization.py:434
    },
    TFEpochIterator: {
        "_enumerate_iterator": "self",  # trainers/epoch_iterator.py:105, in `__iter__`
    },
    # TensorFlow documents how to subclass it.
    tf.TypeSpec: {
        "_component_specs": "self",  # tensorflow/python/framework/type_spec.py:426
        "_to_components": "self, value",  # type_spec.py:394
        "_from_components": "self, components",  # type_spec.py:410
        "_serialize": "self",  # type_spec.py:504
    },
    tf.data.Iterator: {
        "_type_spec": "self",  # tensorflow/python/framework/composite_tensor.py:45
    },
    DistributedIterator: {
        "_type_spec": "self",  # tensorflow/python/distribute/input_lib.py:634
        # input_lib.py:351: `get_next` calls it when all data have ended, or when none can end
        "_get_next_no_partial_batch_handling": "self, name",
    },
    DistributedIteratorSpec: {
        "_from_components": "self, components",  # tensorflow/python/distribute/input_lib.py:549
    },
    MirroredExtended: {
        "_container_strategy": "self",  # tensorflow/python/distribute/distribute_lib.py:2477
        "_initialize_single_worker": "self, devices",  # distribute/mirrored_strategy.py:408
        "_num_replicas_in_sync": "self",  # mirrored_strategy.py:885
        "_create_variable": "self, next_creator, kwargs",  # mirrored_strategy.py:517
        "_call_for_each_replica": "self, fn, args, kwargs",  # mirrored_strategy.py:699
        "_reduce_to": "self, reduce_op, value, destinations, options",  # mirrored_strategy.py:763
        # mirrored_strategy.py:791
        "_batch_reduce_to": "self, reduce_op, value_destination_pairs, options",
    },
    CollectiveAllReduceExtended: {
        # tensorflow/python/distribute/collective_all_reduce_strategy.py, at these lines
        "_initialize_local_devices": "self, cluster_resolver, worker_device",  # 403
        "_initialize_local": "self, cluster_resolver, devices",  # 430
        "_initialize_multi_worker": "self, cluster_resolver",  # 507
        # 686
        "_get_variable_creator_initial_value": "self, replica_id, device, primary_var, kwargs",
        "_experimental_distribute_dataset": "self, dataset, options",  # 753
        "_distribute_datasets_from_function": "self, dataset_fn, options",  # 775
        "_gather_to_implementation": "self, value, destinations, axis, options",  # 925
    },
}
# Names of instance attributes, by class.
ATTRIBUTES = {
    keras.optimizers.Optimizer: {
        "_iterations",  # optimizers/base_optimizer.py:166
        "_trainable_variables",  # base_optimizer.py:227
        "_accumulated_gradients",  # base_optimizer.py:217, with gradient accumulation
        "_distribution_strategy",  # backend/tensorflow/optimizer.py:22
    },
    keras.optimizers.Adam: {
        "_momentums",  # optimizers/adam.py:93
        "_velocities",  # adam.py:93
        "_velocity_hats",  # adam.py:98, with amsgrad
    },
    keras.optimizers.Nadam: {
        "_momentums",  # optimizers/nadam.py:90
        "_velocities",  # nadam.py:90
        "_u_product",  # nadam.py:93
    },
    DistributedIterator: {
        "_strategy",  # tensorflow/python/distribute/input_lib.py:605
        "_enable_get_next_as_optional",  # input_lib.py:607
    },
    tf.distribute.MirroredStrategy: {
        "_collective_key_base",  # tensorflow/python/distribute/mirrored_strategy.py:283
    },
    tf.distribute.MultiWorkerMirroredStrategy: {
        "_collective_key_base",  # distribute/collective_all_reduce_strategy.py:168
    },
    MirroredExtended: {
        "_devices",  # tensorflow/python/distribute/mirrored_strategy.py:410
        "_input_workers_devices",  # mirrored_strategy.py:411
    },
    CollectiveAllReduceExtended: {
        # tensorflow/python/distribute/collective_all_reduce_strategy.py, at these lines
        "_num_workers",  # 433, 526
        "_id_in_cluster",  # 486, 522
        "_collective_keys",  # 463, 619
        "_communication_options",  # 379
        "_enable_check_health",  # 340
        "_std_server_started",  # 573, 599
    },
}
