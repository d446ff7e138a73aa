"""The examples in the docstrings run, with the results that they show."""

import doctest
import importlib

import tf_onebit
import tf_onebit.horovod as hvd
from tests.unit.test_architecture import MODULES, module_name
from tf_onebit import callbacks, distribute, ops, optimizers, planner, transforms


def test_examples_run():
    runner = doctest.DocTestRunner()
    report = []
    for name in map(module_name, MODULES):
        for example in doctest.DocTestFinder().find(importlib.import_module(name), name):
            runner.run(example, out=report.append)
    assert runner.tries > len(MODULES)
    assert runner.failures == 0, "".join(report)


PUBLIC = [
    *(tf_onebit.FullPrecision, tf_onebit.Local, tf_onebit.OneBit, tf_onebit.WarmStart),
    *(tf_onebit.Threshold, tf_onebit.ResizableBatches, tf_onebit.Auto, tf_onebit.Delayed),
    *(tf_onebit.flush, tf_onebit.without_delay),
    *(distribute.MirroredStrategy, distribute.MultiWorkerMirroredStrategy, callbacks.Monitor),
    *(callbacks.BackupAndRestore, callbacks.BlockMomentum),
    *(callbacks.AutoMinibatchSize, callbacks.AutoLearningRate),
    *(optimizers.Adam, optimizers.AdamW, optimizers.Nadam, optimizers.RectifiedAdam),
    *(hvd.DistributedOptimizer, hvd.DistributedGradientTape, hvd.Compression),
    hvd.AsynchronousOptimizer,
    *(hvd.BroadcastGlobalVariablesCallback, hvd.MetricAverageCallback),
    *(hvd.LearningRateScheduleCallback, hvd.LearningRateWarmupCallback, hvd.BestModelCheckpoint),
    *(hvd.PartialDistributedOptimizer, hvd.PartialDistributedGradientTape, hvd.load_model),
    *(hvd.SyncBatchNormalization, hvd.broadcast_variables, hvd.join, hvd.init),
    *(ops.one_bit_encode, ops.one_bit_decode_sum, ops.one_bit_encode_shard),
    *(ops.one_bit_aggregate, ops.one_bit_decode, ops.one_bit_decode_add, ops.one_bit_learn_scales),
    *(ops.threshold_encode, ops.threshold_decode_sum, ops.threshold_decode_add),
    *(ops.threshold_apply, ops.threshold_clear),
    *(ops.golomb_rice_encode, ops.golomb_rice_decode),
    *(ops.block_difference, ops.block_update, ops.late_block_update, ops.moments_update),
    *(ops.adagrad_accumulate, ops.adagrad_normalize, ops.momentum),
    *(ops.record_time, ops.take_times),
    *(transforms.NormalizedAdaGrad, transforms.Momentum, optimizers.NormalizedAdaGrad),
    *(planner.advise, planner.interpolated, planner.narrowed, planner.predict, planner.regrouped),
    *(planner.simulate, planner.uniform_links, planner.with_more_workers, planner.within_nodes),
    *(planner.CompressedDataParallelism, planner.DataParallelism, planner.ModelParallelism),
]


def test_what_users_call_has_an_example():
    parser = doctest.DocTestParser()
    assert [public for public in PUBLIC if not parser.get_examples(public.__doc__)] == []
