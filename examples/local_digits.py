"""Train on digits by local steps: each worker takes 20 on a copy of its own, and sends how far it came, in int8.

    globalstep launch --ps 2 --workers 3 examples/local_digits.py --together 3
    globalstep launch --ps 2 --workers 3 examples/local_digits.py

With `--together 3` the mean of three workers' differences makes a step (DiLoCo); without, each one does, as it comes.
docs/modes.md tells when. It also runs alone: `python examples/local_digits.py`.
"""

import argparse

import numpy as np
from digits import HIDDEN_UNITS, load_data
from py_loss_digits import cross_entropy, hit_rate, initial_weights

import globalstep as gs

BATCH_SIZE = 32
LOCAL_STEPS = 20


def loss_fn(params, images, labels):
    return cross_entropy(*params, images, labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="global steps to train for")
    parser.add_argument("--together", type=int, help="how many workers make a step; default: each one does")
    parser.add_argument("--run-dir", default="runs/local_digits")
    args = parser.parse_args()
    images, test_images, labels, test_labels = load_data()
    batches = [(images[at : at + BATCH_SIZE], labels[at : at + BATCH_SIZE]) for at in range(0, len(images), BATCH_SIZE)]
    random = np.random.default_rng(7)
    params = [
        initial_weights(random, HIDDEN_UNITS, 64),
        np.zeros(HIDDEN_UNITS, np.float32),
        initial_weights(random, 10, HIDDEN_UNITS),
        np.zeros(10, np.float32),
    ]
    if args.together:
        outer = gs.optim.SGD(0.7, momentum=0.9, nesterov=True)
    else:
        outer = gs.optim.DelayedNesterov(0.4, delay=3)
    result = gs.fit(
        params,
        loss_fn,
        batches,
        optimizer=outer,
        local_steps=gs.LocalSteps(gs.optim.AdamW(2e-3), every=LOCAL_STEPS, replicas=args.together),
        steps=args.steps,
        run_dir=args.run_dir,
        config=gs.ConfigProto(wire=gs.WireOptions("int8")),
    )
    if result.is_chief:
        print(f"test accuracy: {hit_rate(*result.model, test_images, test_labels):.4f}")
        print(f"final global step: {result.step}")


if __name__ == "__main__":
    main()
