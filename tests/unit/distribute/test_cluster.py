"""Impossible clusters are refused, with a message that names the fault."""

import json

import pytest
import tensorflow as tf

from tf_onebit.distribute import MultiWorkerMirroredStrategy, cluster


def tf_config(workers=("host1:2222", "host2:2222"), job="worker", index=0, **others):
    cluster = {"worker": list(workers), **others}
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


WRONG = {
    '{"cluster"': "cannot be read",
    "[]": "it is not a JSON object",
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


def test_a_worker_alone_says_once_how_to_start_several(monkeypatch, recwarn):
    cluster._warn_of_one_worker.cache_clear()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    for _ in range(2):
        MultiWorkerMirroredStrategy()
    (warning,) = [w for w in recwarn if "the only worker" in str(w.message)]
    assert "tf-onebit launch -np 2 -- python train.py" in str(warning.message)
    assert warning.filename == __file__


def test_who_says_which_cluster_it_is_gets_no_advice(monkeypatch, recwarn):
    cluster._warn_of_one_worker.cache_clear()
    monkeypatch.delenv("TF_CONFIG", raising=False)
    MultiWorkerMirroredStrategy(
        cluster_resolver=tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    monkeypatch.setenv("TF_CONFIG", tf_config())
    cluster.resolver_of_environment()
    assert not [w for w in recwarn if "the only worker" in str(w.message)]
