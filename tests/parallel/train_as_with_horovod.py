"""A Horovod program with its import changed: two workers, of which the first ends earlier.

The other learns it from an error in place of Horovod's `join`, which reductions before it may use.
"""

import tensorflow as tf

import tf_onebit.horovod as hvd

hvd.init(process_sets="dynamic")

for _ in range(1 + hvd.rank()):
    total = hvd.allreduce(1.0, op=hvd.Sum, name="total")
print(f"{hvd.rank()}: the last sum is {float(total):g}, and {int(hvd.join())} came last")

alone = hvd.add_process_set([1])
if alone.included():
    print(f"{hvd.rank()}: by itself it has {hvd.broadcast_object('itself', 1, process_set=alone)}")
hvd.remove_process_set(alone)

weight = tf.Variable([float(hvd.rank())])
hvd.broadcast_variables([weight], root_rank=1)


@tf.function
def train_step():
    with tf.GradientTape() as tape:
        loss = weight * (hvd.rank() + 1.0)
    (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
    weight.assign_sub(gradient)


train_step()
print(f"{hvd.rank()}: the weight is {float(weight[0]):g}", flush=True)
for _ in range(hvd.rank()):
    train_step()
hvd.join()
