"""Clusters that cannot be are refused, with what is wrong about them."""

import json

import pytest
import tensorflow as tf

from tf_onebit.distribute import MultiWorkerMirroredStrategy


def tf_config(workers=("host1:2222", "host2:2222"), job="worker", index=0, **others):
    cluster = {"worker": list(workers), **others}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


WRONG = {
    '{"cluster"': "cannot be read",
    "[]": "it is no JSON object",
    '{"cluster": {"worker": ["host1:2222"]}}': "none for this process",
    tf_config(index=2): "the task worker 2, but has only worker 0, worker 1",
    tf_config(index="one"): "cannot be read",
    tf_config(job="trainer"): "jobs other than chief and worker",
    tf_config(ps=["host3:2222"]): "jobs other than chief and worker",
    tf_config(["host1", "host2"]): "has addresses without a port",
    tf_config(["host1:0", "host2:2222"]): "has addresses without a port from 1 to 65535",
    tf_config(["host1:99999", "host2:2222"]): "has addresses without a port from 1 to 65535",
    tf_config(["host1:2222", "host1:2222"]): "has an address twice",
}


@pytest.mark.parametrize("config", WRONG)
def test_tf_config_is_checked(config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError) as raised:
        MultiWorkerMirroredStrategy()
    message = str(raised.value)
    assert WRONG[config] in message
    assert f"TF_CONFIG={config!r}" in message
    assert 'For two workers it is {"cluster"' in message


def test_other_resolvers_are_checked():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": ["host1:2222"]}), task_type="worker", task_id=1
    )
    with pytest.raises(ValueError, match="The cluster of SimpleClusterResolver.*has only worker 0"):
        MultiWorkerMirroredStrategy(cluster_resolver=resolver)
