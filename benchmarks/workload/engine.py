"""The engine without a cluster: the trial of trial.py, started by `python -m gangline.launch.torch_distributed`."""

from __future__ import annotations

import argparse
import os

from trial import BenchmarkTrial

from gangline import pytorch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turnstile", required=True)
    parser.add_argument("--batch-per-rank", type=int, required=True)
    parser.add_argument("--steps-per-block", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--by-record", action="store_true")
    arguments = parser.parse_args()
    hparams = {
        "global_batch_size": arguments.batch_per_rank * int(os.environ["WORLD_SIZE"]),
        "turnstile": arguments.turnstile,
        "steps_per_block": arguments.steps_per_block,
        "by_record": arguments.by_record,
    }
    with pytorch.init(hparams=hparams) as context:
        length = pytorch.Batch(arguments.steps_per_block * arguments.blocks)
        pytorch.Trainer(BenchmarkTrial(context), context).fit(max_length=length)


if __name__ == "__main__":
    main()
