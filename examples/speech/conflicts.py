"""Conflicts between options of a training job, and what to do about them."""

import math


def is_automatic(options):
    """Returns whether training decides its learning rate or minibatch size itself."""
    return options.auto_minibatch or options.auto_learning_rate


def found_in(options):
    """Returns the first conflict in parsed options, as text, or None."""
    return next((text for conflict, text in _conflicts(options) if conflict), None)


def _conflicts(options):
    of_one_bit = options.exchange.startswith("onebit")
    yield from _of_workers_apart(options)
    yield (
        options.adagrad == "raw" and options.exchange != "full",
        "--adagrad raw normalizes gradients that are not quantized. Received: --exchange "
        f"{options.exchange}. Use --exchange full, or --adagrad aggregate.",
    )
    yield (
        options.adagrad in ("local", "aggregate") and not of_one_bit,
        f"--adagrad {options.adagrad} is a part of 1-bit exchanges. Received: "
        f"--exchange {options.exchange}. Use --exchange onebit, or --adagrad raw with full.",
    )
    yield (
        options.adagrad == "after-momentum" and options.exchange == "threshold",
        "--adagrad after-momentum needs sums of gradients. Received: --exchange threshold. "
        "Use --exchange full or onebit.",
    )
    yield (
        options.adagrad == "after-momentum" and not options.momentum,
        "--adagrad after-momentum needs --momentum. Received: --momentum 0. "
        "Use --momentum 0.9, or --adagrad raw or aggregate.",
    )
    yield (
        options.delayed and options.batch_size % 2,
        "--delayed halves minibatches, which must have an even number of frames. Received: "
        f"--batch-size {options.batch_size}.",
    )
    yield from _of_automatic(options)
    yield from _of_network(options)


def _of_workers_apart(options):
    apart = "--asynchronous" if options.asynchronous else "--bmuf" if options.bmuf else None
    yield (
        options.asynchronous and options.exchange != "threshold",
        f"--asynchronous needs --exchange threshold. Received: {options.exchange}.",
    )
    yield options.bmuf and options.asynchronous, "--bmuf and --asynchronous exclude each other."
    yield (
        options.shares and not options.asynchronous,
        f"--shares needs --asynchronous. Received: {options.shares}.",
    )
    yield (
        options.shares and min(options.shares) < 1,
        f"--shares must be positive. Received: {options.shares}.",
    )
    for name in ("adagrad", "delayed", "auto_minibatch", "auto_learning_rate"):
        yield (
            apart and getattr(options, name),
            f"--{name.replace('_', '-')} needs workers that exchange the gradients of every step. "
            f"Received: {apart}.",
        )
    yield (
        apart and options.warm_start_samples,
        f"--warm-start-samples needs workers that exchange the gradients of every step. "
        f"Received: {apart}.",
    )


def _of_automatic(options):
    yield (
        is_automatic(options) and options.schedule not in (None, "constant"),
        "--auto-minibatch and --auto-learning-rate do not know how many steps there will be. "
        f"Received: --schedule {options.schedule}. Use --schedule constant.",
    )
    end = options.first_block + (options.blocks or 0)
    yield (
        is_automatic(options) and options.blocks and end % options.blocks_per_epoch,
        "--auto-minibatch and --auto-learning-rate train on whole passes over the data, and must "
        f"end with one. Received: --first-block {options.first_block} --blocks {options.blocks} "
        f"--blocks-per-epoch {options.blocks_per_epoch}.",
    )
    for needed, name in (
        ("auto_minibatch", "minibatch_interval"),
        ("auto_minibatch", "trial_frames"),
        ("auto_minibatch", "tune_without_delay"),
        ("delayed", "tune_without_delay"),
        ("auto_learning_rate", "evaluation_interval"),
    ):
        flags = [f"--{text.replace('_', '-')}" for text in (name, needed)]
        yield (
            getattr(options, name) and not getattr(options, needed),
            f"{flags[0]} needs {flags[1]}. Use both or neither of them.",
        )
    yield (
        not 0 <= options.error_margin < math.inf,
        "--error-margin must be a relative error of at least 0. Received: "
        f"{options.error_margin}. Use 0.01 for 1 %.",
    )
    frames = ("minibatch_interval", "trial_frames", "evaluation_interval", "warm_start_samples")
    for name in frames:
        value = getattr(options, name)
        yield (
            value is not None and value < 1,
            f"--{name.replace('_', '-')} must be a positive number of frames. Received: {value}.",
        )


def _of_network(options):
    yield (
        options.svd_rank is not None and not 0 < options.svd_rank < options.width,
        "--svd-rank must be positive and less than --width. Received: --svd-rank "
        f"{options.svd_rank}, --width {options.width}.",
    )
    yield (
        options.svd_rank is not None and options.depth < 2,
        "--svd-rank needs matrices between hidden layers. Received: --depth "
        f"{options.depth}. Use 2 or more.",
    )
    yield (
        options.pretrain is not None and not 0 < options.pretrain <= 1,
        "--pretrain takes a part of a pass over the data, more than 0 and at most 1. Received: "
        f"{options.pretrain}.",
    )
    yield (
        options.pretrain is not None and options.depth < 2,
        f"--pretrain needs 2 or more hidden layers. Received: --depth {options.depth}.",
    )
    yield (
        options.pretrain is not None and options.load_weights,
        "--pretrain begins with untrained weights. Received: --load-weights "
        f"{options.load_weights}. Use one of them.",
    )
